// How attend's work is cut for a GPU: the block shapes of its kernels, and the best shape and number of
// splits for a call. A function of shapes, device, mode and budget.
#pragma once

#include "engines/candidate.h"
#include "formats/format.h"
#include "ops/attend/attend.h"

#include <algorithm>

namespace smla::cuda_attend {

constexpr int kValueWidth = 512;
constexpr int kMaxSplits = 128;  // blocks that share a token's rows
constexpr int kFewHeads = 16, kSomeHeads = 32, kManyHeads = 64;
// Blocks per multiprocessor that registers of the mma kernels allow.
constexpr int kFewResident = 2, kFewCodedResident = 3, kSomeResident = 2;

// fp8 records whose last 64 values, the rope, are bf16.
constexpr bool has_bf16_rope(smla_format format) { return format == SMLA_FP8_656 || format == SMLA_FP8_584; }

// A head's softmax statistics in one split.
struct alignas(16) PartialStatistics {
    float peak2;     // the sums are of exp2(logit2 - peak2), logit2 in powers of two; -inf: no finite logit
    float sum;       // of the weights
    float largest2;  // logit, in powers of two; -inf: none
    float any;       // 1: the split had keys
};

// Scratch of the splits: sums [T,splits,H,512], statistics [T,splits,H].
struct Partials {
    float* sums = nullptr;
    PartialStatistics* statistics = nullptr;

    // `rows`: T * splits * H.
    static Partials carve(Arena& arena, int64_t rows) {
        return {.sums = arena.take<float>(size_t(rows) * kValueWidth),
                .statistics = arena.take<PartialStatistics>(size_t(rows))};
    }
};

// Keys of the mma kernels in shared memory: bf16 rows, fp8 records as stored, or bf16 rows that the producer
// decodes from records.
enum class KeyForm { rows, codes, decoded };
constexpr uint32_t kDecodedFormats =
    formats(SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT);
constexpr KeyForm key_form(smla_format format) {
    if (format == SMLA_ROW_BF16) return KeyForm::rows;
    return kDecodedFormats & format_bit(format) ? KeyForm::decoded : KeyForm::codes;
}

// Clock cycles of an H200's multiprocessor; only their ratios matter. A step is a tile of keys, or one tile
// for each of the warpgroups that take tiles in turn. With n blocks on a multiprocessor it takes
// `step + sharing * n`, and at least `busy_step` times the share of the multiprocessors that are busy.
struct BlockCosts {
    double task;  // a block's start and end
    double step, sharing;
    double busy_step = 0;
    double bytes_per_cycle = 0;  // of listed rows, which the whole device can read; 0: no limit
};

struct Schedule;

// A shape of a kernel's blocks: a row of the table in schedule.cpp.
struct BlockShape {
    const char* kernel;
    uint32_t formats;  // of the caches, as bits
    KeyForm keys;
    int heads;                               // per block; 128: per cluster of two blocks
    int more_than = 0, at_most = INT32_MAX;  // heads of the calls that may use the shape
    int tile_keys;                           // list entries per tile
    int warpgroups = 1;                      // that take tiles in turn
    int resident = 1;                        // blocks per multiprocessor that registers allow
    int64_t least_tiles = 0;  // of all tokens and groups of heads; below, cuda_mma_attend is faster
    BlockCosts costs;
    void (*run)(const smla_attend_args& args, const Schedule& schedule, const Env& env);
};

struct Schedule {
    const BlockShape* shape = nullptr;
    int64_t tokens = 0, all_heads = 1;  // tokens: of one launch
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

// The best schedule of a kernel, by its cost model.
struct Best {
    Schedule schedule;
    double cycles = -1;     // not estimated for batch-invariant calls
    int64_t all_tiles = 0;  // of all tokens and groups of heads
};
Best best_schedule(const char* kernel, const smla_attend_args& args, const Env& env);

inline bool has_cache(const smla_attend_source& source) { return source.cache.format != SMLA_FORMAT_NONE; }
// Whether a kernel has shapes for caches of a format.
bool has_shape(const char* kernel, smla_format format);
smla_format first_format(const smla_attend_args& args);   // format of the first cache that is present
size_t shared_bytes(int heads, int width, KeyForm keys);  // of one block of the mma kernel

// The most workspace that splits of a call may take. It never shrinks as tokens are added, so that a
// workspace of this size serves every call of fewer tokens.
size_t most_workspace(const smla_attend_args& args, const Env& env);
// Batch-invariant splits depend on lists and heads alone: such a call is cut into launches whose partials fit
// instead. Tokens of one launch.
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
