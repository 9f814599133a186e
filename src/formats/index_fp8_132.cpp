// index_fp8_132: writers store power-of-two scales, 2^ceil(log2(max(amax, 1e-4) / 448)) (scale_fmt ue8m0).
// Readers accept any f32 scale.
#include "formats/codec.h"

namespace smla {

namespace {

struct IndexFp8 {
    using Layout = layout::IndexFp8_132;
    static constexpr Packing packing = Packing::page;
    static constexpr ScaleKind scale = ScaleKind::f32_tile;
    static constexpr uint32_t alignment = 4;

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        const float scale = e8m0_to_f32(scale_rule::e8m0(fp8::amax(values, Layout::width)));
        fp8::encode(values, Layout::width, scale, fp8::bytes(at.page + Layout::row_at(at.offset)));
        fp8::store_f32(at.page + Layout::scale_at(at.page_tokens, at.offset), scale);
    }

    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        const float scale = fp8::load_f32(at.page + Layout::scale_at(at.page_tokens, at.offset));
        fp8::decode(fp8::bytes(at.page + Layout::row_at(at.offset)), Layout::width, scale, values);
    }
};

}  // namespace

constexpr Format kIndexFp8_132 = format_of<IndexFp8>(SMLA_INDEX_FP8_132, "index_fp8_132");

}  // namespace smla
