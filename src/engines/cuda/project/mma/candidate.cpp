// Selects the mma.sync kernels for products of f32 activations and bf16 weights.
#include "engines/cuda/project/mma/run.h"
#include "engines/cuda/project/pieces.h"
#include "engines/cuda/project/project.h"

namespace smla {

namespace cuda {

namespace {

using Args = smla_project_args;

constexpr int kPiece = 8;  // bf16 values in 16 bytes

// Limits between the faster kernels, measured on an H200 (docs/kernels/log/cuda_stages.md).
constexpr int64_t kFewTokens = 16, kMoreTokens = 64;  // up to these, the bytes of w are the limit
constexpr int64_t kLongSum = 2048;                    // above, the kernels around cuBLASLt take little time

bool has_enough_tiles(const Args& args) { return enough_tiles(args.w.shape[0], args.w.shape[1]); }
bool is_for_few(const Args& args) {
    return args.x.shape[0] <= (has_enough_tiles(args) ? kFewTokens : kMoreTokens);
}
std::string refuse_slow(const Args& args) {
    const int64_t tokens = args.x.shape[0];
    if (tokens < 5 || (tokens <= 8 && !has_enough_tiles(args)))
        return text("cuda_few_project is faster for ", tokens, " tokens");
    if (is_for_few(args) || cublaslt().library.empty()) return "";
    const int64_t blocks = args.w.shape[0] * ceil_div(args.w.shape[1], 128) * ceil_div(tokens, 64);
    if (args.w.shape[2] > kLongSum || blocks < kEnoughBlocks)
        return text("cuda_cublaslt_project is faster for ", tokens, " tokens and ", args.w.shape[2],
                    " products per output");
    return "";
}

std::string refuse_mma(const Args& args, const Env& env) {
    const Tensor &x = args.x, &w = args.w;
    if (env.batch_invariant)
        return "batch-invariant mode excludes kernels whose summation order depends on the number of tokens";
    if (x.dtype != SMLA_F32 || w.dtype != SMLA_BF16) return "x must be f32 and w bf16";
    if (!is_half_or_f32(args.out)) return "out must be f32, bf16 or f16";
    if (w.shape[1] < kPiece) return text("it requires at least 8 outputs, got ", w.shape[1]);
    if (x.shape[0] > INT32_MAX / 2 || w.shape[1] > INT32_MAX / 2 || w.shape[2] > INT32_MAX / 2)
        return "dimensions of 2^30 or more are not supported";
    if (w.shape[2] % kPiece != 0 || x.stride_elems[2] != 1 || !aligned(x, {0, 1}))
        return "rows of x must be contiguous and aligned to 16 bytes";
    const bool along_k = w.stride_elems[2] == 1;
    if (!along_k && (w.stride_elems[1] != 1 || w.shape[1] % kPiece != 0))
        return "w must be contiguous along k or n and aligned to 16 bytes";
    if (!aligned(w, {0, along_k ? 1 : 2})) return "rows of w must be aligned to 16 bytes";
    return refuse_slow(args);
}

void run_mma(const Args& args, const Env& env) {
    if (element_count(args.out) == 0) return;
    const Tensor &x = args.x, &w = args.w, &out = args.out;
    const bool along_k = w.stride_elems[2] == 1;
    const MmaProduct p{
        .out = out,
        .x = static_cast<const float*>(x.data),
        .w = static_cast<const uint16_t*>(w.data),
        .x_token = x.stride_elems[0],
        .x_group = x.stride_elems[1],
        .w_group = w.stride_elems[0],
        .w_step = w.stride_elems[along_k ? 1 : 2],
        .outer = int(w.shape[1]),
        .inner = int(w.shape[2]),
        .tokens = int(x.shape[0]),
        .along_k = along_k,
        .whole_runs = out.stride_elems[2] == 1 && w.shape[1] % kPiece == 0 && aligned(out, {0, 1})};
    if (is_for_few(args)) run_mma_few(p, w.shape[0], env);
    else run_mma_many(p, w.shape[0], env);
}

CallPlan<Args> plan_mma(const Args& args, const Env& env) {
    CallPlan<Args> plan = refuse_call<Args>(refuse_mma(args, env));
    if (plan.refusal.empty()) plan.launch = run_mma;
    plan.may_be_beside = true;
    return plan;
}

}  // namespace

}  // namespace cuda

const Candidate<smla_project_args> kMmaProject{.name = "cuda_mma_project", .plan = cuda::plan_mma};

}  // namespace smla
