// How attend's work is cut for a GPU: heads per block, and how many blocks share one token's listed rows.
// A function of shapes, device, mode and budget.
#pragma once

#include "engines/candidate.h"
#include "formats/format.h"
#include "ops/attend/attend.h"

#include <algorithm>

namespace smla::cuda_attend {

constexpr int kValueWidth = 512;
constexpr int kKeys = 32;        // list entries per unit of the cost model: a tile of few heads, two of many
constexpr int kMaxSplits = 128;  // blocks that share a token's rows
// Cost of combining splits, in clock cycles of an H200's multiprocessor: the kernel itself, and each split;
// then bytes of partial sums that the whole device moves per cycle.
constexpr double kMerge = 5500, kMergePerSplit = 125, kSumsPerCycle = 2000;
constexpr int kFewHeads = 16, kSomeHeads = 32, kManyHeads = 64;
// Blocks per multiprocessor that registers allow.
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
constexpr KeyForm key_form(smla_format format) {
    constexpr uint32_t kDecoded =
        formats(SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT);
    if (format == SMLA_ROW_BF16) return KeyForm::rows;
    return kDecoded & format_bit(format) ? KeyForm::decoded : KeyForm::codes;
}

struct Schedule {
    int heads = kFewHeads;              // per block
    int64_t tokens = 0, all_heads = 1;  // tokens: of one launch
    int splits = 1;
    bool coded = false;    // keys are records, not bf16 rows
    bool decoded = false;  // the producer decodes these records to bf16 rows
    bool raw = false;      // sm90: by the kernel whose records stay as they are
    int tile_groups = 1;   // sm90, raw: warpgroups of a block that take tiles in turn

    KeyForm keys() const { return decoded ? KeyForm::decoded : coded ? KeyForm::codes : KeyForm::rows; }
    int64_t head_tiles() const { return ceil_div(all_heads, heads); }
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

size_t shared_bytes(int heads, int width, KeyForm keys);  // of one block of the mma kernel
Schedule schedule(const smla_attend_args& args, const Env& env);

// The most workspace that splits of a call may take. It never shrinks as tokens are added, so that a
// workspace of this size serves every call of fewer tokens.
size_t most_workspace(const smla_attend_args& args, const Env& env);
// Batch-invariant splits depend on lists and heads alone: such a call is cut into launches whose partials fit
// instead. Tokens of one launch.
int64_t tokens_of_a_launch(const smla_attend_args& args, int splits, const Env& env);

// Calls run(args, schedule, env) for the tokens of each launch. Only the launch of a whole call checks its
// indices.
template <class Run>
void each_launch(const smla_attend_args& args, Schedule schedule, Env env, const Run& run) {
    const int64_t tokens = args.q.shape[0], most = schedule.tokens;
    if (most >= tokens) return run(args, schedule, env);
    env.check_indices = false;
    for (int64_t begin = 0; begin < tokens; begin += most) {
        schedule.tokens = std::min(most, tokens - begin);
        run(tokens_of(args, begin, begin + schedule.tokens), schedule, env);
    }
}

}  // namespace smla::cuda_attend
