// Slices of the streamed kernels of score_select and score_select_blocks. With little work for the threads,
// columns are divided into slices. Each slice keeps its best columns, which are merged at the end. Several
// slices per thread balance windows of different lengths. A slice of a full window has about kLeastSlice
// columns or more.
#pragma once

#include "engines/cpu/score/run.h"
#include "engines/cpu/score/tiles.h"
#include "engines/cpu/select/run.h"
#include "engines/cpu/select/top_k.h"
#include "engines/cpu/tasks.h"

#include <cstring>
#include <vector>

namespace smla {

struct StreamedKernels {
    const ScoreKernel* score;
    const SelectKernel* select;

    StreamedKernels(const smla_score_args& score_args, const smla_select_args& select_args, const Env& env)
        : score(choose_score_kernel(score_args, env)), select(choose_select_kernel(select_args, env)) {}
    const char* refusal() const {
        if (!score) return "no tiled score kernel supports these arguments";
        return select ? "" : "no threshold select kernel supports these arguments";
    }
};

// Sizes of slices: a function of shapes, threads and budget, without effect on results.
struct SliceSizes {
    int64_t slices = 1, kept = 0;  // kept: (token, slice) results that fit in memory
    size_t scratch = 0;            // bytes; not fewer for more tokens

    // `units` are divided into slices; a unit has at most `rows` tokens and `columns` columns.
    SliceSizes(int64_t units, int64_t rows, int64_t tokens, int64_t columns, int threads)
        : slices(slices_of(units, columns, threads)) {
        // The memory of slices does not shrink if more tokens need fewer slices.
        for (int64_t n = 1; n <= std::min<int64_t>(units, 2 * threads); ++n)
            if (const int64_t cut = slices_of(n, columns, threads); cut > 1)
                kept = std::max(kept, std::min(n * rows, tokens) * cut);
    }
    // Fits bytes() to the budget, first with fewer slices, then with shrink() while it returns true.
    template <class Bytes, class Shrink>
    void fit(int64_t tokens, size_t budget, const Bytes& bytes, const Shrink& shrink) {
        const size_t all = bytes();
        while (budget != 0 && bytes() > budget) {
            if (kept > 0) kept = slices > 2 && kept > 2 * tokens ? kept / 2 : 0;
            else if (!shrink()) break;
        }
        slices = std::clamp<int64_t>(kept / std::max<int64_t>(tokens, 1), 1, slices);
        scratch = std::max(bytes(), budget ? std::min(all, budget) : all);
    }
    static bool shrink_capacity(int64_t& capacity, int64_t least) {
        if (capacity <= least) return false;
        capacity = std::max(least, capacity * 3 / 4);
        return true;
    }

private:
    static int64_t slices_of(int64_t n, int64_t columns, int threads) {
        constexpr int64_t kLeastSlice = 2048, kSlicesPerThread = 4;
        if (threads == 1 || n >= 2 * threads) return 1;
        const int64_t wanted = ceil_div(kSlicesPerThread * threads, std::max<int64_t>(1, n));
        return std::clamp<int64_t>(columns / kLeastSlice, 1, wanted);
    }
};

// Results of each slice for each token, before the merge.
struct KeptSlices {
    float* values;     // [kept,k]
    int32_t* columns;  // [kept,k]
    int64_t* counts;   // [kept]

    void take(Arena& arena, int64_t kept, int64_t k) {
        values = arena.take<float>(size_t(kept * k));
        columns = arena.take<int32_t>(size_t(kept * k));
        counts = arena.take<int64_t>(size_t(kept));
    }
    void keep(int64_t at, int64_t k, const TopK& top) const {
        counts[at] = top.count();
        std::memcpy(values + at * k, top.values(), size_t(top.count()) * sizeof(float));
        std::memcpy(columns + at * k, top.columns(), size_t(top.count()) * sizeof(int32_t));
    }
    void push(int64_t at, int64_t k, TopK& top) const {
        top.push(values + at * k, columns + at * k, counts[at]);
    }
};

// Returns the plan of a call that Stream(args, env, kernels, cut).run(env) runs.
template <class Stream, class Cut, class Args>
CallPlan<Args> plan_stream(const StreamedKernels& kernels, const Args& args, const Env& env) {
    CallPlan<Args> plan = refuse_call<Args>(kernels.refusal());
    if (!plan.refusal.empty()) return plan;
    const Cut cut(*kernels.score, args, env);
    plan.scratch = cut.scratch;
    plan.launch = [kernels, cut](const Args& call, const Env& on) { Stream(call, on, kernels, cut).run(on); };
    return plan;
}

}  // namespace smla
