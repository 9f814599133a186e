// attend in f32 for any processor.
#include "engines/cpu/attend/table_of_micro.h"
#include "engines/cpu/lanes_scalar.h"

namespace smla::cpu_attend {

namespace {

struct ScalarF32 : AttendLanes<lanes::Scalar, 2, 4> {
    static constexpr int row_words = 0;
};

constexpr Micro make() {
    Micro micro = micro_of<ScalarF32>([](smla_format, int) { return Decoder{}; });
    micro.group_vectors = 2;
    set_score<ScalarF32, 1, 8>(micro);
    set_score<ScalarF32, 2, 4>(micro);
    return micro;
}

}  // namespace

constexpr Micro kScalarF32 = make();

}  // namespace smla::cpu_attend
