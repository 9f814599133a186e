// Divides an attend call into units of work and sizes their scratch: a pure function of shapes, threads, mode
// and budget.
//   unit = (token, chunk of heads, split of the token's valid rows)
// Heads are independent, and a head's sums have one order in any chunk, so chunks do not change the bits.
// Splits change the bits, so batch-invariant mode has none.
#pragma once

#include "engines/candidate.h"
#include "engines/cpu/attend/micro.h"
#include "ops/attend/attend.h"

namespace smla::cpu_attend {

constexpr int kMaxSplits = 64;  // splits of a token's rows

struct Chunk {  // chunk of heads
    int first_vector, vectors;
    int first_head, heads;
};

struct Plan {
    Plan(const smla_attend_args& args, const Micro& micro, const Env& env, size_t budget);

    const Micro& micro;
    int64_t tokens, rows;  // maximum listed rows of a token in both sources
    int heads, width, value_width;
    int steps, value_tiles;  // words per key; dim tiles of the values
    int64_t row_words;
    int vectors;        // vectors of all heads
    int chunk_vectors;  // vectors of the largest chunk
    int chunks, splits;
    bool few_heads;  // two lanes per head in the scores
    int workers;
    int64_t partials;  // accumulators in scratch: one per unit if rows are split, else one per worker

    int key_tile(int group_vectors) const {
        return few_heads ? micro.key_tile_few : micro.key_tile[group_vectors - 1];
    }
    // Returns a number of keys, rounded up to what the kernels compute.
    int padded(int keys, int group_vectors) const {
        const int padding = few_heads ? micro.key_padding_few : micro.key_tile[group_vectors - 1];
        return int(round_up(size_t(keys), size_t(padding)));
    }
    int64_t units() const { return tokens * chunks * splits; }
    // Returns whether all threads join the splits of few tokens, after all splits have ended.
    bool joins_later() const { return splits > 1 && tokens * chunks < workers; }
    Chunk chunk(int index) const;
    // Returns the values per tile of accumulators: whole vectors of heads, which a product may store.
    int64_t tile_stride(int heads_of_chunk) const {
        return int64_t(round_up(size_t(heads_of_chunk), size_t(micro.lanes))) * micro.value_tile;
    }
    size_t workspace() const;

private:
    void cut(const Env& env, size_t budget);
    double time(int chunk_count, int split_count, int threads) const;
};

// Output of a unit: sums before the division.
struct Partial {
    int64_t* count;           // valid rows; 0: other members are undefined
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

// Runs an attend call by its plan, with the plan's microkernels.
void run(const smla_attend_args& args, const Plan& plan, const Env& env);

}  // namespace smla::cpu_attend
