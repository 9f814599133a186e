// Driver of the few-token kernels: converts x to f32 once, then divides groups and blocks of outputs among
// the threads. Further tokens reuse weights from L2.
#include "core/cpu_features.h"
#include "engines/cpu/candidates.h"
#include "ops/ops.h"

#if defined(__x86_64__)

#include "engines/cpu/project/few_tokens.h"
#include "engines/cpu/tasks.h"

#include <algorithm>

namespace smla::cpu_project {

namespace {

using Args = smla_project_args;

constexpr int64_t kBlock = 256;  // outputs of a task: 64 to 300 KB of weights
constexpr int64_t kResident = 256 * 1024, kLeastRows = 4, kLeastColumns = 64;  // of weights in L2
constexpr int64_t kPass = 64;  // maximum tokens whose x is in f32; fewer with a small budget

// Returns why the number of tokens is not supported. The maximum is kTogether, or kPass if a BLAS would widen
// bf16 weights in memory: on a core of Zen 4, 16,384 x 7168 takes 23 ms for 8 tokens and 146 ms for 64; a
// BLAS takes 267 and 367 ms. Batch-invariant mode has no maximum, because a token's bits are equal in every
// pass, unlike with a BLAS. This mode leaves bf16 x with bf16 weights to cpu_avx512_bf16_project, whose bits
// do not depend on the batch either.
std::string refuse_tokens(const Args& args, const Env& env) {
    const bool dots = !env.slow_bf16_dots && cpu::refuse_bf16_product(args, env).empty();
    if (env.batch_invariant)
        return dots ? "batch-invariant mode uses cpu_avx512_bf16_project for any number of tokens" : "";
    const int64_t most = args.w.dtype == SMLA_BF16 && !dots ? kPass : kTogether;
    return args.x.shape[0] > most ? text(args.x.shape[0], " tokens exceed the limit of ", most) : "";
}

struct Scratch {
    float *x, *out;
};
Scratch carve(Arena& arena, const Args& args) {
    Scratch s{};
    s.x = arena.take<float>(size_t(args.x.shape[0] * args.x.shape[1] * args.x.shape[2]));
    if (args.out.dtype != SMLA_F32)
        s.out = arena.take<float>(size_t(args.x.shape[0] * args.w.shape[0] * args.w.shape[1]));
    return s;
}

std::string refuse(const Args& args, smla_isa needed, const Env& env) {
    if (std::string why = why_no_isa(needed, env.isa); !why.empty()) return why;
    if (args.w.dtype != SMLA_F32 && args.w.dtype != SMLA_BF16)
        return text(dtype_name(args.w.dtype), " weights are not supported");
    for (const Tensor* each : {&args.x, &args.out})
        if (each->dtype == SMLA_F64) return "f64 tensors are supported only by cpu_generic_project";
    return refuse_tokens(args, env);
}

// Computes a block of outputs for all tokens, kTogether tokens at a time.
void run_block(FewArgs few, int64_t tokens, const FewKernels& kernels) {
    const int64_t rows = few.rows, bytes = few.inner * (few.bf16 ? 2 : 4),
                  least = few.along_inner ? kLeastRows : kLeastColumns;
    const int64_t step = tokens > kTogether
                             ? std::max(kResident / std::max<int64_t>(bytes, 1) / least, int64_t(1)) * least
                             : rows;
    const FewArgs whole = few;
    for (int64_t n = 0; n < rows; n += step)
        for (int64_t t = 0; t < tokens; t += kTogether) {
            few.x = whole.x + t * few.x_stride;
            few.w = static_cast<const char*>(whole.w) +
                    n * (few.along_inner ? few.w_stride : 1) * (few.bf16 ? 2 : 4);
            few.out = whole.out + t * few.out_stride + n;
            few.rows = std::min(step, rows - n);
            few.tokens = int(std::min<int64_t>(kTogether, tokens - t));
            kernels.run[few.tokens - 1](few);
        }
}

void run_pass(const Args& args, const Env& env, const FewKernels& kernels, const Scratch& s) {
    const int64_t tokens = args.x.shape[0], groups = args.w.shape[0], outer = args.w.shape[1],
                  inner = args.x.shape[2];
    const int64_t blocks = ceil_div(outer, kBlock);
    for (int64_t g = 0; g < groups; ++g)
        for (int64_t t = 0; t < tokens; ++t)
            load_row(args.x, address(args.x, t, g), inner, s.x + (g * tokens + t) * inner);
    const auto unit = [&](int64_t i, int) {
        const int64_t g = i / blocks, first = i % blocks * kBlock, rows = std::min(kBlock, outer - first);
        const bool along_inner = args.w.stride_elems[2] == 1 || inner == 1;
        const FewArgs few{.x = s.x + g * tokens * inner,
                          .w = address(args.w, g, first),
                          .out = s.out ? s.out + g * tokens * outer + first
                                       : reinterpret_cast<float*>(address(args.out, 0, g, first)),
                          .x_stride = inner,
                          .w_stride = args.w.stride_elems[along_inner ? 1 : 2],
                          .out_stride = s.out ? outer : args.out.stride_elems[0],
                          .inner = inner,
                          .rows = rows,
                          .tokens = 0,
                          .bf16 = args.w.dtype == SMLA_BF16,
                          .along_inner = along_inner};
        run_block(few, tokens, kernels);
        if (s.out)
            for (int64_t t = 0; t < tokens; ++t)
                store_row(args.out, address(args.out, t, g, first), rows, few.out + t * outer);
    };
    run_tasks(env, groups * blocks, unit);
}

// Returns tokens [first, first + count) of a call, as far as they exist.
Args pass_of(const Args& args, int64_t first, int64_t count) {
    Args pass = args;
    const int64_t end = std::min(first + count, args.x.shape[0]);
    pass.x = slice(args.x, 0, first, end);
    pass.out = slice(args.out, 0, first, end);
    return pass;
}
size_t scratch_bytes(const Args& args, int64_t pass) {
    Arena arena;
    carve(arena, pass_of(args, 0, pass));
    return arena.used();
}
// Returns the maximum number of tokens of a pass within the budget, so that a call with more tokens never
// needs less scratch. A token's bits do not depend on this number.
int64_t pass_within(const Args& args, size_t budget) {
    int64_t pass = kPass;
    while (budget && pass > 1 && scratch_bytes(args, pass) > budget) --pass;
    return pass;
}

void run(const Args& args, const Env& env, int64_t pass, const FewKernels& kernels) {
    if (element_count(args.out) == 0) return;
    Arena arena(env.workspace);
    const Scratch s = carve(arena, pass_of(args, 0, pass));
    for (int64_t first = 0; first < args.x.shape[0]; first += pass)
        run_pass(pass_of(args, first, pass), env, kernels, s);
}

CallPlan<Args> plan_few(const Args& args, const Env& env, smla_isa needed, const FewKernels& kernels) {
    CallPlan<Args> plan = refuse_call<Args>(refuse(args, needed, env));
    if (env.isa < needed) return plan;
    const int64_t pass = pass_within(args, env.budget);
    // A refusal of too many tokens also sets `scratch`, because its workspace must serve calls with fewer.
    plan.scratch = scratch_bytes(args, pass);
    if (plan.refusal.empty())
        plan.launch = [pass, &kernels](const Args& call, const Env& on) { run(call, on, pass, kernels); };
    return plan;
}

template <smla_isa Isa, const FewKernels& Kernels>
constexpr Candidate<Args> few(const char* name) {
    return {.name = name,
            .plan = [](const Args& args, const Env& env) { return plan_few(args, env, Isa, Kernels); }};
}

}  // namespace

}  // namespace smla::cpu_project

namespace smla::cpu {

using namespace cpu_project;

const Candidate<smla_project_args> kFewTokens512 = few<SMLA_ISA_AVX512, kFewAvx512>("cpu_avx512_few_project");
const Candidate<smla_project_args> kFewTokens256 = few<SMLA_ISA_AVX2, kFewAvx2>("cpu_avx2_few_project");

}  // namespace smla::cpu

#endif
