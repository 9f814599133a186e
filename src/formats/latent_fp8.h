// fp8_656 and fp8_528: a latent in tiles of 128 with f32 scales, and a bf16 rope part that may be empty.
// Writers store powers of two, 2^ceil(log2(max(amax / 448, 1e-4))), because readers in the field round the
// scale to bf16 or to an exponent (vLLM #49435); our reader takes all 32 bits, so that caches with other
// scales read right too.
#pragma once

#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/layouts.h"

namespace smla {

template <class Layout>
struct LatentFp8Format {
    static size_t record_bytes(int32_t) { return Layout::record; }
    static size_t page_bytes(int32_t, int64_t page_tokens) {
        return size_t(Layout::record) * size_t(page_tokens);
    }

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        char* row = at.row();
        for (int t = 0; t < Layout::tiles; ++t) {
            const Real* tile = values + t * Layout::tile;
            const float scale = scale_rule::latent(fp8::amax(tile, Layout::tile));
            fp8::encode(tile, Layout::tile, scale, fp8::bytes(row) + t * Layout::tile);
            fp8::store_f32(row + Layout::scales_at + 4 * t, scale);
        }
        fp8::encode_bf16(values + Layout::codes, Layout::rope, row + Layout::rope_at);
    }

    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        char* row = at.row();
        for (int t = 0; t < Layout::tiles; ++t)
            fp8::decode(fp8::bytes(row) + t * Layout::tile, Layout::tile,
                        fp8::load_f32(row + Layout::scales_at + 4 * t), values + t * Layout::tile);
        fp8::decode_bf16(row + Layout::rope_at, Layout::rope, values + Layout::codes);
    }

    static constexpr Format make(smla_format id, const char* name) {
        return {.id = id,
                .name = name,
                .width = Layout::width,
                .max_width = Layout::width,
                .width_multiple = 1,
                .packing = Packing::row,
                .scale = ScaleKind::f32_tile,
                .alignment = 4,
                .record_bytes = record_bytes,
                .page_bytes = page_bytes,
                .encode_f32 = encode<float>,
                .encode_f64 = encode<double>,
                .decode_f32 = decode<float>,
                .decode_f64 = decode<double>};
    }
};

}  // namespace smla
