// select: what it means (reference.cpp) and what it accepts. See include/smla/stages_index.h.
#pragma once

#include "formats/format.h"

#include <smla/stages_index.h>

namespace smla {

struct SelectOp {
    using Args = smla_select_args;
    static void check(const Args& args);
    static int64_t tasks(const Args& args) { return args.scores.shape[0]; }  // tokens
    static void reference(const Args& args, int64_t begin, int64_t end);
};

// The outputs alone, which score_select has too.
void check_select_outputs(const smla_select_args& args, int64_t tokens, bool f64);

// Writes row t of the outputs: `count` winners, ascending, then -1 and -inf. `base` is subtracted from each
// index.
template <class Real>
void store_selection(const smla_select_args& args, int64_t t, const int32_t* winners, const Real* scores,
                     int64_t count, int64_t base);

}  // namespace smla
