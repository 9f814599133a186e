// Driver of the bf16 products: checks calls, and divides tokens and outputs into blocks for the threads.
#include "core/cpu_features.h"
#include "engines/cpu/candidates.h"
#include "engines/cpu/generic.h"
#include "ops/ops.h"

#if defined(__x86_64__)

#include "engines/cpu/project/bf16_tiles.h"
#include "engines/cpu/tasks.h"

#include <algorithm>

namespace smla::cpu_project {

namespace {

using Args = smla_project_args;

// Division of a call. A token's bits depend on the inner dimension, not on the division.
struct Cut {
    int64_t most_tokens = kTokenBlock, outer = kOuterBlock, threads;

    int64_t blocks(const Args& args) const {
        return std::max<int64_t>(ceil_div(args.x.shape[0], most_tokens), 1);
    }
    int64_t tokens(const Args& args) const {  // tokens per block: equal blocks of whole tiles
        return ceil_div(ceil_div(args.x.shape[0], blocks(args)), kTileTokens) * kTileTokens;
    }
    int64_t packed() const { return outer * kInnerBlock / 2; }
    // The size never shrinks with more tokens, so that their workspace also serves fewer.
    int64_t sums(const Args& args) const {
        if (args.x.shape[2] <= kInnerBlock) return 0;
        return ceil_div(std::min(args.x.shape[0], most_tokens), kTileTokens) * kTileTokens * outer;
    }
};

struct Scratch {
    uint32_t* packed;
    float* sums;
};
Scratch carve(Arena& arena, const Args& args, const Cut& cut) {
    Scratch s{};
    s.packed = arena.take<uint32_t>(size_t(cut.threads * cut.packed()));
    s.sums = arena.take<float>(size_t(cut.threads * cut.sums(args)));
    return s;
}
size_t scratch_bytes(const Args& args, const Cut& cut) {
    Arena arena;
    carve(arena, args, cut);
    return arena.used();
}

Cut whole_cut(const Args& args, const Env& env) {
    Cut cut{.threads = env.threads()};
    const auto units = [&] {
        return args.w.shape[0] * cut.blocks(args) * ceil_div(args.w.shape[1], cut.outer);
    };
    while (cut.outer > kPanel && units() < 2 * cut.threads) cut.outer /= 2;
    return cut;
}
Cut cut_within(const Args& args, Cut cut, size_t budget) {
    const auto too_much = [&] { return budget && scratch_bytes(args, cut) > budget; };
    while (cut.outer > kPanel && too_much()) cut.outer /= 2;
    while (cut.most_tokens > kTileTokens && too_much()) cut.most_tokens /= 2;
    return cut;
}

void run(const Args& args, const Env& env, const Cut& cut) {
    const int64_t tokens = args.x.shape[0], groups = args.w.shape[0], outer = args.w.shape[1];
    if (tokens == 0 || outer == 0 || groups == 0) return;
    Arena arena(env.workspace);
    const Scratch s = carve(arena, args, cut);
    const int64_t across = ceil_div(outer, cut.outer), down = cut.blocks(args), block = cut.tokens(args);
    const bool along_inner = args.w.stride_elems[2] == 1 || args.x.shape[2] <= 1;
    const auto unit = [&](int64_t i, int worker) {
        const int64_t g = i / (across * down), n = i / down % across * cut.outer, t = i % down * block;
        if (t >= tokens) return;
        multiply_bf16_block({.x = reinterpret_cast<const uint16_t*>(address(args.x, t, g)),
                             .w = reinterpret_cast<const uint16_t*>(address(args.w, g, n)),
                             .out = address(args.out, t, g, n),
                             .packed = s.packed + worker * cut.packed(),
                             .sums = s.sums + worker * cut.sums(args),
                             .x_stride = args.x.stride_elems[0],
                             .w_outer = along_inner ? args.w.stride_elems[1] : 1,
                             .w_inner = along_inner ? 1 : args.w.stride_elems[2],
                             .out_stride = args.out.stride_elems[0],
                             .sums_stride = cut.outer,
                             .tokens = std::min(block, tokens - t),
                             .outer = std::min(cut.outer, outer - n),
                             .inner = args.x.shape[2],
                             .out_bf16 = args.out.dtype == SMLA_BF16});
    };
    run_tasks(env, groups * across * down, unit);
}

CallPlan<Args> plan_bf16(const Args& args, const Env& env) {
    std::string refusal = cpu::refuse_bf16_product(args, env);
    if (!refusal.empty()) return refuse_call<Args>(std::move(refusal));
    const Cut whole = whole_cut(args, env), cut = cut_within(args, whole, env.budget);
    CallPlan<Args> plan;
    plan.lower_priority = slow_bf16_dots_here(env);
    plan.scratch = scratch_bytes(args, cut);
    if (env.budget) plan.scratch_of_fewer = std::min(scratch_bytes(args, whole), env.budget);
    plan.launch = [cut](const Args& call, const Env& on) { run(call, on, cut); };
    return plan;
}

}  // namespace

}  // namespace smla::cpu_project

namespace smla::cpu {

std::string refuse_bf16_product(const smla_project_args& args, const Env& env) {
    if (std::string why = why_no_isa(SMLA_ISA_AVX512_BF16, env.isa); !why.empty()) return why;
    if (args.w.dtype != SMLA_BF16) return text(dtype_name(args.w.dtype), " weights are not supported");
    if (args.x.dtype != SMLA_BF16) return text(dtype_name(args.x.dtype), " activations are not supported");
    if (args.out.dtype != SMLA_BF16 && args.out.dtype != SMLA_F32)
        return text(dtype_name(args.out.dtype), " outputs are not supported");
    if (args.x.shape[2] % 2) return "odd inner dimensions are not supported";
    return "";
}

const Candidate<smla_project_args> kAvx512Bf16Project{.name = "cpu_avx512_bf16_project",
                                                      .plan = cpu_project::plan_bf16};

}  // namespace smla::cpu

#endif
