// How one attend call is cut into units of work, and the scratch they need: a pure function of shapes,
// threads, mode and budget.
//   unit = (token, chunk of heads, split of the token's valid rows)
// Heads never mix, and a head's sums run in the same order in any chunk: chunks leave no trace in the bits.
// Splits do, so batch-invariant mode has none.
#pragma once

#include "engines/candidate.h"
#include "engines/cpu/attend/micro.h"
#include "ops/attend/attend.h"

namespace smla::cpu_attend {

constexpr int kMaxSplits = 64;  // of a token's rows

struct Chunk {  // of heads
    int first_vector, vectors;
    int first_head, heads;
};

struct Plan {
    Plan(const smla_attend_args& args, const Micro& micro, const Env& env, size_t budget);

    const Micro& micro;
    int64_t tokens, rows;  // most listed rows of a token, both sources
    int heads, width, value_width;
    int steps, value_tiles;  // words per key; dim tiles of the values
    int64_t row_words;
    int vectors;        // of all heads
    int chunk_vectors;  // of the largest chunk
    int chunks, splits;
    bool few_heads;  // two lanes per head in the scores
    int workers;
    int64_t partials;  // accumulators in scratch: one per unit if rows are split, else one per worker

    int key_tile(int group_vectors) const {
        return few_heads ? micro.key_tile_few : micro.key_tile[group_vectors - 1];
    }
    // A number of keys, and those that are computed beside them.
    int padded(int keys, int group_vectors) const {
        const int padding = few_heads ? micro.key_padding_few : micro.key_tile[group_vectors - 1];
        return int(round_up(size_t(keys), size_t(padding)));
    }
    int64_t units() const { return tokens * chunks * splits; }
    // Splits of few tokens are joined by all threads, once all have ended.
    bool joins_later() const { return splits > 1 && tokens * chunks < workers; }
    Chunk chunk(int index) const;
    // Values per tile of accumulators: whole vectors of heads, because a product may store all of them.
    int64_t tile_stride(int heads_of_chunk) const {
        return int64_t(round_up(size_t(heads_of_chunk), size_t(micro.lanes))) * micro.value_tile;
    }
    size_t workspace() const;

private:
    void cut(const Env& env, size_t budget);
    double time(int chunk_count, int split_count, int threads) const;
};

// What a unit leaves behind: sums that are not divided yet.
struct Partial {
    int64_t* count;           // valid rows; 0: the rest is undefined
    float *peak, *sum, *out;  // [heads], [heads], [dim tiles][heads][tile]
};

struct Scratch {
    int32_t* rows;          // [rows] valid rows of the token, primary then extra
    uint32_t* q;            // [head groups][steps][lanes of the group]
    uint32_t* staging;      // [lanes][steps]
    uint32_t* keys;         // [last][row_words]
    uint32_t* values;       // paired arithmetic: [dim tiles][last / 2][tile]
    float* scores;          // paired: [last][lanes of a group]; plain: [last][lanes of the chunk]
    uint32_t* weights;      // paired: [kMaxTiles][last / 2][lanes of the chunk]; plain: the scores
    float* tile_scales;     // [kMaxTiles][last]
    float* alpha;           // [lanes of the chunk]
    KeyAddress* addresses;  // [2][last]: this block and the next
    float* row;             // [dim tiles * tile]
};

Scratch carve_scratch(Arena& arena, const Plan& plan);
Partial carve_partial(Arena& arena, const Plan& plan);

// Runs attend as it was planned, with the plan's microkernels.
void run(const smla_attend_args& args, const Plan& plan, const Env& env);

}  // namespace smla::cpu_attend
