#include "engines/cuda/attend/schedule.h"

#include "engines/cuda/attend/run.h"

#include <cmath>
#include <cstring>

namespace smla::cuda_attend {

namespace {

constexpr uint32_t kRows = format_bit(SMLA_ROW_BF16), kV4 = format_bit(SMLA_FP8_584);
constexpr uint32_t kF32Scales = formats(SMLA_FP8_656, SMLA_FP8_528);
constexpr uint32_t kOneScale = formats(SMLA_FP8_576, SMLA_FP8_512);
constexpr uint32_t kRaw = kF32Scales | kOneScale, kCodes = kRaw | kV4;
constexpr double kMemory = 2000;

// Costs of the wgmma kernels were fitted to times of 1 to 512 tokens of 16 to 128 heads over fp8_656, and
// costs of the mma kernel to the sweep of bench/cuda_attend.cpp (docs/kernels/log/cuda_attend.md). The costs
// of decoded rows are estimates: the costs of bf16 rows plus 0.4 instructions per value and warp. For at
// least least_tiles tiles (measured with 1 to 128 tokens of 24 to 128 heads), cuda_sm90_attend is faster than
// cuda_mma_attend, because it takes half the time per tile but more time per task.
// clang-format off
constexpr BlockShape kShapes[] = {
#ifdef SMLA_CUDA_SM90A
    {.kernel = kSm90Raw, .formats = kRaw, .keys = KeyForm::codes, .heads = 64, .more_than = 32,
     .tile_keys = 64, .costs = {11400, 5040, 0, 5440}, .run = run_sm90_raw},
    {.kernel = kSm90Raw, .formats = kRaw, .keys = KeyForm::codes, .heads = 32, .more_than = 16,
     .tile_keys = 64, .warpgroups = 2, .costs = {10620, 5120, 0, 5710}, .run = run_sm90_raw},
    {.kernel = kSm90Raw, .formats = kRaw, .keys = KeyForm::codes, .heads = 16,
     .tile_keys = 64, .resident = 2, .costs = {4700, 240, 2260, 3090}, .run = run_sm90_raw},
    {.kernel = kSm90Raw, .formats = kRaw, .keys = KeyForm::codes, .heads = 16,
     .tile_keys = 64, .warpgroups = 2, .costs = {3900, 4430, 0, 5270}, .run = run_sm90_raw},
    {.kernel = kSm90, .formats = kRows, .keys = KeyForm::rows, .heads = 64, .more_than = 16, .at_most = 32,
     .tile_keys = 64, .least_tiles = 1000, .costs = {12000, 3400, 0}, .run = run_sm90},
    {.kernel = kSm90, .formats = kRows, .keys = KeyForm::rows, .heads = 64, .more_than = 32,
     .tile_keys = 64, .least_tiles = 120, .costs = {12000, 3400, 0}, .run = run_sm90},
    {.kernel = kSm90, .formats = kV4, .keys = KeyForm::codes, .heads = 64, .more_than = 16, .at_most = 32,
     .tile_keys = 64, .least_tiles = 1000, .costs = {12000, 6400, 0}, .run = run_sm90},
    {.kernel = kSm90, .formats = kV4, .keys = KeyForm::codes, .heads = 64, .more_than = 32, .at_most = 64,
     .tile_keys = 64, .least_tiles = 400, .costs = {12000, 6400, 0}, .run = run_sm90},
    {.kernel = kSm90, .formats = kV4, .keys = KeyForm::codes, .heads = 128, .more_than = 64,
     .tile_keys = 64, .least_tiles = 400, .costs = {12000, 4900, 0}, .run = run_sm90},
    {.kernel = kSm90, .formats = kF32Scales, .keys = KeyForm::codes, .heads = 64, .at_most = 64,
     .tile_keys = 64, .costs = {19000, 4150, 0}, .run = run_sm90},
    {.kernel = kSm90, .formats = kF32Scales, .keys = KeyForm::codes, .heads = 128, .more_than = 64,
     .tile_keys = 64, .costs = {19000, 4150, 0}, .run = run_sm90},
#endif
    {.kernel = kMma, .formats = kRows, .keys = KeyForm::rows, .heads = 16,
     .tile_keys = 32, .resident = kFewResident, .costs = {9000, 2040, 660, 0, kMemory}, .run = run_mma},
    {.kernel = kMma, .formats = kRows, .keys = KeyForm::rows, .heads = 32, .more_than = 16,
     .tile_keys = 32, .resident = kSomeResident, .costs = {9400, 2120, 1030, 0, kMemory}, .run = run_mma},
    {.kernel = kMma, .formats = kRows, .keys = KeyForm::rows, .heads = 64, .more_than = 32,
     .tile_keys = 32, .costs = {10800, 3530, 0, 0, kMemory}, .run = run_mma},
    {.kernel = kMma, .formats = kCodes, .keys = KeyForm::codes, .heads = 16,
     .tile_keys = 32, .resident = kFewCodedResident, .costs = {7900, 1750, 1020, 0, kMemory}, .run = run_mma},
    {.kernel = kMma, .formats = kCodes, .keys = KeyForm::codes, .heads = 32, .more_than = 16,
     .tile_keys = 32, .resident = kSomeResident, .costs = {14400, 2360, 1100, 0, kMemory}, .run = run_mma},
    {.kernel = kMma, .formats = kCodes, .keys = KeyForm::codes, .heads = 64, .more_than = 32,
     .tile_keys = 32, .costs = {16000, 4030, 0, 0, kMemory}, .run = run_mma},
    {.kernel = kMma, .formats = kDecodedFormats, .keys = KeyForm::decoded, .heads = 16,
     .tile_keys = 32, .resident = kFewCodedResident, .costs = {9500, 2300, 880, 0, kMemory}, .run = run_mma},
    {.kernel = kMma, .formats = kDecodedFormats, .keys = KeyForm::decoded, .heads = 32, .more_than = 16,
     .tile_keys = 32, .resident = kSomeResident, .costs = {10600, 2300, 1150, 0, kMemory}, .run = run_mma},
    {.kernel = kMma, .formats = kDecodedFormats, .keys = KeyForm::decoded, .heads = 64, .more_than = 32,
     .tile_keys = 32, .costs = {12000, 3800, 0, 0, kMemory}, .run = run_mma},
};
// clang-format on

// Cost of combining splits: cycles of the kernel, cycles per split, and bytes of partial sums that the whole
// device moves per cycle; or, if that is more, cycles per row (one head of one token) and per split of a row.
constexpr double kMerge = 5500, kMergePerSplit = 125, kSumsPerCycle = 2000;
constexpr double kMergePerRow = 2.2, kMergePerRowSplit = 1.4;

// Upper bounds of the workspace of splits: one wave of blocks, plus one split per token and 512 listed rows;
// and 80 KiB per listed row. Lists of fewer than 2048 rows count as 2048. For 1 to 4096 tokens of 1 to 128
// heads, lists of up to 8192 rows and 82 to 188 multiprocessors, the bounds exclude no choice of `cost`.
constexpr int64_t kRowsPerSplit = 512, kShortList = 2048;
constexpr size_t kBytesPerListedRow = 80 << 10;
constexpr int kLeastSplitRows = 32;

// Returns the sum of value(source) over the caches that are present.
template <class Value>
auto sum(const smla_attend_args& args, const Value& value) {
    decltype(value(args.primary)) total{};
    for (const smla_attend_source* source : {&args.primary, &args.extra})
        if (has_cache(*source)) total += value(*source);
    return total;
}

// Returns the bytes of all listed rows.
double listed_bytes(const smla_attend_args& args) {
    return sum(args, [&](const smla_attend_source& source) {
        return double(args.q.shape[0] * source.rows.shape[1]) *
               double(find_format(source.cache.format)->record_bytes(int(args.q.shape[2])));
    });
}

// Returns the number of blocks that a multiprocessor can run concurrently.
double resident_blocks(const BlockShape& shape, int width, const DeviceFacts& device) {
    if (shape.run != run_mma) return shape.resident;
    const double fit =
        std::floor(double(device.shared_bytes) / double(shared_bytes(shape.heads, width, shape.keys)));
    const int registers = device.capability >= 89 ? shape.resident : std::min(shape.resident, kFewResident);
    return std::clamp(fit, 1., double(registers));
}

// Returns the estimated cycles of a schedule. `tiles`: number of tiles of a token's lists.
double cost(const Schedule& schedule, int64_t tiles, const smla_attend_args& args,
            const DeviceFacts& device) {
    const BlockShape& shape = *schedule.shape;
    const BlockCosts& costs = shape.costs;
    const double resident = resident_blocks(shape, int(args.q.shape[2]), device),
                 blocks = double(schedule.blocks());
    const int processors = std::max(1, device.multiprocessors);
    const double units = shape.heads <= kManyHeads ? processors : std::max(1, processors / 2);
    const double sharing = std::min(resident, std::ceil(blocks / units)),
                 step = std::max(costs.step + costs.sharing * sharing,
                                 costs.busy_step * std::min(1.0, blocks / units));
    // Two warpgroups with one tile each wait for the records of both, which takes as long as three tiles.
    const double least = shape.warpgroups == 1 ? 1 : 3,
                 steps =
                     std::max(least, double(ceil_div(tiles, int64_t(schedule.splits)))) / shape.warpgroups;
    const double waves = std::ceil(blocks / (units * resident));
    double work = waves * steps * step;
    if (costs.bytes_per_cycle > 0) work = std::max(work, listed_bytes(args) / costs.bytes_per_cycle);
    double cycles = work + waves * costs.task;
    if (schedule.splits == 1) return cycles;
    const double rows = double(schedule.tokens * schedule.all_heads);
    return cycles +
           std::max(kMerge + kMergePerSplit * schedule.splits + double(schedule.workspace()) / kSumsPerCycle,
                    rows * (kMergePerRow + kMergePerRowSplit * schedule.splits));
}

// Returns the maximum workspace of a launch of any number of tokens.
size_t most_workspace_of_a_launch(const smla_attend_args& args, const Env& env) {
    const size_t most = kBytesPerListedRow * size_t(std::max(max_rows_per_token(args), kShortList));
    return env.budget == 0 ? most : std::min(most, env.budget);
}

size_t workspace_of(int64_t rows) {
    Arena arena;
    Partials::carve(arena, rows);
    return arena.used();
}

// Returns the next number of splits to try. The mma kernel has twice as many tiles, so coarser steps limit
// the planning time.
int next_splits(int splits, const BlockShape& shape) {
    return splits + (shape.tile_keys >= 64 || splits < 16 ? 1 : splits < 64 ? 4 : 16);
}

}  // namespace

std::span<const BlockShape> block_shapes() { return kShapes; }

bool has_shape(const char* kernel, smla_format format) {
    for (const BlockShape& shape : kShapes)
        if (std::strcmp(shape.kernel, kernel) == 0 && (shape.formats & format_bit(format))) return true;
    return false;
}

smla_format first_format(const smla_attend_args& args) {
    return (has_cache(args.primary) ? args.primary : args.extra).cache.format;
}

size_t most_workspace(const smla_attend_args& args, const Env& env) {
    const int64_t rows = args.q.shape[0] * args.q.shape[1], listed = max_rows_per_token(args);
    const int64_t waves = int64_t(env.device->facts().multiprocessors) * kManyHeads +
                          rows * (std::max(listed, kShortList) / kRowsPerSplit);
    const int64_t most_splits = std::clamp<int64_t>(listed / kLeastSplitRows + 2, 1, kMaxSplits);
    return std::min(workspace_of(std::min(waves, rows * most_splits)), most_workspace_of_a_launch(args, env));
}

int64_t tokens_of_a_launch(const smla_attend_args& args, int splits, const Env& env) {
    const int64_t tokens = args.q.shape[0], rows = splits * args.q.shape[1];
    if (splits == 1 || tokens == 0) return tokens;
    const size_t room = most_workspace_of_a_launch(args, env);
    int64_t fit = (int64_t(room) - int64_t(workspace_of(0))) /
                  (rows * int64_t(kValueWidth * sizeof(float) + sizeof(PartialStatistics)));
    if (fit > 1 && workspace_of(fit * rows) > room) --fit;  // both arrays are padded to whole cache lines
    return std::clamp<int64_t>(fit, 1, tokens);
}

Best best_schedule(const char* kernel, const smla_attend_args& args, const Env& env) {
    const int64_t heads = args.q.shape[1];
    const size_t room = most_workspace(args, env);
    Best best;
    for (const BlockShape& shape : kShapes) {
        if (std::strcmp(shape.kernel, kernel) != 0 || !(shape.formats & format_bit(first_format(args))) ||
            heads <= shape.more_than || heads > shape.at_most)
            continue;
        Schedule schedule{.shape = &shape, .tokens = args.q.shape[0], .all_heads = heads};
        const int64_t tiles = sum(args, [&](const smla_attend_source& source) {
            return ceil_div(source.rows.shape[1], int64_t(shape.tile_keys));
        });
        const int64_t all_tiles = args.q.shape[0] * ceil_div(heads, int64_t(kManyHeads)) * tiles;
        if (env.batch_invariant) {  // depends only on heads and list widths, not on tokens or budget
            if (best.schedule.shape && best.schedule.shape->heads >= shape.heads) continue;
            schedule.splits =
                int(std::clamp<int64_t>(tiles * shape.tile_keys / kRowsPerSplit, 1, kMaxSplits));
            schedule.tokens = tokens_of_a_launch(args, schedule.splits, env);
            best = {schedule, -1, all_tiles};
            continue;
        }
        const int most = int(std::clamp<int64_t>(tiles, 1, kMaxSplits));
        for (; schedule.splits <= most; schedule.splits = next_splits(schedule.splits, shape)) {
            if (schedule.splits > 1 && schedule.workspace() > room) continue;
            const double cycles = cost(schedule, tiles, args, env.device->facts());
            if (best.cycles < 0 || cycles < best.cycles) best = {schedule, cycles, all_tiles};
        }
    }
    return best;
}

}  // namespace smla::cuda_attend
