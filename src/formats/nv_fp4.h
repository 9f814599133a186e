// nvfp4_* (NVFP4 without a global scale): scales are amax / 6, rounded to e4m3. Magnitudes above 6 * 448,
// including infinity, saturate. e2m1 has no NaN, so a group with a NaN gets the NaN scale 0x7f and codes of
// 0.
#pragma once

#include "formats/codec.h"

namespace smla {

template <class Of, const scale_rule::Nvfp4& Rule>
struct NvFp4Groups {
    using Layout = Of;

    static uint8_t scale_of(const float* group) {
        for (int i = 0; i < Layout::tile; ++i)
            if (std::isnan(group[i])) return scale_rule::kNanE4m3;
        return scale_rule::nvfp4(fp8::amax(group, Layout::tile), Rule);
    }

    // Replaces a group's values by the decoded values of its codes.
    static void round(float* group) {
        const float scale = e4m3_to_f32(scale_of(group));
        for (int i = 0; i < Layout::tile; ++i)
            group[i] = e2m1_to_f32(scale_rule::nvfp4_code(group[i], scale, Rule)) * scale;
    }

    template <class Real>
    static void encode(const Real* values, smla_writer writer, uint8_t* codes, uint8_t* scales) {
        for (int g = 0; g < Layout::tiles; ++g) {
            float group[Layout::tile];
            fp8::to_write(values + g * Layout::tile, Layout::tile, writer, group);
            const uint8_t code = scale_of(group);
            const float scale = e4m3_to_f32(code);
            scales[Layout::scale_at(g)] = code;
            for (int i = 0; i < Layout::tile; i += 2)
                codes[(g * Layout::tile + i) / 2] =
                    uint8_t(scale_rule::nvfp4_code(group[i], scale, Rule) |
                            scale_rule::nvfp4_code(group[i + 1], scale, Rule) << 4);
        }
    }

    template <class Real>
    static void decode(const uint8_t* codes, const uint8_t* scales, Real* values) {
        for (int g = 0; g < Layout::tiles; ++g) {
            const Real scale = Real(e4m3_to_f32(scales[Layout::scale_at(g)]));
            for (int i = g * Layout::tile; i < (g + 1) * Layout::tile; i += 2) {
                values[i] = Real(e2m1_to_f32(codes[i / 2] & 15)) * scale;
                values[i + 1] = Real(e2m1_to_f32(codes[i / 2] >> 4)) * scale;
            }
        }
    }
};

// nvfp4_288*: scales are at least 2^-9, the smallest positive e4m3 value. The writers of sglang and
// flashinfer first round values to bf16 (SMLA_WRITER_BF16_FIRST).
template <class Of>
struct NvFp4_288 {
    using Layout = Of;
    using Groups = NvFp4Groups<Layout, scale_rule::kNvfp4_288>;
    static constexpr Packing packing = Layout::split ? Packing::page : Packing::row;
    static constexpr ScaleKind scale = ScaleKind::e4m3_tile;
    static constexpr uint32_t alignment = 1;
    static constexpr smla_writer writers = kEntryWriters;

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        Groups::encode(values, at.writer, values_of<Layout>(at), scales_of<Layout>(at));
    }
    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        Groups::decode(values_of<Layout>(at), scales_of<Layout>(at), values);
    }
};

}  // namespace smla
