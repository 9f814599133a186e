#include "engines/cuda/attend/schedule.h"

#include <cmath>

namespace smla::cuda_attend {

namespace {

// Clock cycles of an H200's multiprocessor, fitted to the sweep of bench/cuda_attend.cpp (docs/kernels/
// cuda_attend.md); only their ratios matter. 32 listed rows take `tile + sharing * n` with n blocks on
// a multiprocessor.
struct Costs {
    double tile, sharing, start;
};
constexpr Costs kMany = {3530, 0, 10800}, kManyCoded = {4030, 0, 16000};
constexpr Costs kSome = {2120, 1030, 9400}, kSomeCoded = {2360, 1100, 14400};
constexpr Costs kFew = {2040, 660, 9000}, kFewCoded = {1750, 1020, 7900};
// Estimates, not measured: the cost of bf16 rows plus that of decoding (0.4 instructions per value and warp).
constexpr Costs kManyDecoded = {3800, 0, 12000}, kSomeDecoded = {2300, 1150, 10600};
constexpr Costs kFewDecoded = {2300, 880, 9500};
constexpr double kMemoryPerCycle = 2000;  // bytes of listed rows

// Limits of partials that leave every choice of `cost` as it is for 1 to 4096 tokens, 1 to 128 heads, lists
// of up to 8192 rows and 82 to 188 multiprocessors: one wave of blocks and one split per token and 512 listed
// rows, and 80 KiB per listed row; of short lists as of 2048 rows.
constexpr int64_t kRowsPerSplit = 512, kShortList = 2048;
constexpr size_t kBytesPerListedRow = 80 << 10;

const Costs& costs_of(const Schedule& plan) {
    const auto pick = [&](const Costs& rows, const Costs& codes, const Costs& decoded) -> const Costs& {
        return plan.decoded ? decoded : plan.coded ? codes : rows;
    };
    if (plan.heads == kManyHeads) return pick(kMany, kManyCoded, kManyDecoded);
    if (plan.heads == kSomeHeads) return pick(kSome, kSomeCoded, kSomeDecoded);
    return pick(kFew, kFewCoded, kFewDecoded);
}

// `bytes`: of all listed rows.
double cost(const Schedule& plan, int64_t tiles, double bytes, int width, const DeviceFacts& device) {
    const double processors = std::max(1, device.multiprocessors);
    const double fit =
        std::floor(double(device.shared_bytes) / double(shared_bytes(plan.heads, width, plan.keys())));
    const int registers = plan.heads == kManyHeads                ? 1
                          : plan.heads == kSomeHeads              ? kSomeResident
                          : plan.coded && device.capability >= 89 ? kFewCodedResident
                                                                  : kFewResident;
    const double resident = std::clamp(fit, 1., double(registers));
    const double blocks = double(plan.blocks());
    const double waves = std::ceil(blocks / (processors * resident));
    const double sharing = std::min(resident, std::ceil(blocks / processors));
    const Costs& costs = costs_of(plan);
    const double each = double(ceil_div(tiles, plan.splits));
    const double work = waves * each * (costs.tile + costs.sharing * sharing);
    double cycles = std::max(work, bytes / kMemoryPerCycle) + waves * costs.start;
    if (plan.splits > 1)
        cycles += kMerge + kMergePerSplit * plan.splits + double(plan.workspace()) / kSumsPerCycle;
    return cycles;
}

int64_t listed_rows(const smla_attend_args& args) {
    int64_t listed = 0;
    for (const smla_attend_source* source : {&args.primary, &args.extra})
        if (source->cache.format != SMLA_FORMAT_NONE) listed += source->rows.shape[1];
    return listed;
}

// Whatever the number of tokens.
size_t most_workspace_of_a_launch(const smla_attend_args& args, const Env& env) {
    const size_t most = kBytesPerListedRow * size_t(std::max(listed_rows(args), kShortList));
    return env.budget == 0 ? most : std::min(most, env.budget);
}

size_t workspace_of(int64_t rows) {
    Arena arena;
    Partials::carve(arena, rows);
    return arena.used();
}

bool holds(KeyForm keys, const smla_attend_source& source) {
    return source.cache.format != SMLA_FORMAT_NONE && key_form(source.cache.format) == keys;
}

}  // namespace

size_t most_workspace(const smla_attend_args& args, const Env& env) {
    const int64_t rows = args.q.shape[0] * args.q.shape[1], listed = listed_rows(args);
    const int64_t waves = int64_t(env.device->facts().multiprocessors) * kManyHeads +
                          rows * (std::max(listed, kShortList) / kRowsPerSplit);
    const int64_t most_splits = std::clamp<int64_t>(listed / kKeys + 2, 1, kMaxSplits);
    return std::min(workspace_of(std::min(waves, rows * most_splits)), most_workspace_of_a_launch(args, env));
}

int64_t tokens_of_a_launch(const smla_attend_args& args, int splits, const Env& env) {
    const int64_t tokens = args.q.shape[0], rows = splits * args.q.shape[1];
    if (splits == 1 || tokens == 0) return tokens;
    const size_t room = most_workspace_of_a_launch(args, env);
    int64_t fit = (int64_t(room) - int64_t(workspace_of(0))) /
                  (rows * int64_t(kValueWidth * sizeof(float) + sizeof(PartialStatistics)));
    if (fit > 1 && workspace_of(fit * rows) > room) --fit;  // both arrays end on a cache line
    return std::clamp<int64_t>(fit, 1, tokens);
}

Schedule schedule(const smla_attend_args& args, const Env& env) {
    const auto any = [&](KeyForm keys) { return holds(keys, args.primary) || holds(keys, args.extra); };
    Schedule best{.tokens = args.q.shape[0],
                  .all_heads = args.q.shape[1],
                  .coded = any(KeyForm::codes) || any(KeyForm::decoded),
                  .decoded = any(KeyForm::decoded)};
    const int width = int(args.q.shape[2]);
    int64_t tiles = 0;
    double bytes = 0;
    for (const smla_attend_source* source : {&args.primary, &args.extra}) {
        if (source->cache.format == SMLA_FORMAT_NONE) continue;
        tiles += ceil_div(source->rows.shape[1], kKeys);
        bytes += double(best.tokens * source->rows.shape[1]) *
                 double(find_format(source->cache.format)->record_bytes(width));
    }
    if (env.batch_invariant) {  // heads and list widths alone: neither tokens nor the budget
        best.heads = best.all_heads <= kFewHeads    ? kFewHeads
                     : best.all_heads <= kSomeHeads ? kSomeHeads
                                                    : kManyHeads;
        best.splits = int(std::clamp<int64_t>(tiles / 16, 1, kMaxSplits));
        best.tokens = tokens_of_a_launch(args, best.splits, env);
        return best;
    }
    const size_t room = most_workspace(args, env);
    const int most = int(std::clamp<int64_t>(tiles, 1, kMaxSplits));
    double least = -1;
    for (const int heads : {kFewHeads, kSomeHeads, kManyHeads}) {
        if (heads > kFewHeads && best.all_heads <= heads / 2) continue;
        // coarser steps for many splits, as every candidate costs host time
        for (int splits = 1; splits <= most; splits += splits < 16 ? 1 : splits < 64 ? 4 : 16) {
            Schedule plan = best;
            plan.heads = heads;
            plan.splits = splits;
            if (splits > 1 && plan.workspace() > room) continue;
            const double cycles = cost(plan, tiles, bytes, width, env.device->facts());
            if (least < 0 || cycles < least) {
                least = cycles;
                best = plan;
            }
        }
    }
    return best;
}

}  // namespace smla::cuda_attend
