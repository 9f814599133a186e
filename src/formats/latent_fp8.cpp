// fp8_656 and fp8_528: writers store power-of-two scales, 2^ceil(log2(max(amax / 448, 1e-4))), because some
// readers round scales to bf16 or to an exponent (vLLM #49435). smla's reader uses all 32 bits of a scale.
#include "formats/codec.h"

namespace smla {

namespace {

template <class Of>
struct LatentFp8 {
    using Layout = Of;
    static constexpr Packing packing = Packing::row;
    static constexpr ScaleKind scale = ScaleKind::f32_tile;
    static constexpr uint32_t alignment = 4;

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
};

}  // namespace

// fp8_656 (fp8_ds_mla of V3.2 and GLM): 512 latent values and 64 bf16 rope values.
constexpr Format kFp8_656 = format_of<LatentFp8<layout::Fp8_656>>(SMLA_FP8_656, "fp8_656");

// fp8_528 (models without RoPE): fp8_656 without the rope part.
constexpr Format kFp8_528 = format_of<LatentFp8<layout::Fp8_528>>(SMLA_FP8_528, "fp8_528");

}  // namespace smla
