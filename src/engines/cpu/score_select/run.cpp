#include "engines/cpu/candidates.h"
#include "engines/cpu/score_select/slices.h"
#include "ops/score_select/score_select.h"
#include "ops/select/select.h"

namespace smla {

namespace {

// Division of a call. Slices divide blocks of rows.
struct Plan : SliceSizes {
    int heads, width, threads, rows;
    int64_t tokens, columns, k, capacity;

    Plan(const ScoreKernel& kernel, const smla_score_select_args& args, const Env& env)
        : Plan(score_block_rows(kernel, args.score.q.shape[0], int(args.score.q.shape[1]),
                                int(args.score.q.shape[2]), env.threads(), 0),
               args, env) {
        const int64_t least = TopK::capacity(k, columns, 1);
        fit(
            tokens, env.budget, [&] { return bytes(kernel); },
            [&] {
                if (rows == 1) return shrink_capacity(capacity, least);
                rows /= 2;
                return true;
            });
    }
    int64_t blocks() const { return ceil_div(tokens, rows); }

private:
    Plan(int block_rows, const smla_score_select_args& args, const Env& env)
        : SliceSizes(ceil_div(args.score.q.shape[0], block_rows), block_rows, args.score.q.shape[0],
                     args.columns, env.threads()),
          heads(int(args.score.q.shape[1])),
          width(int(args.score.q.shape[2])),
          threads(env.threads()),
          rows(block_rows),
          tokens(args.score.q.shape[0]),
          columns(args.columns),
          k(std::min<int64_t>(args.select.indices.shape[1], columns)),
          capacity(TopK::capacity(k, columns, 0)) {}
    size_t bytes(const ScoreKernel& kernel) const;
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

size_t Plan::bytes(const ScoreKernel& kernel) const {
    Arena arena;
    KeptSlices().take(arena, kept, k);
    const size_t before = arena.used();
    Scratch().take(arena, kernel, *this);
    return before + size_t(threads) * (arena.used() - before);
}

class Stream {
public:
    Stream(const smla_score_select_args& args, const Env& env, const StreamedKernels& kernels,
           const Plan& plan)
        : outputs_(select_part(args, 0, plan.tokens, {})),
          plan_(plan),
          select_(*kernels.select),
          tiles_(args.score, *kernels.score, args.columns),
          scratch_(static_cast<size_t>(plan_.threads)) {
        Arena arena(env.workspace);
        slices_.take(arena, plan_.kept, plan_.k);
        for (Scratch& each : scratch_) {
            each.take(arena, *kernels.score, plan_);
            each.score.reset(plan_.rows);
        }
    }

    void run(const Env& env) {
        if (outputs_.indices.shape[1] == 0) {  // there are no columns to select
            for (int64_t t = 0; t < plan_.tokens; ++t)
                store_selection<float>(outputs_, t, nullptr, nullptr, 0, 0);
            return;
        }
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
            else slices_.keep(t * plan_.slices + slice, plan_.k, top);
        }
    }

    void merge(TopK& top, int64_t t) {
        top.start(select_, plan_.k);
        for (int64_t at = t * plan_.slices; at < (t + 1) * plan_.slices; ++at) slices_.push(at, plan_.k, top);
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
    KeptSlices slices_{};
};

}  // namespace

const Candidate<smla_score_select_args> cpu::kStreamed{
    .name = "cpu_streamed_score_select", .plan = [](const smla_score_select_args& args, const Env& env) {
        return plan_stream<Stream, Plan>(StreamedKernels(args.score, args.select, env), args, env);
    }};

}  // namespace smla
