// Scores blocks of query rows against tiles of keys. A tile is decoded once for all rows of a block that
// share a request. A logit depends only on its query row and key, so any division into blocks, tiles and
// threads produces the same bits.
#pragma once

#include "core/interrupt.h"
#include "core/workspace.h"
#include "engines/cpu/score/key_spans.h"

#include <limits>

namespace smla {

constexpr int kMaxBlockRows = 16;  // with 16 rows, decoding a tile takes under 1 % of its scoring

// Buffers of one worker.
struct ScoreScratch {
    uint32_t* queries;     // [block rows][packed words]
    float* weights;        // [block rows][padded heads]
    int64_t* packed;       // [block rows]: the token in each row of `queries`, -1 for none
    uint32_t* query_rows;  // [padded heads][stride]: a query before packing
    uint32_t* keys[2];     // [tile][stride]: the current tile and the next one
    float* sums;           // [tile][lanes]
    float* logits;         // [tile]

    // Only adds up sizes if the arena has no memory.
    void take(Arena& arena, const ScoreKernel& kernel, int block_rows, int heads, int width);
    void reset(int block_rows) { std::fill(packed, packed + block_rows, -1); }
};
size_t score_scratch_bytes(const ScoreKernel& kernel, int block_rows, int heads, int width);
// Returns the query rows per block, so that packed queries fit 512 KB and `threads` workers the budget.
int score_block_rows(const ScoreKernel& kernel, int64_t tokens, int heads, int width, int threads,
                     size_t budget);

// Three consecutive tiles: one is scored, the next is decoded, the one after is prefetched.
class Pipeline {
public:
    KeyTile& tile(int i) { return tiles_[(first_ + i) % 3]; }  // tile 0 is being scored

    void advance() {
        first_ = (first_ + 1) % 3;
        decoded[buffer] = false;
        buffer ^= 1;
        fetched = false;
    }

    int buffer = 0;        // index in the scratch's `keys` of tile 0; tile 1 has the other one
    bool decoded[2] = {};  // by buffer
    bool fetched = false;  // tile 2

private:
    KeyTile tiles_[3];
    int first_ = 0;
};

class ScoreTiles {
public:
    // `columns` is N, to which windows are clamped.
    ScoreTiles(const smla_score_args& args, const ScoreKernel& kernel, int64_t columns)
        : args_(args),
          kernel_(kernel),
          spans_(args),
          columns_(columns),
          heads_(int(args.q.shape[1])),
          width_(int(args.q.shape[2])),
          words_(kernel.words(width_)),
          stride_(kernel.stride(width_)) {}

    int tile_keys() const { return kernel_.tile; }
    ColumnWindow window(int64_t token) const {
        return clamp_window(args_.starts, args_.ends, token, columns_);
    }

    // Calls emit(token, column, n, logits) for every column of [begin, end) in the windows of tokens [first,
    // last), at most block_rows tokens, columns ascending.
    template <class Emit>
    void run(ScoreScratch& scratch, int64_t first, int64_t last, int64_t begin, int64_t end,
             const Emit& emit) const {
        const Entered entered(kernel_);
        for (int64_t from = first; from < last;) {
            const int64_t request = spans_.request(from);
            int64_t to = from + 1;
            while (to < last && spans_.request(to) == request) ++to;
            run_request(scratch, request, first, from, to, begin, end, emit);
            from = to;
        }
    }

    // For one token, scores the tiles that fill(spans, tile) makes until it leaves one empty. Calls
    // each(logits) after each tile.
    template <class Fill, class Each>
    void run_tiles(ScoreScratch& scratch, int64_t token, const Fill& fill, const Each& each) const {
        const Entered entered(kernel_);
        Pipeline line;
        for (int i = 0; i < 3; ++i) {
            line.advance();
            fill(spans_, line.tile(2));
        }
        for (; line.tile(0).n() > 0; line.advance(), fill(spans_, line.tile(2))) {
            stop_here();
            begin_tile(scratch, line);
            score(scratch, 0, token, line);
            each(scratch.logits);
        }
    }

private:
    // Runs a stop point, except in kernels with `enter`, whose tile registers a callback could change.
    void stop_here() const {
        if (!kernel_.enter) stop_point();
    }

    class Entered {
    public:
        explicit Entered(const ScoreKernel& kernel) : leave_(kernel.leave) {
            if (kernel.enter) kernel.enter();
        }
        ~Entered() {
            if (leave_) leave_();
        }
        Entered(const Entered&) = delete;
        Entered& operator=(const Entered&) = delete;

    private:
        void (*leave_)();
    };

    template <class Emit>
    void run_request(ScoreScratch& scratch, int64_t request, int64_t first, int64_t from, int64_t to,
                     int64_t begin, int64_t end, const Emit& emit) const {
        ColumnWindow windows[kMaxBlockRows], hull{end, begin};
        for (int64_t t = from; t < to; ++t) {
            ColumnWindow& own = windows[t - from] = window(t);
            own = {std::max(own.begin, begin), std::min(own.end, end)};
            if (own.begin < own.end) hull = {std::min(hull.begin, own.begin), std::max(hull.end, own.end)};
        }
        Pipeline line;
        int64_t column = hull.begin;
        const auto locate_next = [&] {
            const ColumnWindow columns = next_tile(windows, to - from, column, hull.end);
            column = columns.end;
            spans_.locate(request, columns, line.tile(2));
        };
        for (int i = 0; i < 3; ++i) {
            line.advance();
            locate_next();
        }
        for (; line.tile(0).n() > 0; line.advance(), locate_next()) {
            stop_here();
            const KeyTile& tile = begin_tile(scratch, line);
            for (int64_t t = from; t < to; ++t) {
                const ColumnWindow part = clip(windows[t - from], tile.columns.begin, tile.columns.end);
                if (part.begin >= part.end) continue;
                score(scratch, int(t - first), t, line);
                emit(t, part.begin, int(part.end - part.begin),
                     scratch.logits + (part.begin - tile.columns.begin));
            }
        }
    }
    // Returns the next columns at or after `from` in a window, at most a tile; empty at the end. Skips the
    // columns between windows.
    ColumnWindow next_tile(const ColumnWindow* windows, int64_t n, int64_t from, int64_t end) const {
        for (; from < end; from += kernel_.tile) {
            ColumnWindow wanted{from + kernel_.tile, from};
            for (int64_t i = 0; i < n; ++i) {
                const ColumnWindow part = clip(windows[i], from, from + kernel_.tile);
                if (part.begin < part.end)
                    wanted = {std::min(wanted.begin, part.begin), std::max(wanted.end, part.end)};
            }
            if (wanted.begin < wanted.end) return wanted;
        }
        return {end, end};
    }
    static ColumnWindow clip(ColumnWindow window, int64_t begin, int64_t end) {
        return {std::max(window.begin, begin), std::min(window.end, end)};
    }

    KeyTile& begin_tile(ScoreScratch& scratch, Pipeline& line) const;
    void score(ScoreScratch& scratch, int slot, int64_t token, Pipeline& line) const;
    void pack(ScoreScratch& scratch, int slot, int64_t token) const;

    const smla_score_args& args_;
    const ScoreKernel& kernel_;
    KeySpans spans_;
    int64_t columns_;
    int heads_, width_, words_, stride_;
};

}  // namespace smla
