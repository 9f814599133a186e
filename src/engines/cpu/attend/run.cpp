#include "core/interrupt.h"
#include "engines/cpu/attend/worker.h"

#include <atomic>
#include <numbers>
#include <vector>

namespace smla::cpu_attend {

namespace {

// Calls body(i, worker) for every i, at most `workers` bodies concurrently, each with its own scratch. If all
// threads work, a thread has the same scratch in every call, so its data is in its own core's caches.
template <class Body>
void for_each(const Env& env, int workers, int64_t count, const Body& body) {
    if (!env.pool || workers == 1) {
        for (int64_t i = 0; i < count; ++i) {
            stop_point();
            body(i, 0);
        }
        return;
    }
    std::atomic<int64_t> next{0};
    const bool all = workers == env.pool->threads();
    env.pool->run(workers, [&](int64_t task, int thread) {
        const int worker = all ? thread : int(task);
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
            stop_point();
            body(i, worker);
        }
    });
}

constexpr int kFinishHeads = 4;  // heads of a task of join_splits

struct Unit {
    int64_t token;
    int chunk, split;
    Unit(const Plan& plan, int64_t index)
        : token(index / (plan.chunks * plan.splits)),
          chunk(int(index / plan.splits % plan.chunks)),
          split(int(index % plan.splits)) {}
};

// Joins the splits of all tokens, a few heads at a time, if there are fewer tokens than threads.
void join_splits(const Call& call, const Env& env, const std::vector<Scratch>& scratch,
                 const std::vector<Partial>& partials) {
    const Plan& plan = call.plan;
    const int64_t pieces = ceil_div(plan.chunk_vectors * plan.micro.lanes, kFinishHeads);
    for_each(env, plan.workers, plan.tokens * plan.chunks * pieces, [&](int64_t i, int worker) {
        const int64_t unit = i / pieces * plan.splits;
        const Chunk chunk = plan.chunk(Unit(plan, unit).chunk);
        const int first = std::min(int(i % pieces) * kFinishHeads, chunk.heads);
        finish_heads(call, Unit(plan, unit).token, chunk, first, std::min(first + kFinishHeads, chunk.heads),
                     partials.data() + unit, scratch[size_t(worker)].row);
    });
}

}  // namespace

void run(const smla_attend_args& args, const Plan& plan, const Env& env) {
    if (plan.tokens == 0) return;
    std::vector<Source> sources;
    for (const smla_attend_source* source : {&args.primary, &args.extra})
        if (source->cache.format != SMLA_FORMAT_NONE) sources.emplace_back(args, *source, plan.micro);
    const float factor = float(softmax_scale(args) * query_scale(args) * std::numbers::log2e);
    const Call call{args, plan, sources.data(), int(sources.size()), factor};

    Arena arena(env.workspace);
    std::vector<Scratch> scratch;
    for (int i = 0; i < plan.workers; ++i) scratch.push_back(carve_scratch(arena, plan));
    std::vector<Partial> partials;
    const int64_t accumulators = plan.splits > 1 ? plan.units() : plan.workers;
    for (int64_t i = 0; i < accumulators; ++i) partials.push_back(carve_partial(arena, plan));

    const bool split = plan.splits > 1;
    std::vector<std::atomic<int>> ended(split && !plan.joins_later() ? size_t(plan.tokens * plan.chunks) : 0);
    for_each(env, plan.workers, plan.units(), [&](int64_t i, int w) {
        const Unit unit(plan, i);
        const Partial& partial = partials[size_t(split ? i : w)];
        Worker(call, scratch[size_t(w)]).run(unit.token, unit.chunk, unit.split, partial);
        if (plan.joins_later()) return;
        const int64_t whole = i / plan.splits;
        // the thread that ends the last split joins all, in their order
        if (split && ended[size_t(whole)].fetch_add(1, std::memory_order_acq_rel) != plan.splits - 1) return;
        const Chunk chunk = plan.chunk(unit.chunk);
        const Partial* const parts = split ? partials.data() + whole * plan.splits : &partial;
        finish_heads(call, unit.token, chunk, 0, chunk.heads, parts, scratch[size_t(w)].row);
    });
    if (plan.joins_later()) join_splits(call, env, scratch, partials);
}

}  // namespace smla::cpu_attend
