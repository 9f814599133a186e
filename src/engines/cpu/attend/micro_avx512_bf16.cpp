// attend with the bf16 dot instruction: two values per lane and step, sums in f32, at twice the f32 rate.
#include "engines/cpu/attend/decode_avx512_bf16.h"
#include "engines/cpu/attend/table_of_micro.h"

namespace smla::cpu_attend {

namespace {

constexpr Micro make() {
    Micro micro = micro_of<Avx512Bf16, 16, 12, 8, 6>(bf16_decoder<Avx512Bf16>);
    micro.value_words = Avx512Bf16::value_words;
    set_score_few<Avx512Bf16, 16, 4>(micro);
    return micro;
}

}  // namespace

constexpr Micro kAvx512Bf16 = make();

}  // namespace smla::cpu_attend
