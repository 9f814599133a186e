// index_fp8_132: page-packed indexer keys, 128 e4m3 and one f32 scale. Writers store a power of two
// (scale_fmt ue8m0), 2^ceil(log2(max(amax, 1e-4) / 448)); readers take any f32.
#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/layouts.h"

namespace smla {

namespace {
using Layout = layout::IndexFp8_132;

size_t record_bytes(int32_t) { return Layout::record; }
size_t page_bytes(int32_t, int64_t page_tokens) { return size_t(Layout::page_bytes(page_tokens)); }

template <class Real>
void encode(const RecordAt& at, const Real* values) {
    const float scale = e8m0_to_f32(scale_rule::e8m0(fp8::amax(values, Layout::width)));
    fp8::encode(values, Layout::width, scale, fp8::bytes(at.page + Layout::row_at(at.offset)));
    fp8::store_f32(at.page + Layout::scale_at(at.page_tokens, at.offset), scale);
}

template <class Real>
void decode(const RecordAt& at, Real* values) {
    const float scale = fp8::load_f32(at.page + Layout::scale_at(at.page_tokens, at.offset));
    fp8::decode(fp8::bytes(at.page + Layout::row_at(at.offset)), Layout::width, scale, values);
}
}  // namespace

constexpr Format kIndexFp8_132 = {.id = SMLA_INDEX_FP8_132,
                                  .name = "index_fp8_132",
                                  .width = Layout::width,
                                  .max_width = Layout::width,
                                  .width_multiple = 1,
                                  .packing = Packing::page,
                                  .scale = ScaleKind::f32_tile,
                                  .alignment = 4,
                                  .record_bytes = record_bytes,
                                  .page_bytes = page_bytes,
                                  .encode_f32 = encode<float>,
                                  .encode_f64 = encode<double>,
                                  .decode_f32 = decode<float>,
                                  .decode_f64 = decode<double>};

}  // namespace smla
