#include "engines/cuda_mma/attend/schedule.h"

#include "ops/attend/attend.h"

#include <algorithm>

namespace smla::cuda_attend {

namespace {

// Clock cycles of an H200's multiprocessor, measured or estimated (docs/kernels/cuda_attend.md). Only their
// ratios matter.
constexpr double kManyHeadsTile = 3300;       // 32 keys, one block per multiprocessor
constexpr double kFewHeadsTile = 1200;        // 32 keys, divided by the blocks that share a multiprocessor
constexpr double kFewHeadsAlone = 1900;       // the same for a block that has one to itself: latency
constexpr double kBlockStart = 4500;          // launch, queries, the first rows
constexpr double kMergeStart = 3500;          // the second kernel
constexpr double kMergeBytesPerCycle = 1000;  // partial sums, written and read again

double cost(const Schedule& plan, int64_t tiles, int width, const DeviceFacts& device) {
    const double processors = std::max(1, device.multiprocessors);
    const double fit =
        std::max(1., double(device.shared_bytes) / double(shared_bytes(plan.heads, width, plan.coded)));
    const double resident = plan.heads == kManyHeads ? 1. : std::min(3., std::floor(fit));
    const double each = double(ceil_div(tiles, plan.splits));
    const double blocks = double(plan.blocks());
    const double waves = std::ceil(blocks / (processors * resident));
    // blocks that share a multiprocessor in the last, fullest wave
    const double sharing = std::min(resident, std::ceil(blocks / processors));
    const double tile =
        plan.heads == kManyHeads ? kManyHeadsTile : std::max(kFewHeadsAlone, kFewHeadsTile * sharing);
    double cycles = waves * (each * tile + kBlockStart);
    if (plan.splits > 1) cycles += kMergeStart + double(plan.workspace()) / kMergeBytesPerCycle;
    return cycles;
}

bool holds_codes(const smla_attend_source& source) {
    return source.cache.format != SMLA_FORMAT_NONE && source.cache.format != SMLA_ROW_BF16;
}

}  // namespace

Schedule schedule(const smla_attend_args& args, const Env& env, size_t budget) {
    Schedule best{.tokens = args.q.shape[0],
                  .all_heads = args.q.shape[1],
                  .coded = holds_codes(args.primary) || holds_codes(args.extra)};
    int64_t tiles = 0;
    for (const smla_attend_source* source : {&args.primary, &args.extra})
        if (source->cache.format != SMLA_FORMAT_NONE) tiles += ceil_div(source->rows.shape[1], kKeys);
    const int width = int(args.q.shape[2]);
    const auto fits = [&](const Schedule& plan) {
        return plan.splits == 1 || budget == 0 || plan.workspace() <= budget;
    };
    if (env.batch_invariant) {  // from heads and rows alone
        best.heads = best.all_heads <= 2 * kFewHeads ? kFewHeads : kManyHeads;
        best.splits = int(std::clamp<int64_t>(tiles / 16, 1, kMaxSplits));
        return best;
    }
    double least = -1;
    for (const int heads : {kFewHeads, kManyHeads}) {
        if (heads == kManyHeads && best.all_heads <= kFewHeads) continue;
        for (int splits = 1; splits <= std::clamp<int64_t>(tiles, 1, kMaxSplits); ++splits) {
            Schedule plan = best;
            plan.heads = heads;
            plan.splits = splits;
            if (!fits(plan)) continue;
            const double cycles = cost(plan, tiles, width, env.device->facts());
            if (least < 0 || cycles < least) {
                least = cycles;
                best = plan;
            }
        }
    }
    return best;
}

}  // namespace smla::cuda_attend
