// attend in f32 on AVX2: 12 of 16 registers accumulate.
#include "engines/cpu/attend/decode_f32.h"
#include "engines/cpu/attend/table_of_micro.h"
#include "engines/cpu/lanes_avx2.h"

namespace smla::cpu_attend {

namespace {

// 2 vectors x 6 are 12 of 16 registers; 3 x 4 reach only 89 instead of 127 GFLOP/s
using Avx2F32 = AttendLanes<lanes::Avx2, 2, 6>;

constexpr Micro make() {
    Micro micro = micro_of<Avx2F32, 12, 6>(DecodeF32<Avx2F32>::decoder);
    set_score_few<Avx2F32, 12, 4>(micro);
    return micro;
}

}  // namespace

constexpr Micro kAvx2F32 = make();

}  // namespace smla::cpu_attend
