// Products on a GPU: few tokens, and some f32 activations, use kernels of this library; other products use
// cuBLASLt if possible, otherwise loops of this library.
#pragma once

#include "engines/candidate.h"
#include "linear/cublaslt.h"

namespace smla {

// Configuration of a product through cuBLASLt. Both operands have the weight's dtype:
//   w f32     x is converted to f32.
//   w bf16    f32 x becomes three bf16 parts, f16 x two: three or two times the tokens, summed afterwards.
//   w f16     x must be f16: parts of another x would exceed its range.
struct LtRoute {
    std::string refusal;    // reason if unsupported
    bool converts = false;  // x is converted in the workspace
    bool direct = false;    // the library writes `out`, not f32 sums in the workspace
    int parts = 1;
    int64_t pass_tokens = 0;            // tokens per pass
    size_t lt_bytes = 0;                // scratch of the library
    size_t x_bytes = 0, sum_bytes = 0;  // per pass
    size_t scratch() const {
        return lt_bytes + x_bytes + sum_bytes;
    }  // each term is a multiple of kLtAlignment
};
constexpr size_t kLtAlignment = 256;  // of the library's scratch

// Chooses the route only from shapes, dtypes, strides and the budget (0: no limit).
LtRoute lt_route(const smla_project_args& args, size_t budget);
// Returns the library's description of a pass over tokens [first, first + tokens).
LtShape lt_shape(const smla_project_args& args, const LtRoute& route, int64_t first, int64_t tokens);

// run_cuda_split converts x to `to` [parts,tokens,G,K], contiguous, in the weight's dtype. run_cuda_add_parts
// adds the f32 sums [parts,tokens,G,N] into out.
void run_cuda_split(const smla_tensor& x, smla_dtype operand, int parts, void* to, const Env& env);
void run_cuda_add_parts(const float* sums, int parts, const smla_tensor& out, const Env& env);

extern const Candidate<smla_project_args> kFewTokensProject;
extern const Candidate<smla_project_args> kMmaProject;
extern const Candidate<smla_project_args> kCublasLtProject;

}  // namespace smla
