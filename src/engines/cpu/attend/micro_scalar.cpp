// attend in f32 for any processor.
#include "engines/cpu/attend/table_of_micro.h"
#include "engines/cpu/lanes_scalar.h"

namespace smla::cpu_attend {

namespace {

struct ScalarF32 : AttendLanes<lanes::Scalar, 2, 4> {
    static constexpr int row_words = 0;
};

}  // namespace

constexpr Micro kScalarF32 = micro_of<ScalarF32, 8, 4>([](smla_format, int) { return Decoder{}; });

}  // namespace smla::cpu_attend
