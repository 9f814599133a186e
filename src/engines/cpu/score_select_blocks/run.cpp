#include "engines/cpu/candidates.h"
#include "engines/cpu/score_select/slices.h"
#include "ops/score_select_blocks/score_select_blocks.h"
#include "ops/select/select.h"

#include <cmath>

namespace smla {

namespace {

using Args = smla_score_select_blocks_args;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t most_blocks(const Args& args) {  // of a token
    return present(args.blocks) ? std::min(args.blocks.shape[1], block_count(args)) : block_count(args);
}
int64_t most_columns(const Args& args) {
    return std::min<int64_t>(args.columns, most_blocks(args) * args.block_size);
}

// Division of a call. Slices divide the candidate blocks of a token.
struct Plan : SliceSizes {
    int heads, width, threads;
    int64_t tokens, columns, listed, k, blocks_k, capacity, blocks_capacity;

    Plan(const ScoreKernel& kernel, const Args& args, const Env& env)
        : SliceSizes(args.q.shape[0], 1, args.q.shape[0], most_columns(args), env.threads()),
          heads(int(args.q.shape[1])),
          width(int(args.q.shape[2])),
          threads(env.threads()),
          tokens(args.q.shape[0]),
          columns(args.columns),
          listed(present(args.blocks) ? args.blocks.shape[1] : 0),
          k(args.indices.shape[1]),
          blocks_k(present(args.best_blocks) ? args.best_blocks.shape[1] : 0),
          capacity(TopK::capacity(k, most_columns(args), 0)),
          blocks_capacity(TopK::capacity(blocks_k, most_blocks(args), 0)) {
        const int64_t least = TopK::capacity(k, most_columns(args), 1),
                      blocks_least = TopK::capacity(blocks_k, most_blocks(args), 1);
        fit(
            tokens, env.budget, [&] { return bytes(kernel); },
            [&] {
                return shrink_capacity(capacity, least) || shrink_capacity(blocks_capacity, blocks_least);
            });
    }

private:
    size_t bytes(const ScoreKernel& kernel) const;
};

struct Scratch {
    ScoreScratch score;
    TopK top, blocks;
    int32_t* list;  // a token's candidate blocks

    void take(Arena& arena, const ScoreKernel& kernel, const Plan& plan) {
        score.take(arena, kernel, 1, plan.heads, plan.width);
        top.take(arena, plan.capacity);
        if (plan.blocks_k > 0) blocks.take(arena, plan.blocks_capacity);
        list = arena.take<int32_t>(size_t(plan.listed));
    }
};

size_t Plan::bytes(const ScoreKernel& kernel) const {
    Arena arena;
    KeptSlices().take(arena, kept, k);
    KeptSlices().take(arena, kept, blocks_k);
    const size_t before = arena.used();
    Scratch().take(arena, kernel, *this);
    return before + size_t(threads) * (arena.used() - before);
}

// A token's candidate blocks by number: all of its window, or the blocks of a list.
struct Candidates {
    ColumnWindow window;
    int64_t block_size, count;
    const int32_t* list;  // null: all

    int64_t block(int64_t i) const { return list ? list[i] : i; }
    ColumnWindow columns(int64_t i) const { return columns_of_block(window, block_size, block(i)); }
    bool has_newest() const { return count > 0 && columns(count - 1).end == window.end; }
};

// Iterates over the columns of candidates [at, end), at most a given number at a time, in one block.
class Walk {
public:
    Walk(const Candidates& of, int64_t at, int64_t end) : of_(of), at_(at), end_(end) { enter(); }

    // Returns the next columns; empty at the end. `candidate` is the number of their block among the
    // candidates.
    ColumnWindow next(int64_t most, int64_t& candidate) {
        if (at_ >= end_) return {0, 0};
        candidate = at_;
        const ColumnWindow part{rest_.begin, std::min(rest_.begin + most, rest_.end)};
        rest_.begin = part.end;
        if (rest_.begin == rest_.end) {
            ++at_;
            enter();
        }
        return part;
    }

private:
    void enter() {
        if (at_ < end_) rest_ = of_.columns(at_);
    }

    const Candidates& of_;
    int64_t at_, end_;
    ColumnWindow rest_;
};

class Stream {
public:
    Stream(const Args& args, const Env& env, const StreamedKernels& kernels, const Plan& plan)
        : args_(args),
          score_(score_args_of(args)),
          plan_(plan),
          select_(*kernels.select),
          tiles_(score_, *kernels.score, args.columns),
          spans_(score_),
          scratch_(static_cast<size_t>(plan.threads)) {
        Arena arena(env.workspace);
        kept_.take(arena, plan.kept, plan.k);
        kept_blocks_.take(arena, plan.kept, plan.blocks_k);
        for (Scratch& each : scratch_) {
            each.take(arena, *kernels.score, plan);
            each.score.reset(1);
        }
    }

    void run(const Env& env) {
        run_tasks(env, plan_.tokens * plan_.slices, [&](int64_t task, int worker) {
            run_slice(scratch_[size_t(worker)], task / plan_.slices, task % plan_.slices);
        });
        if (plan_.slices == 1) return;
        run_tasks(env, plan_.tokens, [&](int64_t t, int worker) { merge(scratch_[size_t(worker)], t); });
    }

private:
    Candidates candidates(Scratch& scratch, int64_t t) const {
        const ColumnWindow window = tiles_.window(t);
        if (!present(args_.blocks))
            return {window, args_.block_size, blocks_in(window, args_.block_size), nullptr};
        const int64_t count = candidate_blocks(args_, t, window, scratch.list);
        return {window, args_.block_size, count, scratch.list};
    }

