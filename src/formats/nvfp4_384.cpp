// nvfp4_384 (flashinfer's cache of V4): scales have no lower bound. A group of tiny values has scale 0 and
// decodes to zeros.
#include "formats/nv_fp4.h"

#include <algorithm>

namespace smla {

namespace {

struct NvFp4WithBf16Rope {
    using Layout = layout::Nvfp4_384;
    using Groups = NvFp4Groups<Layout, scale_rule::kNvfp4_384>;
    static constexpr Packing packing = Packing::page;
    static constexpr ScaleKind scale = ScaleKind::e4m3_tile;
    static constexpr uint32_t alignment = 2;  // the rope part is bf16

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        uint8_t* row = values_of<Layout>(at);
        uint8_t* scales = scales_of<Layout>(at);
        Groups::encode(values, 0, row, scales);
        std::fill(scales + Layout::tiles, scales + Layout::scales, uint8_t(0));
        fp8::encode_bf16(values + Layout::codes, Layout::rope,
                         reinterpret_cast<char*>(row) + Layout::rope_at);
    }
    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        const uint8_t* row = values_of<Layout>(at);
        Groups::decode(row, scales_of<Layout>(at), values);
        fp8::decode_bf16(reinterpret_cast<const char*>(row) + Layout::rope_at, Layout::rope,
                         values + Layout::codes);
    }
};

}  // namespace

constexpr Format kNvfp4_384 = format_of<NvFp4WithBf16Rope>(SMLA_NVFP4_384, "nvfp4_384");

}  // namespace smla
