// attend in f32 on 64-bit Arm: 24 of 32 registers accumulate.
#include "engines/cpu/attend/decode_f32.h"
#include "engines/cpu/attend/table_of_micro.h"
#include "engines/cpu/lanes_neon.h"

namespace smla::cpu_attend {

namespace {

// 4 vectors x 6 are 24 of 32 registers
using NeonF32 = AttendLanes<lanes::Neon, 4, 6>;

constexpr Micro make() {
    Micro micro = micro_of<NeonF32>(DecodeF32<NeonF32>::decoder);
    micro.group_vectors = 4;
    set_score<NeonF32, 1, 16>(micro);
    set_score<NeonF32, 2, 12>(micro);
    set_score<NeonF32, 3, 8>(micro);
    set_score<NeonF32, 4, 6>(micro);
    return micro;
}

}  // namespace

constexpr Micro kNeonF32 = make();

}  // namespace smla::cpu_attend
