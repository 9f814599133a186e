// fp8_584 (fp8_ds_mla of V4): CUDA and Triton writers use scale 2^ceil(log2(max(amax, 1e-4) / 448)), with the
// lower bound before the division. Writers of fp8_656 apply the bound after the division.
#include "formats/codec.h"

namespace smla {

namespace {

struct PagePackedFp8 {
    using Layout = layout::Fp8_584;
    static constexpr Packing packing = Packing::page;
    static constexpr ScaleKind scale = ScaleKind::e8m0_tile;
    static constexpr uint32_t alignment = Layout::scales;  // one load reads the 8 scale bytes of a token

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
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
    static void decode(const RecordAt& at, Real* values) {
        char* row = at.page + Layout::row_at(at.offset);
        const uint8_t* scales = fp8::bytes(at.page + Layout::scales_at(at.page_tokens, at.offset));
        for (int t = 0; t < Layout::tiles; ++t)
            fp8::decode(fp8::bytes(row) + t * Layout::tile, Layout::tile, e8m0_to_f32(scales[t]),
                        values + t * Layout::tile);
        fp8::decode_bf16(row + Layout::rope_at, Layout::rope, values + Layout::codes);
    }
};

}  // namespace

constexpr Format kFp8_584 = format_of<PagePackedFp8>(SMLA_FP8_584, "fp8_584");

}  // namespace smla
