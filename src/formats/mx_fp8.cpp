// fp8_528_g32* (OCP MXFP8): vLLM's writer uses scale 2^ceil(log2(max(amax, 1e-4) / 448)). The writers of
// sglang and flashinfer use 2^ceil(log2(max(amax / 448, 1e-4))) (SMLA_WRITER_SCALE_FLOOR) and first round
// values to bf16 (SMLA_WRITER_BF16_FIRST). sglang's compressed entries have values of nvfp4_288, which are
// exact in bf16 (SMLA_WRITER_FP4_VALUES). A NaN keeps its code. A group with an infinity has the largest
// scale.
#include "formats/codec.h"
#include "formats/nv_fp4.h"

namespace smla {

namespace {

template <class Of>
struct MxFp8 {
    using Layout = Of;
    static constexpr Packing packing = Layout::split ? Packing::page : Packing::row;
    static constexpr ScaleKind scale = ScaleKind::e8m0_tile;
    static constexpr uint32_t alignment = 1;
    static constexpr smla_writer writers = kEntryWriters | SMLA_WRITER_SCALE_FLOOR | SMLA_WRITER_FP4_VALUES;
    using Fp4 = NvFp4Groups<layout::Nvfp4_288<Layout::split>, scale_rule::kNvfp4_288>;
    static_assert(Layout::tile % Fp4::Layout::tile == 0);

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        uint8_t* codes = values_of<Layout>(at);
        uint8_t* scales = scales_of<Layout>(at);
        for (int t = 0; t < Layout::tiles; ++t) {
            float tile[Layout::tile];
            fp8::to_write(values + t * Layout::tile, Layout::tile, at.writer, tile);
            for (int i = 0; at.writer & SMLA_WRITER_FP4_VALUES && i < Layout::tile; i += Fp4::Layout::tile)
                Fp4::round(tile + i);
            const float amax = fp8::amax(tile, Layout::tile);
            scales[t] = at.writer & SMLA_WRITER_SCALE_FLOOR ? scale_rule::e8m0_of_floored_scale(amax)
                                                            : scale_rule::e8m0(amax);
            fp8::encode(tile, Layout::tile, e8m0_to_f32(scales[t]), codes + t * Layout::tile);
        }
    }

    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        const uint8_t* codes = values_of<Layout>(at);
        const uint8_t* scales = scales_of<Layout>(at);
        for (int t = 0; t < Layout::tiles; ++t)
            fp8::decode(codes + t * Layout::tile, Layout::tile, e8m0_to_f32(scales[t]),
                        values + t * Layout::tile);
    }
};

}  // namespace

// fp8_528_g32 (vLLM 0.33 and sglang's *_NEW caches): a token's values and scales are contiguous.
constexpr Format kFp8_528_g32 = format_of<MxFp8<layout::Fp8_528_g32<false>>>(SMLA_FP8_528_G32, "fp8_528_g32");

// fp8_528_g32_split (sglang's V41 caches and flashinfer): scales are stored after all rows of a page.
constexpr Format kFp8_528_g32Split =
    format_of<MxFp8<layout::Fp8_528_g32<true>>>(SMLA_FP8_528_G32_SPLIT, "fp8_528_g32_split");

}  // namespace smla
