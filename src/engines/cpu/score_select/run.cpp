#include "engines/cpu/score_select/run.h"

#include "engines/cpu/score/run.h"
#include "engines/cpu/score/tiles.h"
#include "engines/cpu/select/run.h"
#include "engines/cpu/select/top_k.h"
#include "engines/cpu/tasks.h"
#include "ops/score_select/score_select.h"
#include "ops/select/select.h"

#include <cstring>
#include <vector>

namespace smla {

namespace {

// With few blocks of rows, columns are cut into slices, too. Each slice keeps its own k best, which are
// merged at the end. Several slices per thread even out windows of different lengths. A slice of a full
// window has at least kLeastSlice columns.
constexpr int64_t kLeastSlice = 2048, kSlicesPerThread = 4;

struct Kernels {
    const ScoreKernel* score;
    const SelectKernel* select;

    Kernels(const smla_score_select_args& args, const Env& env)
        : score(choose_score_kernel(args.score, env)), select(choose_select_kernel(args.select, env)) {}
};

// How a call is cut: a function of shapes, threads and budget. Results do not depend on it.
struct Plan {
    int heads, width, threads, rows;
    int64_t tokens, columns, k, capacity;
    int64_t slices, kept;  // kept: (row, slice) results that there is memory for
    size_t scratch;        // bytes; those of more tokens are not fewer

    Plan(const ScoreKernel& kernel, const smla_score_select_args& args, const Env& env)
        : heads(int(args.score.q.shape[1])),
          width(int(args.score.q.shape[2])),
          threads(env.threads()),
          rows(score_block_rows(kernel, args.score.q.shape[0], heads, width, threads, 0)),
          tokens(args.score.q.shape[0]),
          columns(args.columns),
          k(std::min<int64_t>(args.select.indices.shape[1], columns)),
          capacity(TopK::capacity(k, columns, 0)),
          slices(slices_of(blocks())),
          kept(0) {
        // The memory of slices does not shrink where more tokens need fewer slices.
        for (int64_t b = 1; b <= std::min<int64_t>(blocks(), 2 * threads); ++b)
            if (const int64_t n = slices_of(b); n > 1) kept = std::max(kept, std::min(b * rows, tokens) * n);
        const size_t all = bytes(kernel);
        const int64_t least = TopK::capacity(k, columns, 1);
        while (env.budget != 0 && bytes(kernel) > env.budget) {
            if (kept > 0) kept = slices > 2 && kept > 2 * tokens ? kept / 2 : 0;
            else if (rows > 1) rows /= 2;
            else if (capacity > least) capacity = std::max(least, capacity * 3 / 4);
            else break;
        }
        slices = std::clamp<int64_t>(kept / std::max<int64_t>(tokens, 1), 1, slices);
        scratch = std::max(bytes(kernel), env.budget ? std::min(all, env.budget) : all);
    }
    int64_t blocks() const { return ceil_div(tokens, rows); }

private:
    size_t bytes(const ScoreKernel& kernel) const;
    int64_t slices_of(int64_t n) const {
        if (threads == 1 || n >= 2 * threads) return 1;
        const int64_t wanted = ceil_div(kSlicesPerThread * threads, std::max<int64_t>(1, n));
        return std::clamp<int64_t>(columns / kLeastSlice, 1, wanted);
    }
};

struct Scratch {
    ScoreScratch score;
    std::vector<TopK> tops;  // one per row of the block

    void take(Arena& arena, const ScoreKernel& kernel, const Plan& plan) {
        score.take(arena, kernel, plan.rows, plan.heads, plan.width);
        tops.resize(size_t(plan.rows));
        for (TopK& top : tops) top.take(arena, plan.capacity);
    }
};

// What each slice kept of each row, until they are merged.
struct Slices {
    float* values;     // [T,slices,k]
    int32_t* columns;  // [T,slices,k]
    int64_t* counts;   // [T,slices]

    void take(Arena& arena, const Plan& plan) {
        values = arena.take<float>(size_t(plan.kept * plan.k));
        columns = arena.take<int32_t>(size_t(plan.kept * plan.k));
        counts = arena.take<int64_t>(size_t(plan.kept));
    }
};

size_t Plan::bytes(const ScoreKernel& kernel) const {
    Arena arena;
    Slices().take(arena, *this);
    const size_t before = arena.used();
    Scratch().take(arena, kernel, *this);
    return before + size_t(threads) * (arena.used() - before);
}

class Stream {
public:
    Stream(const smla_score_select_args& args, const Env& env, const Kernels& kernels, const Plan& plan)
        : outputs_(select_part(args, 0, plan.tokens, {})),
          plan_(plan),
          select_(*kernels.select),
          tiles_(args.score, *kernels.score, args.columns),
          scratch_(static_cast<size_t>(plan_.threads)) {
        Arena arena(env.workspace);
        slices_.take(arena, plan_);
        for (Scratch& each : scratch_) {
            each.take(arena, *kernels.score, plan_);
            each.score.reset(plan_.rows);
        }
    }

