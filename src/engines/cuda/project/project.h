// How the products run on a GPU: a few tokens, and some of f32 activations, by kernels of our own, more
// through cuBLASLt where it can, else by loops of our own.
#pragma once

#include "engines/candidate.h"
#include "linear/cublaslt.h"

namespace smla {

// What a product through cuBLASLt needs. Both operands have the weight's dtype:
//   w f32     x becomes f32
//   w bf16    x f32 becomes three bf16 parts, x f16 two: three or two times the tokens, summed afterwards
//   w f16     x must be f16: parts of another x would leave its range
struct LtRoute {
    std::string refusal;    // why not
    bool converts = false;  // x goes through the workspace
    bool direct = false;    // the library writes `out`; else it writes f32 sums to the workspace
    int parts = 1;
    int64_t pass_tokens = 0;                                           // of one pass over tokens
    size_t lt_bytes = 0;                                               // the library's own scratch
    size_t x_bytes = 0, sum_bytes = 0;                                 // of a pass
    size_t scratch() const { return lt_bytes + x_bytes + sum_bytes; }  // each a multiple of kLtAlignment
};
constexpr size_t kLtAlignment = 256;  // of the library's scratch

// From shapes, dtypes, strides and the budget alone (0: none).
LtRoute lt_route(const smla_project_args& args, size_t budget);
// The library's view of a pass over `tokens` tokens from `first`.
LtShape lt_shape(const smla_project_args& args, const LtRoute& route, int64_t first, int64_t tokens);

// Kernels around the library: the first converts x to `to` [parts, tokens, G, K], contiguous, in the weight's
// dtype; the second adds up sums [parts, tokens, G, N] f32 into out.
void run_cuda_split(const smla_tensor& x, smla_dtype operand, int parts, void* to, const Env& env);
void run_cuda_add_parts(const float* sums, int parts, const smla_tensor& out, const Env& env);

extern const Candidate<smla_project_args> kFewTokensProject;
extern const Candidate<smla_project_args> kMmaProject;
extern const Candidate<smla_project_args> kCublasLtProject;

void run_cuda_project_loops(const smla_project_args& args, const Env& env);

}  // namespace smla
