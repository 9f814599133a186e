// quant_index_q: what it means (reference.cpp) and what it accepts. See include/smla/stages_index.h.
#pragma once

#include "ops/field.h"

#include <smla/stages_index.h>

namespace smla {

struct QuantIndexQOp {
    using Args = smla_quant_index_q_args;
    static void check(const Args& args, const CheckContext& context = {});
    static int64_t tasks(const Args& args) { return args.q.shape[0]; }  // tokens
    static void reference(const Args& args, int64_t begin, int64_t end);
};

constexpr int64_t kQueryScaleGroup = 32;  // e2m1 values that share one e8m0 scale

// Throws unless all rows of an e2m1 tensor begin at a whole byte.
void check_even_strides(const char* field, const Tensor& tensor);

}  // namespace smla
