// nvfp4_352 (nvfp4_ds_mla of V3.2): scales are at least 2^-9, the smallest positive e4m3 value. Rope values
// above 448 saturate.
#include "formats/nv_fp4.h"

namespace smla {

namespace {

struct NvFp4WithE4m3Rope {
    using Layout = layout::Nvfp4_352;
    using Groups = NvFp4Groups<Layout, scale_rule::kNvfp4_352>;
    static constexpr Packing packing = Packing::row;
    static constexpr ScaleKind scale = ScaleKind::e4m3_tile;
    static constexpr uint32_t alignment = 1;

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        uint8_t* row = values_of<Layout>(at);
        Groups::encode(values, 0, row, scales_of<Layout>(at));
        fp8::encode(values + Layout::codes, Layout::rope, 1.f, row + Layout::rope_at);
    }
    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        const uint8_t* row = values_of<Layout>(at);
        Groups::decode(row, scales_of<Layout>(at), values);
        fp8::decode(row + Layout::rope_at, Layout::rope, 1.f, values + Layout::codes);
    }
};

}  // namespace

constexpr Format kNvfp4_352 = format_of<NvFp4WithE4m3Rope>(SMLA_NVFP4_352, "nvfp4_352");

}  // namespace smla