    void run(const Env& env) {
        run_tasks(env, plan_.blocks() * plan_.slices, [&](int64_t task, int worker) {
            run_slice(scratch_[size_t(worker)], task / plan_.slices, task % plan_.slices);
        });
        if (plan_.slices == 1) return;
        run_tasks(env, plan_.tokens,
                  [&](int64_t t, int worker) { merge(scratch_[size_t(worker)].tops[0], t); });
    }

private:
    void run_slice(Scratch& scratch, int64_t block, int64_t slice) {
        const int64_t first = block * plan_.rows, last = std::min(first + plan_.rows, plan_.tokens);
        ColumnWindow hull{plan_.columns, 0};
        for (int64_t t = first; t < last; ++t) {
            scratch.tops[size_t(t - first)].start(select_, plan_.k);
            const ColumnWindow window = tiles_.window(t);
            if (window.begin < window.end)
                hull = {std::min(hull.begin, window.begin), std::max(hull.end, window.end)};
        }
        if (hull.begin < hull.end) {
            const int64_t length = hull.end - hull.begin;
            const int64_t begin = hull.begin + length * slice / plan_.slices;
            const int64_t end = hull.begin + length * (slice + 1) / plan_.slices;
            tiles_.run(scratch.score, first, last, begin, end,
                       [&](int64_t t, int64_t j, int n, const float* logits) {
                           scratch.tops[size_t(t - first)].push(logits, n, int32_t(j));
                       });
        }
        for (int64_t t = first; t < last; ++t) {
            TopK& top = scratch.tops[size_t(t - first)];
            top.finish();
            if (plan_.slices == 1) store(t, top);
            else keep(t, slice, top);
        }
    }

    void keep(int64_t t, int64_t slice, const TopK& top) {
        const int64_t at = t * plan_.slices + slice;
        slices_.counts[at] = top.count();
        std::memcpy(slices_.values + at * plan_.k, top.values(), size_t(top.count()) * sizeof(float));
        std::memcpy(slices_.columns + at * plan_.k, top.columns(), size_t(top.count()) * sizeof(int32_t));
    }

    void merge(TopK& top, int64_t t) {
        top.start(select_, plan_.k);
        for (int64_t at = t * plan_.slices; at < (t + 1) * plan_.slices; ++at)
            top.push(slices_.values + at * plan_.k, slices_.columns + at * plan_.k, slices_.counts[at]);
        top.finish();
        store(t, top);
    }

    void store(int64_t t, const TopK& top) const {
        const int64_t base = outputs_.relative ? tiles_.window(t).begin : 0;
        store_selection(outputs_, t, top.columns(), top.values(), top.count(), base);
    }

    const smla_select_args outputs_;
    const Plan& plan_;
    const SelectKernel& select_;
    ScoreTiles tiles_;
    std::vector<Scratch> scratch_;
    Slices slices_{};
};

void run_streamed(const Kernels& kernels, const Plan& plan, const smla_score_select_args& args,
                  const Env& env) {
    if (args.select.indices.shape[1] == 0) {  // nothing to score for
        const smla_select_args select = select_part(args, 0, plan.tokens, {});
        for (int64_t t = 0; t < plan.tokens; ++t) store_selection<float>(select, t, nullptr, nullptr, 0, 0);
        return;
    }
    Stream(args, env, kernels, plan).run(env);
}

}  // namespace

CallPlan<smla_score_select_args> plan_streamed(const smla_score_select_args& args, const Env& env) {
    using Args = smla_score_select_args;
    const Kernels kernels(args, env);
    if (!kernels.score) return refuse_call<Args>("no tiled score kernel runs these arguments");
    if (!kernels.select) return refuse_call<Args>("no threshold select kernel runs these arguments");
    const Plan cut(*kernels.score, args, env);
    CallPlan<Args> plan;
    plan.scratch = cut.scratch;
    plan.launch = [kernels, cut](const Args& call, const Env& on) { run_streamed(kernels, cut, call, on); };
    return plan;
}

}  // namespace smla
