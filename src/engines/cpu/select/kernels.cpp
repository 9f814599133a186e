// The select kernels of the cpu engine.
#include "engines/cpu/candidates.h"
#include "engines/cpu/generic.h"
#include "engines/cpu/select/run.h"
#include "ops/select/select.h"

namespace smla {

namespace {

template <const SelectKernel& Kernel>
constexpr Candidate<smla_select_args> threshold() {
    using Args = smla_select_args;
    return {.name = Kernel.name,
            .plan = [](const Args& args, const Env& env) { return plan_select(Kernel, args, env); }};
}

constexpr const SelectKernel* kKernels[] = {
#if defined(__x86_64__)
    &kSelectAvx512, &kSelectAvx2,
#endif
    &kSelectScalar};

}  // namespace

const SelectKernel* chosen_select_kernel(const smla_select_args& args, const Env& env) {
    for (const SelectKernel* kernel : kKernels)
        if (env.allows(Stage::select, kernel->name) && refuse_select(*kernel, args, env).empty())
            return kernel;
    return nullptr;
}

namespace cpu {

#if defined(__x86_64__)
const Candidate<smla_select_args> kAvx512Select = threshold<kSelectAvx512>();
const Candidate<smla_select_args> kAvx2Select = threshold<kSelectAvx2>();
#endif
const Candidate<smla_select_args> kScalarSelect = threshold<kSelectScalar>();

}  // namespace cpu

}  // namespace smla
