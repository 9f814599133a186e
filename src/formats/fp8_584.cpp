// fp8_584 (fp8_ds_mla of V4): page-packed e4m3 in tiles of 64 with E8M0 scales, bf16 rope. Writer rule of the
// CUDA and Triton writers: 2^ceil(log2(max(amax, 1e-4) / 448)), the floor before the division (fp8_656 has it
// after).
#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/layouts.h"

namespace smla {

namespace {
using Layout = layout::Fp8_584;

size_t record_bytes(int32_t) { return Layout::record; }
size_t page_bytes(int32_t, int64_t page_tokens) { return size_t(Layout::page_bytes(page_tokens)); }

template <class Real>
void encode(const RecordAt& at, const Real* values) {
    char* row = at.page + Layout::row_at(at.offset);
    uint8_t* scales = fp8::bytes(at.page + Layout::scales_at(at.page_tokens, at.offset));
    for (int t = 0; t < Layout::tiles; ++t) {
        const Real* tile = values + t * Layout::tile;
        scales[t] = scale_rule::e8m0(fp8::amax(tile, Layout::tile));
        fp8::encode(tile, Layout::tile, e8m0_to_f32(scales[t]), fp8::bytes(row) + t * Layout::tile);
    }
    scales[Layout::tiles] = 0;
    fp8::encode_bf16(values + Layout::codes, Layout::rope, row + Layout::rope_at);
}

template <class Real>
void decode(const RecordAt& at, Real* values) {
    char* row = at.page + Layout::row_at(at.offset);
    const uint8_t* scales = fp8::bytes(at.page + Layout::scales_at(at.page_tokens, at.offset));
    for (int t = 0; t < Layout::tiles; ++t)
        fp8::decode(fp8::bytes(row) + t * Layout::tile, Layout::tile, e8m0_to_f32(scales[t]),
                    values + t * Layout::tile);
    fp8::decode_bf16(row + Layout::rope_at, Layout::rope, values + Layout::codes);
}
}  // namespace

constexpr Format kFp8_584 = {.id = SMLA_FP8_584,
                             .name = "fp8_584",
                             .width = Layout::width,
                             .max_width = Layout::width,
                             .width_multiple = 1,
                             .packing = Packing::page,
                             .scale = ScaleKind::e8m0_tile,
                             .alignment = Layout::scales,  // the 8 scale bytes of a token are loaded at once
                             .record_bytes = record_bytes,
                             .page_bytes = page_bytes,
                             .encode_f32 = encode<float>,
                             .encode_f64 = encode<double>,
                             .decode_f32 = decode<float>,
                             .decode_f64 = decode<double>};

}  // namespace smla
