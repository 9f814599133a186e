// Divides attend's work for a GPU: the block shapes of the kernels, and the best shape and number of splits
// for a call. The result depends only on shapes, device, mode and budget.
#pragma once

#include "engines/candidate.h"
#include "formats/format.h"
#include "ops/attend/attend.h"

#include <algorithm>

namespace smla::cuda_attend {

constexpr int kValueWidth = 512;
constexpr int kMaxSplits = 128;  // maximum number of blocks that share a token's rows
constexpr int kFewHeads = 16, kSomeHeads = 32, kManyHeads = 64;
// Blocks per multiprocessor that the registers of the mma kernels allow.
constexpr int kFewResident = 2, kFewCodedResident = 3, kSomeResident = 2;

// Returns whether a format is an fp8 record whose last 64 values (rope) are bf16.
constexpr bool has_bf16_rope(smla_format format) { return format == SMLA_FP8_656 || format == SMLA_FP8_584; }

// Softmax statistics of one head in one split.
struct alignas(16) PartialStatistics {
    float peak2;     // reference logit, as log2: sum adds exp2(logit2 - peak2); -inf: no finite logit
    float sum;       // sum of the weights
    float largest2;  // largest logit, as log2; -inf: none
    float any;       // 1 if the split had keys, else 0
};

// Workspace of the splits: sums [T,splits,H,512] and statistics [T,splits,H].
struct Partials {
    float* sums = nullptr;
    PartialStatistics* statistics = nullptr;

    // Allocates the arrays for `rows` = T * splits * H.
    static Partials carve(Arena& arena, int64_t rows) {
        return {.sums = arena.take<float>(size_t(rows) * kValueWidth),
                .statistics = arena.take<PartialStatistics>(size_t(rows))};
    }
};

// Form of the keys in the shared memory of the mma kernels: bf16 rows, fp8 records as stored, or bf16 rows
// that the producer decodes from records.
enum class KeyForm { rows, codes, decoded };
constexpr uint32_t kDecodedFormats =
    formats(SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT);
constexpr KeyForm key_form(smla_format format) {
    if (format == SMLA_ROW_BF16) return KeyForm::rows;
    return kDecodedFormats & format_bit(format) ? KeyForm::decoded : KeyForm::codes;
}

// Costs in clock cycles of an H200's multiprocessor; only their ratios matter. A step is one tile of keys for
// each warpgroup that processes separate tiles. With n blocks on a multiprocessor, a step takes `step +
// sharing * n` cycles, and at least `busy_step` times the share of busy multiprocessors.
struct BlockCosts {
    double task;  // start and end of a block
    double step, sharing;
    double busy_step = 0;
    double bytes_per_cycle = 0;  // rate at which the whole device reads listed rows; 0: no limit
};

struct Schedule;

// A shape of a kernel's blocks: one row of the table in schedule.cpp.
struct BlockShape {
    const char* kernel;
    uint32_t formats;  // bit mask of supported cache formats
    KeyForm keys;
    int heads;                               // heads per block; 128: per cluster of two blocks
    int more_than = 0, at_most = INT32_MAX;  // supported numbers of heads per call
    int tile_keys;                           // list entries per tile
    int warpgroups = 1;                      // warpgroups that process alternate tiles
    int resident = 1;                        // blocks per multiprocessor that registers allow
    int64_t least_tiles = 0;  // minimum of Best::all_tiles; below it, cuda_mma_attend is faster
    BlockCosts costs;
    void (*run)(const smla_attend_args& args, const Schedule& schedule, const Env& env);
};

struct Schedule {
    const BlockShape* shape = nullptr;
    int64_t tokens = 0, all_heads = 1;  // tokens per launch, heads of the call
    int splits = 1;

    int64_t head_tiles() const { return ceil_div(all_heads, shape->heads); }
    int64_t blocks() const { return tokens * head_tiles() * splits; }
    Partials carve(Arena& arena) const {
        return splits == 1 ? Partials{} : Partials::carve(arena, tokens * splits * all_heads);
    }
    size_t workspace() const {
        Arena arena;
        carve(arena);
        return arena.used();
    }
};

std::span<const BlockShape> block_shapes();

// The best schedule of a kernel according to its cost model.
struct Best {
    Schedule schedule;
    double cycles = -1;     // estimated time; -1 for batch-invariant calls
    int64_t all_tiles = 0;  // tiles of all tokens and groups of heads
};
Best best_schedule(const char* kernel, const smla_attend_args& args, const Env& env);

inline bool has_cache(const smla_attend_source& source) { return source.cache.format != SMLA_FORMAT_NONE; }
// Returns whether a kernel has shapes for caches of a format.
bool has_shape(const char* kernel, smla_format format);
// Returns the format of the first cache that is present.
smla_format first_format(const smla_attend_args& args);
// Returns the bytes of shared memory of one block of an mma kernel.
size_t shared_bytes(int heads, int width, KeyForm keys);

// Returns the maximum workspace of the splits of a call. It never decreases with the number of tokens, so a
// workspace of this size suffices for every call of fewer tokens.
size_t most_workspace(const smla_attend_args& args, const Env& env);
// Returns the number of tokens per launch of a batch-invariant call. Its splits depend only on lists and
// heads, so the call is divided into launches whose partial results fit in the workspace.
int64_t tokens_of_a_launch(const smla_attend_args& args, int splits, const Env& env);

// Calls run(args, schedule) for the tokens of each launch.
template <class Run>
void each_launch(const smla_attend_args& args, Schedule schedule, const Run& run) {
    const int64_t tokens = args.q.shape[0], most = schedule.tokens;
    if (most >= tokens) return run(args, schedule);
    for (int64_t begin = 0; begin < tokens; begin += most) {
        schedule.tokens = std::min(most, tokens - begin);
        run(tokens_of(args, begin, begin + schedule.tokens), schedule);
    }
}

}  // namespace smla::cuda_attend
