// What the tables of the smaller stages have in common: one generic kernel, no scratch, refusals in words.
#pragma once

#include "core/tensor.h"
#include "engines/candidate.h"
#include "ops/tensors_of.h"

#include <string>

namespace smla {

constexpr int64_t kMaxRowWidth = 1024;  // values that a generic kernel holds of a row in shared memory

// Every dtype but f64: that is for the reference engine. Frequencies are f64 always.
template <class Args>
std::string refuse_f64(const Args& args) {
    Args copy = args;  // the visitor hands out what may be changed
    bool found = false;
    [[maybe_unused]] const void* frequencies = nullptr;
    if constexpr (requires { copy.frequencies; }) frequencies = &copy.frequencies;
    visit(
        copy,
        [&](const Tensor& t) { found = found || (present(t) && t.dtype == SMLA_F64 && &t != frequencies); },
        [&](const smla_cache& cache) {
            found = found || cache.format == SMLA_ROW_F64 || cache.format == SMLA_STATE_F64;
        });
    return found ? "f64: for the reference engine" : "";
}

template <class Args>
size_t no_scratch(const Args&, const Env&, size_t) {
    return kWorkspaceHeader;
}

inline std::string refuse_width(int64_t width) {
    return width > kMaxRowWidth ? text("rows of ", width, " values: more than ", kMaxRowWidth) : "";
}

}  // namespace smla
