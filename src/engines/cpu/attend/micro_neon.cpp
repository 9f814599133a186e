// attend in f32 on 64-bit Arm: 24 of 32 registers accumulate.
#include "engines/cpu/attend/decode_f32.h"
#include "engines/cpu/attend/table_of_micro.h"
#include "engines/cpu/lanes_neon.h"

namespace smla::cpu_attend {

namespace {

using NeonF32 = AttendLanes<lanes::Neon, 4, 6>;

}  // namespace

constexpr Micro kNeonF32 = micro_of<NeonF32, 16, 12, 8, 6>(DecodeF32<NeonF32>::decoder);

}  // namespace smla::cpu_attend
