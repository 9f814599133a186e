// attend on Hopper: what its kernel takes, and how a call is cut.
#include "engines/cuda/attend/run.h"

#include <cmath>

namespace smla {

namespace {

using namespace cuda_attend;
using Args = smla_attend_args;

constexpr int kTileKeys = 64, kBlockHeads = 64;

// Clock cycles of an H200's multiprocessor: a tile of 64 keys, and the rest of a task.
constexpr double kTile = 3400, kTask = 12000;
// With 16 heads: a tile of each of n blocks on a multiprocessor takes kFewTile + kFewSharing * n. With 32
// there is one block.
constexpr double kFewTile = 1600, kFewSharing = 1600, kFewTask = 8000;
constexpr int kFewResident90 = 2;

double cost(const Schedule& plan, int64_t tiles, const DeviceFacts& device) {
    const double each = double(ceil_div(tiles, plan.splits)),
                 processors = std::max(1, device.multiprocessors);
    double cycles;
    if (plan.heads <= kSomeHeads) {
        const double resident = plan.heads == kFewHeads ? kFewResident90 : 1, blocks = double(plan.blocks());
        const double sharing = std::min(resident, std::ceil(blocks / processors));
        cycles = std::ceil(blocks / (processors * resident)) *
                 (kFewTask + (kFewTile + kFewSharing * sharing) * each);
    } else {
        const double clusters = std::max(1., std::floor(processors * kBlockHeads / plan.heads));
        cycles = std::ceil(double(plan.blocks()) / clusters) * (kTask + kTile * each);
    }
    if (plan.splits > 1)
        cycles += kMerge + kMergePerSplit * plan.splits + double(plan.workspace()) / kSumsPerCycle;
    return cycles;
}

bool given(const smla_attend_source& source) { return source.cache.format != SMLA_FORMAT_NONE; }

Schedule schedule_sm90(const Args& args, const Env& env) {
    const bool coded = (given(args.primary) ? args.primary : args.extra).cache.format != SMLA_ROW_BF16;
    const int64_t heads = args.q.shape[1];
    Schedule best{.heads = heads <= kFewHeads             ? kFewHeads
                           : heads <= kSomeHeads          ? kSomeHeads
                           : coded && heads > kBlockHeads ? 2 * kBlockHeads
                                                          : kBlockHeads,
                  .tokens = args.q.shape[0],
                  .all_heads = args.q.shape[1],
                  .coded = coded};
    int64_t tiles = 0;
    for (const smla_attend_source* source : {&args.primary, &args.extra})
        if (given(*source)) tiles += ceil_div(source->rows.shape[1], kTileKeys);
    const int most = int(std::clamp<int64_t>(tiles, 1, kMaxSplits));
    if (env.batch_invariant) {  // list widths alone: neither tokens nor the budget
        best.splits = std::clamp(most / 8, 1, kMaxSplits);
        best.tokens = tokens_of_a_launch(args, best.splits, env);
        return best;
    }
    const size_t room = most_workspace(args, env);
    double least = -1;
    for (int splits = 1; splits <= most; ++splits) {
        Schedule plan = best;
        plan.splits = splits;
        if (splits > 1 && plan.workspace() > room) continue;
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

std::string refuse_source(const char* name, const smla_attend_source& source) {
    if (!given(source)) return "";
    const CacheView view(source.cache);
    if (reinterpret_cast<uintptr_t>(view.data) % 16 || view.page_stride % 16 ||
        (view.format->packing == Packing::row && view.row_stride % 16))
        return text(name, " pages and rows must be aligned to 16 bytes");
    if (source.cache.pages * (view.page_stride / 8) >= UINT32_MAX)
        return text("a ", name, " cache of 32 GiB or more");  // latent_producer.cuh counts in 8 bytes
    if (source.rows.shape[1] > INT32_MAX - kTileKeys) return text(name, " lists more than 2^31 rows");
    return "";
}

// With up to 32 heads the keys' bytes and their conversion bound attend, so rows go to cuda_mma, whose copies
// are as quick.
template <int Width>
std::string refuse_few_heads(const Args& args) {
    const smla_format first = args.primary.cache.format, second = args.extra.cache.format;
    const bool one_scale = first == (Width == 512 ? SMLA_FP8_512 : SMLA_FP8_576),
               scales = first == (Width == 512 ? SMLA_FP8_528 : SMLA_FP8_656);
    if (!(one_scale || scales) || second != SMLA_FORMAT_NONE)
        return text("with up to ", kSomeHeads, " heads for ",
                    Width == 512 ? "fp8_512 or fp8_528" : "fp8_576 or fp8_656", " records of one cache");
    if (scales && args.precision != SMLA_PRECISION_ROUNDED)
        return "it rounds keys to 16 bits, and precision is exact";
    return "";
}

template <int Width>
std::string refuse_formats(const Args& args) {
    if (args.q.shape[1] <= kSomeHeads) return refuse_few_heads<Width>(args);
    const smla_format first = args.primary.cache.format, second = args.extra.cache.format;
    const auto rows = [](smla_format format) {
        return format == SMLA_ROW_BF16 || format == SMLA_FORMAT_NONE;
    };
    const auto v4 = [](smla_format format) { return format == SMLA_FP8_584 || format == SMLA_FORMAT_NONE; };
    if (rows(first) && rows(second)) return "";
    if (Width == 512 && v4(first) && v4(second)) return "";
    if (first != (Width == 512 ? SMLA_FP8_528 : SMLA_FP8_656) || second != SMLA_FORMAT_NONE)
        return Width == 512 ? "for bf16 rows, fp8_584 records, or fp8_528 records of one cache"
                            : "for bf16 rows, or fp8_656 records of one cache";
    if (args.precision != SMLA_PRECISION_ROUNDED) return "it rounds keys to 16 bits, and precision is exact";
    return "";
}

template <int Width>
std::string refuse_sm90(const Args& args, const Env& env) {
#ifndef SMLA_CUDA_SM90A
    return "this build has no code of sm_90a";
#endif
    if (env.device->facts().capability != 90)
        return text("for sm_90, the device is sm_", env.device->facts().capability);
    if (args.q.dtype != SMLA_BF16 || args.q.shape[2] != Width || args.out.shape[2] != kValueWidth)
        return text("for bf16 queries of ", Width, " values and 512 of out, got ", dtype_name(args.q.dtype),
                    " of ", args.q.shape[2], " and ", args.out.shape[2]);
    std::string refusal = refuse_formats<Width>(args);
    if (!refusal.empty()) return refusal;
    if (!aligned(args.q, 16) || !aligned(args.out, 16))
        return "rows of q and out must be aligned to 16 bytes";
    refusal = refuse_source("primary", args.primary);
    return refusal.empty() ? refuse_source("extra", args.extra) : refusal;
}

template <int Width>
CallPlan<Args> plan_sm90(const Args& args, const Env& env) {
    CallPlan<Args> plan = refuse_call<Args>(refuse_sm90<Width>(args, env));
    if (!plan.refusal.empty()) return plan;
    const Schedule cut = schedule_sm90(args, env);
    if (cut.blocks() > INT32_MAX) return refuse_call<Args>(text(cut.blocks(), " tasks: 2^31 or more"));
    plan.scratch = cut.workspace();
    plan.scratch_of_fewer = env.batch_invariant ? 0 : most_workspace(args, env);
#ifdef SMLA_CUDA_SM90A
    plan.checks_indices = cut.tokens >= args.q.shape[0];
    plan.launch = [cut](const Args& call, const Env& on) { each_launch(call, cut, on, run_sm90); };
#endif
    return plan;
}

// docs/kernels/cuda_attend.md has the times. Batch-invariant results are one kernel's.
const char* small_call(const Args& args, const Env& env) {
    constexpr int64_t kFewest = 8, kFewestOfFewHeads = 24;
    if (args.q.shape[1] <= kSomeHeads)
        return args.q.shape[1] <= kFewHeads && args.q.shape[0] < kFewestOfFewHeads && !env.batch_invariant
                   ? "with up to 16 heads and fewer than 24 tokens cuda_mma is as fast"
                   : nullptr;
    const bool small = args.q.shape[0] * ceil_div(args.q.shape[1], kBlockHeads) < kFewest;
    return small && !env.batch_invariant ? "for fewer than 8 groups of 64 heads of a token cuda_mma is faster"
                                         : nullptr;
}

}  // namespace

namespace cuda_attend {

const Candidate<Args> kSm90Attend576{
    .name = "cuda_sm90_attend_576", .plan = plan_sm90<576>, .last_resort = small_call};
const Candidate<Args> kSm90Attend512{
    .name = "cuda_sm90_attend_512", .plan = plan_sm90<512>, .last_resort = small_call};

}  // namespace cuda_attend

}  // namespace smla
