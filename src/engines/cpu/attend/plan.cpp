#include "engines/cpu/attend/plan.h"

#include <algorithm>

namespace smla::cpu_attend {

namespace {

constexpr int kChunkHeads = 128;  // accumulators (256 KiB), queries and keys share a 1 MiB L2
constexpr int kMinChunkHeads = 32;
constexpr int64_t kMinSplitRows = 64;
constexpr int kMaxPartialsPerThread = 4;  // with more units, tokens suffice to balance the threads
// Delay of the last thread as a share of a unit, and cost factor of more units than threads. Threads that
// share a core with others, of this machine or of its neighbors, take 1 to 3 times as long as the rest
// (docs/kernels/log/cpu.md).
constexpr double kUneven = 0.25, kManyUnits = 1.03;
constexpr double kSecondRun = 3;  // cost of the second run, which joins splits, in moves of a vector

int most_splits(int64_t rows, int threads) {
    return int(std::clamp<int64_t>(rows / kMinSplitRows, 1, std::min(threads, kMaxSplits)));
}

}  // namespace

Plan::Plan(const smla_attend_args& args, const Micro& micro, const Env& env, size_t budget)
    : micro(micro),
      tokens(args.q.shape[0]),
      rows(max_rows_per_token(args)),
      heads(int(args.q.shape[1])),
      width(int(args.q.shape[2])),
      value_width(int(args.out.shape[2])) {
    steps = int(ceil_div(width, micro.values_per_word));
    value_tiles = int(ceil_div(value_width, micro.value_tile));
    row_words = micro.row_words ? micro.row_words
                                : kRowPadding + int64_t(round_up(size_t(width), size_t(micro.value_tile)));
    vectors = int(ceil_div(heads, micro.lanes));
    few_heads = micro.score_few && heads * 2 <= micro.lanes && steps % 2 == 0;
    cut(env, budget);
}

// Returns the time of a call with these cuts, in units of one key with one vector of heads. Each chunk
// decodes the keys and packs its queries. Splits are joined by the thread that ends last, or by all.
double Plan::time(int chunk_count, int split_count, int threads) const {
    const double chunk_of_vectors = double(vectors) / chunk_count;
    const double unit =
        double(std::max<int64_t>(rows, 1)) / split_count * (micro.cut.decode + chunk_of_vectors) +
        chunk_of_vectors * micro.cut.move;
    const int64_t whole = tokens * chunk_count, units = whole * split_count;
    const bool second_run = split_count > 1 && whole < threads;
    const double moved = double(tokens * (second_run ? split_count : split_count - 1) * vectors) / threads;
    const double rounds = double(ceil_div(units, threads)) + (threads > 1 ? kUneven : 0);
    return rounds * unit * (split_count > 1 && units > threads ? kManyUnits : 1) +
           (moved + (second_run ? kSecondRun : 0)) * micro.cut.move;
}

void Plan::cut(const Env& env, size_t budget) {
    const int threads = env.threads();
    const int base = int(ceil_div(heads, kChunkHeads));
    const int most_chunks = std::max(base, heads / kMinChunkHeads);
    const int split_limit = env.batch_invariant ? 1 : most_splits(rows, threads);
    const int64_t partial_limit = int64_t(kMaxPartialsPerThread) * threads;
    chunks = base;
    splits = 1;
    double best = time(chunks, splits, threads);
    for (int c = base; c <= most_chunks; ++c)
        for (int s = 1; s <= split_limit && (s == 1 || tokens * c * s <= partial_limit); ++s)
            if (const double wanted = time(c, s, threads); wanted < 0.999 * best)
                best = wanted, chunks = c, splits = s;
    chunk_vectors = 0;
    for (int i = 0; i < chunks; ++i) chunk_vectors = std::max(chunk_vectors, chunk(i).vectors);

    // Reserves room for every smaller call, because fewer tokens may be cut into smaller units, at most twice
    // as many as threads.
    const int64_t finest = tokens * most_chunks * split_limit;
    workers = int(std::clamp<int64_t>(finest, 1, threads));
    partials = split_limit > 1 ? std::clamp<int64_t>(finest, workers, partial_limit) : workers;
    if (budget == 0 || workspace() <= budget) return;
    splits = 1;
    for (partials = workers; workers > 1 && workspace() > budget; partials = --workers) {
    }
}

Chunk Plan::chunk(int index) const {
    const int begin = vectors * index / chunks, end = vectors * (index + 1) / chunks;
    const int first = begin * micro.lanes;
    return {begin, end - begin, first, std::min(heads, end * micro.lanes) - first};
}

Scratch carve_scratch(Arena& arena, const Plan& plan) {
    const Micro& micro = plan.micro;
    const bool paired = micro.values_per_word == 2;
    const int last = micro.block.last;
    const size_t lanes = size_t(plan.chunk_vectors * micro.lanes),
                 group = size_t(micro.group_vectors * micro.lanes), steps = size_t(plan.steps);
    Scratch s{};
    s.rows = arena.take<int32_t>(size_t(plan.rows));
    s.q = arena.take<uint32_t>(steps * lanes);
    s.staging = arena.take<uint32_t>(steps * size_t(micro.lanes));
    const bool parts = paired && plan.chunk_vectors <= micro.group_vectors;  // parts share one buffer
    s.keys = arena.take<uint32_t>(size_t((parts ? micro.block.part : last) * plan.row_words));
    s.scores = arena.take<float>(size_t(last) * (paired ? std::min(group, lanes) : lanes));
    s.weights = reinterpret_cast<uint32_t*>(s.scores);
    if (paired) {
        s.values = arena.take<uint32_t>(size_t(plan.value_tiles * micro.value_words));
        s.weights = arena.take<uint32_t>(size_t(kMaxTiles * (last / 2)) * lanes);
        s.tile_scales = arena.take<float>(size_t(kMaxTiles * last));
    }
    s.alpha = arena.take<float>(lanes);
    s.addresses = arena.take<KeyAddress>(size_t(2 * last));
    s.row = arena.take<float>(size_t(plan.value_tiles * micro.value_tile));
    return s;
}

Partial carve_partial(Arena& arena, const Plan& plan) {
    const size_t lanes = size_t(plan.chunk_vectors * plan.micro.lanes);
    Partial p{};
    p.count = arena.take<int64_t>(1);
    p.peak = arena.take<float>(lanes);
    p.sum = arena.take<float>(lanes);
    p.out = arena.take<float>(size_t(plan.value_tiles * plan.micro.value_tile) * lanes);
    return p;
}

size_t Plan::workspace() const {
    // the largest chunk of any smaller call
    Plan widest = *this;
    const int base = int(ceil_div(heads, kChunkHeads));
    widest.chunk_vectors = int(ceil_div(vectors, base));
    Arena one;
    carve_scratch(one, widest);
    Arena partial;
    carve_partial(partial, widest);
    return kWorkspaceHeader + size_t(workers) * (one.used() - kWorkspaceHeader) +
           size_t(partials) * (partial.used() - kWorkspaceHeader);
}

}  // namespace smla::cpu_attend
