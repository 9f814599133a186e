#include "engines/cuda/attend/schedule.h"

#include "ops/attend/attend.h"

#include <algorithm>
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

bool holds(KeyForm keys, const smla_attend_source& source) {
    return source.cache.format != SMLA_FORMAT_NONE && key_form(source.cache.format) == keys;
}

}  // namespace

Schedule schedule(const smla_attend_args& args, const Env& env, size_t budget) {
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
    const auto fits = [&](const Schedule& plan) {
        return plan.splits == 1 || budget == 0 || plan.workspace() <= budget;
    };
    if (env.batch_invariant) {  // heads and list widths alone: neither tokens nor the budget
        best.heads = best.all_heads <= kFewHeads    ? kFewHeads
                     : best.all_heads <= kSomeHeads ? kSomeHeads
                                                    : kManyHeads;
        best.splits = int(std::clamp<int64_t>(tiles / 16, 1, kMaxSplits));
        return best;
    }
    const int most = int(std::clamp<int64_t>(tiles, 1, kMaxSplits));
    double least = -1;
    for (const int heads : {kFewHeads, kSomeHeads, kManyHeads}) {
        if (heads > kFewHeads && best.all_heads <= heads / 2) continue;
        // coarser steps for many splits, as every candidate costs host time
        for (int splits = 1; splits <= most; splits += splits < 16 ? 1 : splits < 64 ? 4 : 16) {
            Schedule plan = best;
            plan.heads = heads;
            plan.splits = splits;
            if (!fits(plan)) continue;
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