    void run_slice(Scratch& scratch, int64_t t, int64_t slice) const {
        const Candidates all = candidates(scratch, t);
        const int64_t begin = all.count * slice / plan_.slices, end = all.count * (slice + 1) / plan_.slices;
        start(scratch);
        clear_maxima(all, t, slice);
        score_blocks(scratch, t, all, begin, end);
        if (plan_.k > 0) scratch.top.finish();
        if (plan_.blocks_k > 0) scratch.blocks.finish();
        if (plan_.slices == 1) return store(scratch, t, all);
        const int64_t at = t * plan_.slices + slice;
        if (plan_.k > 0) kept_.keep(at, plan_.k, scratch.top);
        if (plan_.blocks_k > 0) kept_blocks_.keep(at, plan_.blocks_k, scratch.blocks);
    }

    void score_blocks(Scratch& scratch, int64_t t, const Candidates& all, int64_t begin, int64_t end) const {
        if (plan_.k == 0 && plan_.blocks_k == 0 && !present(args_.block_maxima))
            return;  // nothing to score for
        const int64_t request = spans_.request(t);
        Walk ahead(all, begin, end), behind(all, begin, end);
        int64_t candidate = 0, open = -1;  // open: the candidate of `best`
        float best = 0;
        const auto fill = [&](const KeySpans& spans, KeyTile& tile) {
            int64_t ignored = 0;
            tile.columns = {0, 0};
            tile.holes = 0;
            while (tile.n() < tiles_.tile_keys()) {
                const ColumnWindow part = ahead.next(tiles_.tile_keys() - tile.n(), ignored);
                if (part.begin == part.end) break;
                spans.append(request, part, tile);
            }
        };
        const auto each = [&](const float* logits) {
            for (int at = 0; at < tiles_.tile_keys();) {
                const ColumnWindow part = behind.next(tiles_.tile_keys() - at, candidate);
                const int n = int(part.end - part.begin);
                if (n == 0) break;
                if (plan_.k > 0) scratch.top.push(logits + at, n, int32_t(part.begin));
                if (candidate != open) {
                    close_block(scratch, t, all, open, best);
                    open = candidate;
                    best = logits[at];
                }
                for (int j = at; j < at + n; ++j)
                    if (logits[j] > best || std::isnan(best)) best = logits[j];
                at += n;
            }
        };
        tiles_.run_tiles(scratch.score, t, fill, each);
        close_block(scratch, t, all, open, best);
    }

    void close_block(Scratch& scratch, int64_t t, const Candidates& all, int64_t candidate,
                     float best) const {
        if (candidate < 0) return;
        if (candidate == all.count - 1 && all.has_newest()) best = kInfinity;
        const int64_t block = all.block(candidate);
        if (present(args_.block_maxima))
            *reinterpret_cast<float*>(address(args_.block_maxima, t, block)) = best;
        if (plan_.blocks_k > 0) scratch.blocks.push(&best, 1, int32_t(block));
    }

    // Sets -inf for the blocks between a slice's first candidate and the next slice's first.
    void clear_maxima(const Candidates& all, int64_t t, int64_t slice) const {
        if (!present(args_.block_maxima)) return;
        const auto bound = [&](int64_t s) {
            const int64_t first = all.count * s / plan_.slices;
            if (s == 0 || (first == 0 && all.count > 0)) return int64_t(0);
            return first < all.count ? all.block(first) : args_.block_maxima.shape[1];
        };
        auto* const out = reinterpret_cast<float*>(address(args_.block_maxima, t));
        std::fill(out + bound(slice), out + bound(slice + 1), -kInfinity);
    }

    void start(Scratch& scratch) const {
        scratch.top.start(select_, plan_.k);
        if (plan_.blocks_k > 0) scratch.blocks.start(select_, plan_.blocks_k);
    }

    void merge(Scratch& scratch, int64_t t) const {
        start(scratch);
        for (int64_t at = t * plan_.slices; at < (t + 1) * plan_.slices; ++at) {
            if (plan_.k > 0) kept_.push(at, plan_.k, scratch.top);
            if (plan_.blocks_k > 0) kept_blocks_.push(at, plan_.blocks_k, scratch.blocks);
        }
        if (plan_.k > 0) scratch.top.finish();
        if (plan_.blocks_k > 0) scratch.blocks.finish();
        store(scratch, t, candidates(scratch, t));
    }

    void store(const Scratch& scratch, int64_t t, const Candidates& all) const {
        const int64_t base = args_.relative ? all.window.begin : 0,
                      count = plan_.k > 0 ? scratch.top.count() : 0;
        store_selection(select_args_of(args_), t, scratch.top.columns(), scratch.top.values(), count, base);
        if (!present(args_.best_blocks)) return;
        auto* const out = reinterpret_cast<int32_t*>(address(args_.best_blocks, t));
        const int64_t found = plan_.blocks_k > 0 ? scratch.blocks.count() : 0;
        std::copy_n(scratch.blocks.columns(), found, out);
        std::fill(out + found, out + plan_.blocks_k, -1);
        // The newest block stays even if more blocks than the list can contain have a maximum of +inf.
        if (found > 0 && all.has_newest()) out[found - 1] = int32_t(all.block(all.count - 1));
    }

    const Args& args_;
    const smla_score_args score_;
    const Plan& plan_;
    const SelectKernel& select_;
    ScoreTiles tiles_;
    KeySpans spans_;
    std::vector<Scratch> scratch_;
    KeptSlices kept_{}, kept_blocks_{};
};

}  // namespace

const Candidate<Args> cpu::kStreamedBlocks{
    .name = "cpu_streamed_score_select_blocks", .plan = [](const Args& args, const Env& env) {
        const StreamedKernels kernels(score_args_of(args), select_args_of(args), env);
        return plan_stream<Stream, Plan>(kernels, args, env);
    }};

}  // namespace smla
