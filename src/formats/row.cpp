// row_f64, row_f32 and row_bf16 store plain rows. bf16_576 (V3.2: 512 latent, 64 rope) and bf16_512 (V4) are
// row_bf16 of these widths.
#include "formats/plain_row.h"

namespace smla {

constexpr int32_t kMaxWidth = 1024;

constexpr Format kRowF64 = PlainRow<double>::make(SMLA_ROW_F64, "row_f64", kMaxWidth, 1);
constexpr Format kRowF32 = PlainRow<float>::make(SMLA_ROW_F32, "row_f32", kMaxWidth, 1);
constexpr Format kRowBf16 = PlainRow<uint16_t>::make(SMLA_ROW_BF16, "row_bf16", kMaxWidth, 1);

}  // namespace smla
