// row_* and state_*: `width` contiguous values per token, with any row stride.
#include "formats/format.h"

namespace smla {

namespace {

template <class Stored>
struct PlainRow {
    static size_t record_bytes(int32_t width) { return sizeof(Stored) * size_t(width); }

    // Loops vectorize only with the width in a local variable and no aliasing between row and values.
    template <class Real>
    static void encode(const RecordAt& at, const Real* __restrict values) {
        Stored* __restrict out = reinterpret_cast<Stored*>(at.row());
        const int32_t width = at.width;
        for (int32_t i = 0; i < width; ++i) {
            if constexpr (sizeof(Stored) == 2) out[i] = f32_to_bf16(float(values[i]));
            else out[i] = Stored(values[i]);
        }
    }
    template <class Real>
    static void decode(const RecordAt& at, Real* __restrict values) {
        const Stored* __restrict in = reinterpret_cast<const Stored*>(at.row());
        const int32_t width = at.width;
        for (int32_t i = 0; i < width; ++i) {
            if constexpr (sizeof(Stored) == 2) values[i] = Real(bf16_to_f32(in[i]));
            else values[i] = Real(in[i]);
        }
    }

    static constexpr Format make(smla_format id, const char* name, int32_t max_width, int32_t multiple) {
        return {.id = id,
                .name = name,
                .width = 0,
                .max_width = max_width,
                .width_multiple = multiple,
                .packing = Packing::row,
                .scale = ScaleKind::none,
                .values_per_scale = 0,
                .alignment = sizeof(Stored),
                .record_bytes = record_bytes,
                .page_multiple = 1,
                .writers = 0,
                .encode_f32 = encode<float>,
                .encode_f64 = encode<double>,
                .decode_f32 = decode<float>,
                .decode_f64 = decode<double>};
    }
};

}  // namespace

// row_f64, row_f32 and row_bf16 store plain rows. bf16_576 (V3.2: 512 latent, 64 rope) and bf16_512 (V4) are
// row_bf16 of these widths.
constexpr int32_t kMaxWidth = 1024;

constexpr Format kRowF64 = PlainRow<double>::make(SMLA_ROW_F64, "row_f64", kMaxWidth, 1);
constexpr Format kRowF32 = PlainRow<float>::make(SMLA_ROW_F32, "row_f32", kMaxWidth, 1);
constexpr Format kRowBf16 = PlainRow<uint16_t>::make(SMLA_ROW_BF16, "row_bf16", kMaxWidth, 1);

// state_f32 and state_f64: contribution of a token to a compressed entry.
constexpr int32_t kMaxStateWidth = 4096;  // 2 * coff * D, at most 4 times the widest entry (V4: 2048)

constexpr Format kStateF32 = PlainRow<float>::make(SMLA_STATE_F32, "state_f32", kMaxStateWidth, 2);
constexpr Format kStateF64 = PlainRow<double>::make(SMLA_STATE_F64, "state_f64", kMaxStateWidth, 2);

}  // namespace smla
