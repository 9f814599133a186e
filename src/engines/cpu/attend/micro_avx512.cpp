// attend in f32 on AVX-512: 24 of 32 registers accumulate.
#include "engines/cpu/attend/decode_f32.h"
#include "engines/cpu/attend/table_of_micro.h"
#include "engines/cpu/lanes_avx512.h"

namespace smla::cpu_attend {

namespace {

using Avx512F32 = AttendLanes<lanes::Avx512, 4, 6>;

constexpr Micro make() {
    Micro micro = micro_of<Avx512F32, 16, 12, 8, 6>(DecodeF32<Avx512F32>::decoder);
    set_score_few<Avx512F32, 16, 4>(micro);
    return micro;
}

}  // namespace

constexpr Micro kAvx512F32 = make();

}  // namespace smla::cpu_attend
