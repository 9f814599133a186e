// index_mxfp4_68 (OCP MX): scales are 2^ceil(log2(max(amax, 6 * 2^-126) / 6)). e2m1 has no NaN, so a block
// with a NaN gets the NaN scale. sglang's writer of V4 uses scale 2^ceil(log2(max(amax / 6, 1e-4)))
// (SMLA_WRITER_SCALE_FLOOR) and rounds ties to zero (SMLA_WRITER_TIES_TO_ZERO). sglang's writer of V4.1
// differs from vLLM's only in the sign of zeros, which no bit selects.
#include "core/numbers.h"
#include "formats/codec.h"

namespace smla {

namespace {

constexpr uint8_t kNanScale = 255;

struct IndexMxfp4 {
    using Layout = layout::IndexMxfp4_68;
    static constexpr Packing packing = Packing::page;
    static constexpr ScaleKind scale = ScaleKind::e8m0_tile;
    static constexpr uint32_t alignment = Layout::tiles;  // one load reads the 4 scale bytes of a token
    static constexpr smla_writer writers = SMLA_WRITER_SCALE_FLOOR | SMLA_WRITER_TIES_TO_ZERO;

    template <class Real>
    static uint8_t block_scale(const Real* values, smla_writer writer) {
        for (int i = 0; i < Layout::tile; ++i)
            if (std::isnan(values[i])) return kNanScale;
        const float amax = fp8::amax(values, Layout::tile);
        return writer & SMLA_WRITER_SCALE_FLOOR ? scale_rule::mxfp4_of_floored_scale(amax)
                                                : scale_rule::mxfp4(amax);
    }

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        uint8_t* codes = fp8::bytes(at.page + Layout::row_at(at.offset));
        uint8_t* scales = fp8::bytes(at.page + Layout::scales_at(at.page_tokens, at.offset));
        const auto code = at.writer & SMLA_WRITER_TIES_TO_ZERO ? f32_to_e2m1_ties_to_zero : f32_to_e2m1;
        for (int t = 0; t < Layout::tiles; ++t) {
            scales[t] = block_scale(values + t * Layout::tile, at.writer);
            const float scale = e8m0_to_f32(scales[t]);
            for (int i = t * Layout::tile; i < (t + 1) * Layout::tile; i += 2)
                codes[i / 2] =
                    uint8_t(code(float(values[i]) / scale) | code(float(values[i + 1]) / scale) << 4);
        }
    }

    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        const uint8_t* codes = fp8::bytes(at.page + Layout::row_at(at.offset));
        const uint8_t* scales = fp8::bytes(at.page + Layout::scales_at(at.page_tokens, at.offset));
        for (int t = 0; t < Layout::tiles; ++t) {
            const Real scale = Real(e8m0_to_f32(scales[t]));
            for (int i = t * Layout::tile; i < (t + 1) * Layout::tile; i += 2) {
                values[i] = Real(e2m1_to_f32(codes[i / 2] & 15)) * scale;
                values[i + 1] = Real(e2m1_to_f32(codes[i / 2] >> 4)) * scale;
            }
        }
    }
};

}  // namespace

constexpr Format kIndexMxfp4_68 = format_of<IndexMxfp4>(SMLA_INDEX_MXFP4_68, "index_mxfp4_68");

}  // namespace smla
