// Decodes cached rows into f32 words, vector by vector, for the layouts with kernels. Values are exactly
// those in the format's decoder: code * scale rounded once.
#pragma once

#include "engines/cpu/attend/products.h"
#include "formats/layouts.h"

#include <smla/types.h>

namespace smla::cpu_attend {

template <class Isa>
struct DecodeF32 {
    using Vec = typename Isa::Vec;

    template <bool kRounded>
    static SMLA_INLINE void codes(const char* in, int n, float scale, float* out) {
        const Vec factor = Isa::broadcast(scale);
        for (int i = 0; i < n; i += Isa::lanes) {
            const Vec values = Isa::mul(Isa::load_e4m3(reinterpret_cast<const uint8_t*>(in) + i), factor);
            Isa::store(out + i, kRounded ? Isa::round_bf16(values) : values);
        }
    }
    static SMLA_INLINE void bf16(const char* in, int n, float* out) {
        for (int i = 0; i < n; i += Isa::lanes) Isa::store(out + i, Isa::load_bf16(in + 2 * i));
    }

    // Readers of one row: row<kRounded>(key, args, out).
    template <class Layout>
    struct Latent {
        template <bool kRounded>
        static SMLA_INLINE void row(const KeyAddress& key, const DecodeArgs&, float* out) {
            for (int t = 0; t < Layout::tiles; ++t)
                codes<kRounded>(key.row + t * Layout::tile, Layout::tile,
                                lanes::f32_at(key.row + Layout::scales_at + 4 * t), out + t * Layout::tile);
            bf16(key.row + Layout::rope_at, Layout::rope, out + Layout::codes);
        }
    };
    template <class Layout>
    struct PerTensor {
        template <bool kRounded>
        static SMLA_INLINE void row(const KeyAddress& key, const DecodeArgs& args, float* out) {
            codes<kRounded>(key.row, Layout::width, args.scale, out);
        }
    };
    struct PagePacked {
        using Layout = layout::Fp8_584;
        template <bool kRounded>
        static SMLA_INLINE void row(const KeyAddress& key, const DecodeArgs&, float* out) {
            for (int t = 0; t < Layout::tiles; ++t) {
                const float scale = lanes::e8m0(uint8_t(key.scales[t]));
                codes<kRounded>(key.row + t * Layout::tile, Layout::tile, scale, out + t * Layout::tile);
            }
            bf16(key.row + Layout::rope_at, Layout::rope, out + Layout::codes);
        }
    };
    struct PlainBf16 {
        template <bool>
        static SMLA_INLINE void row(const KeyAddress& key, const DecodeArgs& args, float* out) {
            bf16(key.row, args.width, out);
        }
    };
    struct PlainF32 {
        template <bool>
        static SMLA_INLINE void row(const KeyAddress& key, const DecodeArgs& args, float* out) {
            for (int i = 0; i < args.width; i += Isa::lanes)
                Isa::store(out + i, Isa::load(reinterpret_cast<const float*>(key.row) + i));
        }
    };

    template <class Reader>
    static bool block(const DecodeArgs& args) {
        constexpr int kAhead = 4;  // number of keys whose first lines are fetched ahead
        for (int k = 0; k < args.padded; ++k) {
            float* out = reinterpret_cast<float*>(args.keys_out + k * args.row_words);
            if (k >= args.count) {
                for (int i = 0; i < args.width; i += Isa::lanes) Isa::store(out + i, Isa::zero());
                continue;
            }
            if (k + kAhead < args.count)
                for (int line = 0; line < args.row_lines; ++line)
                    __builtin_prefetch(args.keys[k + kAhead].row + 64 * line);
            if (args.rounded) Reader::template row<true>(args.keys[k], args, out);
            else Reader::template row<false>(args.keys[k], args, out);
        }
        return true;
    }

    static Decoder decoder(smla_format format, int width) {
        if (width % Isa::lanes != 0) return {};
        switch (format) {
            case SMLA_ROW_F32: return {block<PlainF32>, false};
            case SMLA_ROW_BF16: return {block<PlainBf16>, false};
            case SMLA_FP8_656: return {block<Latent<layout::Fp8_656>>, false};
            case SMLA_FP8_528: return {block<Latent<layout::Fp8_528>>, false};
            case SMLA_FP8_576: return {block<PerTensor<layout::Fp8_576>>, false};
            case SMLA_FP8_512: return {block<PerTensor<layout::Fp8_512>>, false};
            case SMLA_FP8_584: return {block<PagePacked>, false};
            default: return {};
        }
    }
};

}  // namespace smla::cpu_attend
