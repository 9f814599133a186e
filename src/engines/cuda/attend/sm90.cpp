// attend on Hopper: what its kernel takes, and how a call is cut.
#include "engines/cuda/attend/run.h"
#include "ops/attend/attend.h"

#include <algorithm>
#include <cmath>

namespace smla {

namespace {

using namespace cuda_attend;
using Args = smla_attend_args;

constexpr int kTileKeys = 64, kBlockHeads = 64;

// Clock cycles of an H200's multiprocessor: of a tile of 64 keys and of a task around its tiles.
constexpr double kTile = 3400, kTask = 12000;
constexpr double kMerge = 5500, kMergePerSplit = 125, kSumsPerCycle = 2000;  // as in schedule.cpp

double cost(const Schedule& plan, int64_t tiles, const DeviceFacts& device) {
    const double clusters = std::max(1, device.multiprocessors * kBlockHeads / plan.heads);
    const double waves = std::ceil(double(plan.blocks()) / clusters);
    double cycles = waves * (kTask + kTile * double(ceil_div(tiles, plan.splits)));
    if (plan.splits > 1)
        cycles += kMerge + kMergePerSplit * plan.splits + double(plan.workspace()) / kSumsPerCycle;
    return cycles;
}

Schedule schedule_sm90(const Args& args, const Env& env) {
    Schedule best{.heads = args.q.shape[1] > kBlockHeads ? 2 * kBlockHeads : kBlockHeads,
                  .tokens = args.q.shape[0],
                  .all_heads = args.q.shape[1]};
    const int64_t tiles = std::max<int64_t>(ceil_div(args.primary.rows.shape[1], kTileKeys), 1);
    const int most = int(std::clamp<int64_t>(tiles, 1, kMaxSplits));
    if (env.batch_invariant) {  // from rows alone
        best.splits = std::clamp(most / 8, 1, kMaxSplits);
        return best;
    }
    double least = -1;
    for (int splits = 1; splits <= most; ++splits) {
        Schedule plan = best;
        plan.splits = splits;
        if (splits > 1 && env.budget != 0 && plan.workspace() > env.budget) continue;
        const double cycles = cost(plan, tiles, env.device->facts());
        if (least < 0 || cycles < least) least = cycles, best.splits = splits;
    }
    return best;
}

bool aligned(const Tensor& tensor, int64_t bytes) {
    const int64_t each = dtype_bits(tensor.dtype) / 8;
    return reinterpret_cast<uintptr_t>(tensor.data) % uintptr_t(bytes) == 0 &&
           tensor.stride_elems[0] * each % bytes == 0 && tensor.stride_elems[1] * each % bytes == 0;
}

std::string refuse_records(const smla_cache& cache) {
    const CacheView view(cache);
    if (reinterpret_cast<uintptr_t>(view.data) % 16 || view.page_stride % 16 || view.row_stride % 16)
        return "primary pages and rows must be aligned to 16 bytes";
    if (cache.pages * (view.page_stride / 16) >= UINT32_MAX) return "a primary cache of 64 GiB or more";
    return "";
}

std::string refuse_sm90(const Args& args, const Env& env) {
#ifndef SMLA_CUDA_SM90A
    return "this build has no code of sm_90a";
#endif
    if (env.device->facts().capability != 90)
        return text("for sm_90, the device is sm_", env.device->facts().capability);
    if (args.primary.cache.format != SMLA_FP8_656 || args.extra.cache.format != SMLA_FORMAT_NONE)
        return "for fp8_656 records of one cache";
    if (args.precision != SMLA_PRECISION_ROUNDED) return "it rounds keys to bf16, and precision is exact";
    if (args.q.dtype != SMLA_BF16 || args.q.shape[2] != 576 || args.out.shape[2] != kValueWidth)
        return text("for bf16 queries of 576 values and 512 of out, got ", dtype_name(args.q.dtype), " of ",
                    args.q.shape[2], " and ", args.out.shape[2]);
    if (args.q.shape[1] <= kSomeHeads) return text("with up to ", kSomeHeads, " heads cuda_mma is faster");
    if (!aligned(args.q, 16) || !aligned(args.out, 16))
        return "rows of q and out must be aligned to 16 bytes";
    if (args.primary.rows.shape[1] > INT32_MAX - kTileKeys) return "primary lists more than 2^31 rows";
    return refuse_records(args.primary.cache);
}

CallPlan<Args> plan_sm90(const Args& args, const Env& env) {
    CallPlan<Args> plan = refuse_call<Args>(refuse_sm90(args, env));
    if (!plan.refusal.empty()) return plan;
    const Schedule cut = schedule_sm90(args, env);
    if (cut.blocks() > INT32_MAX) return refuse_call<Args>(text(cut.blocks(), " tasks: 2^31 or more"));
    plan.scratch = cut.workspace();
#ifdef SMLA_CUDA_SM90A
    plan.launch = [cut](const Args& call, const Env& on) { run_sm90(call, cut, on); };
#endif
    return plan;
}

}  // namespace

namespace cuda_attend {

const Candidate<Args> kSm90Attend576{.name = "cuda_sm90_attend_576", .plan = plan_sm90};

}  // namespace cuda_attend

}  // namespace smla
