// state_f32 and state_f64: contribution of a token to a compressed entry.
#include "formats/plain_row.h"

namespace smla {

constexpr int32_t kMaxStateWidth = 4096;  // 2 * coff * D: 4 times the widest entry (V4: 2048)

constexpr Format kStateF32 = PlainRow<float>::make(SMLA_STATE_F32, "state_f32", kMaxStateWidth, 2);
constexpr Format kStateF64 = PlainRow<double>::make(SMLA_STATE_F64, "state_f64", kMaxStateWidth, 2);

}  // namespace smla
