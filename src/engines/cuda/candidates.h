// Helpers for candidate tables of stages with one generic kernel without scratch.
#pragma once

#include "core/tensor.h"
#include "engines/candidate.h"
#include "ops/field.h"

#include <string>

namespace smla {

constexpr int64_t kMaxRowWidth = 1024;  // widest row, in values, that a generic kernel keeps in shared memory

// Returns an error text if a tensor is f64, which only CPU engines support. Frequencies are always f64. A
// sink may be f64; kernels read it as f32.
template <class Args>
std::string refuse_f64(const Args& args) {
    bool found = false;
    const auto may_be = [&]([[maybe_unused]] const Tensor* tensor) {
        if constexpr (requires { args.frequencies; })
            if (tensor == &args.frequencies) return true;
        if constexpr (requires { args.out_frequencies; })
            if (tensor == &args.out_frequencies) return true;
        if constexpr (requires { args.sink; })
            if (tensor == &args.sink) return true;
        return false;
    };
    visit(
        args, [&](const Tensor& t) { found = found || (present(t) && t.dtype == SMLA_F64 && !may_be(&t)); },
        [&](const smla_cache& cache) {
            found = found || cache.format == SMLA_ROW_F64 || cache.format == SMLA_STATE_F64;
        });
    return found ? "f64 tensors are not supported on a GPU" : "";
}

// Returns the plan of a kernel without scratch and options.
template <class Args>
CallPlan<Args> plain_plan(std::string refusal, void (*run)(const Args&, const Env&)) {
    CallPlan<Args> plan = refuse_call<Args>(std::move(refusal));
    if (plan.refusal.empty()) plan.launch = run;
    return plan;
}

// Marks the plan of a kernel that launch_ordered launches.
template <class Args>
CallPlan<Args> beside_plan(CallPlan<Args> plan) {
    plan.may_be_beside = true;
    return plan;
}

inline std::string refuse_width(int64_t width) {
    return width > kMaxRowWidth
               ? text("rows of ", width, " values are wider than the limit of ", kMaxRowWidth)
               : "";
}

}  // namespace smla
