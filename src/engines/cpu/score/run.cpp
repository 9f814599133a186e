#include "engines/cpu/score/run.h"

#include "core/cpu_features.h"
#include "engines/cpu/generic.h"
#include "engines/cpu/score/tiles.h"
#include "engines/cpu/tasks.h"

#include <cstring>
#include <vector>

namespace smla {

namespace {

// Tiles per task: about 50 us of work for one row of 64 heads, 20 us on tiles of AMX.
constexpr int64_t kChunkTiles = 32;

template <class Stored>
void fill_outside(Stored* logits, Stored lowest, ColumnWindow window, int64_t begin, int64_t end) {
    if (begin < window.begin) std::fill(logits + begin, logits + std::min(end, window.begin), lowest);
    if (end > window.end) std::fill(logits + std::max(begin, window.end), logits + end, lowest);
}

// Fills columns [begin, end) of a token outside of its window.
void fill_outside(const smla_score_args& args, int64_t token, ColumnWindow window, int64_t begin,
                  int64_t end) {
    const float lowest = -std::numeric_limits<float>::infinity();
    char* const logits = address(args.logits, token);
    if (args.logits.dtype == SMLA_BF16)
        fill_outside(reinterpret_cast<uint16_t*>(logits), f32_to_bf16(lowest), window, begin, end);
    else fill_outside(reinterpret_cast<float*>(logits), lowest, window, begin, end);
}

void store_logits(const smla_score_args& args, int64_t token, int64_t column, int n, const float* logits) {
    char* const to = address(args.logits, token, column);
    if (args.logits.dtype == SMLA_BF16)
        std::transform(logits, logits + n, reinterpret_cast<uint16_t*>(to), f32_to_bf16);
    else std::memcpy(to, logits, size_t(n) * sizeof(float));
}

// `rows` is the number of query rows that share a pass over the keys.
void run_score(const ScoreKernel& kernel, int rows, const smla_score_args& args, const Env& env) {
    const int64_t tokens = args.q.shape[0], columns = args.logits.shape[1];
    const int heads = int(args.q.shape[1]), width = int(args.q.shape[2]), threads = env.threads();
    Arena arena(env.workspace);
    std::vector<ScoreScratch> scratch(static_cast<size_t>(threads));
    for (ScoreScratch& each : scratch) {
        each.take(arena, kernel, rows, heads, width);
        each.reset(rows);
    }
    const ScoreTiles tiles(args, kernel, columns);
    const int64_t chunk = kChunkTiles * kernel.tile, chunks = ceil_div(columns, chunk);
    const auto body = [&](int64_t task, int worker) {
        const int64_t first = task / chunks * rows, last = std::min(first + rows, tokens);
        const int64_t begin = task % chunks * chunk, end = std::min(begin + chunk, columns);
        if (args.fill)
            for (int64_t t = first; t < last; ++t) fill_outside(args, t, tiles.window(t), begin, end);
        tiles.run(
            scratch[size_t(worker)], first, last, begin, end,
            [&](int64_t t, int64_t j, int n, const float* logits) { store_logits(args, t, j, n, logits); });
    };
    run_tasks(env, ceil_div(tokens, rows) * chunks, body);
}

}  // namespace

Support supports_score(const ScoreKernel& kernel, const smla_score_args& args, const Env& env) {
    if (std::string why = why_no_isa(kernel.isa, env.isa); !why.empty()) return {why};
    if (args.q.dtype == SMLA_F64) return {"f64 queries are supported only by the generic kernel"};
    if (!kernel.bf16_operands) return {};
    if (args.q.dtype == SMLA_F32) return {"f32 queries cannot be converted to bf16 exactly"};
    if (args.keys.format == SMLA_ROW_F32) return {"row_f32 keys cannot be converted to bf16 exactly"};
    if (kernel.isa == SMLA_ISA_AMX) return {why_no_tiles()};
    return {.lower_priority = slow_bf16_dots_here(env)};
}

const ScoreKernel* choose_score_kernel(const smla_score_args& args, const Env& env) {
    static const ScoreKernel kernels[] = {
#if defined(__x86_64__)
        kScoreAmx,
        kScoreAvx512Bf16,
        kScoreAvx512,
        kScoreAvx2,
#elif defined(__aarch64__)
        kScoreNeon,
#endif
        kScoreScalar
    };
    return choose(std::span<const ScoreKernel>(kernels), Stage::score, env,
                  [&](const ScoreKernel& kernel) { return supports_score(kernel, args, env); })
        .kernel;
}

CallPlan<smla_score_args> plan_score(const ScoreKernel& kernel, const smla_score_args& args, const Env& env) {
    CallPlan<smla_score_args> plan{supports_score(kernel, args, env)};
    if (!plan.refusal.empty()) return plan;
    const int heads = int(args.q.shape[1]), width = int(args.q.shape[2]);
    const int rows = score_block_rows(kernel, args.q.shape[0], heads, width, env.threads(), env.budget);
    plan.scratch = kWorkspaceHeader + size_t(env.threads()) * score_scratch_bytes(kernel, rows, heads, width);
    plan.launch = [&kernel, rows](const smla_score_args& call, const Env& on) {
        run_score(kernel, rows, call, on);
    };
    return plan;
}

}  // namespace smla
