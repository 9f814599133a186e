// attend on Hopper: what its two kernels take, which of them takes a call first, and how a call is cut.
#include "engines/cuda/attend/run.h"

#include <cmath>

namespace smla {

namespace {

using namespace cuda_attend;
using Args = smla_attend_args;

constexpr int kTileKeys = 64, kBlockHeads = 64;

// Clock cycles of an H200's multiprocessor, fitted to times of 1 to 512 tokens of 16 to 128 heads over
// fp8_656 (docs/kernels/log/cuda_attend.md, 2026-11-26 to 29). A task takes `task` and its steps. A step is a
// tile of 64 keys, or two tiles if two warpgroups take them in turn. It takes `tile + sharing * n` with n
// blocks on a multiprocessor, and at least `full` times the share of the multiprocessors that are busy: they
// share memory.
struct Costs {
    double task, tile, sharing, full;
};
constexpr Costs kFewCosts = {4700, 240, 2260, 3090}, kFewInTurnCosts = {3900, 4430, 0, 5270},
                kSomeCosts = {10620, 5120, 0, 5710}, kRaw64Costs = {11400, 5040, 0, 5440};
// 64 heads per block, keys stored as 16 bits: of rows and fp8_584, and of records with f32 scales.
constexpr Costs kManyCosts = {12000, 3400, 0, 0}, kManyScaledCosts = {19000, 4150, 0, 0};
constexpr int kFewResident90 = 2;

const Costs& costs_of(const Schedule& plan, bool f32_scales) {
    if (!plan.raw) return f32_scales ? kManyScaledCosts : kManyCosts;
    if (plan.heads == kFewHeads) return plan.tile_groups == 2 ? kFewInTurnCosts : kFewCosts;
    return plan.heads == kSomeHeads ? kSomeCosts : kRaw64Costs;
}

double cost(const Schedule& plan, int64_t tiles, bool f32_scales, const DeviceFacts& device) {
    const Costs& costs = costs_of(plan, f32_scales);
    const double resident = plan.heads == kFewHeads && plan.tile_groups == 1 ? kFewResident90 : 1,
                 blocks = double(plan.blocks());
    const int processors = std::max(1, device.multiprocessors);
    // 128 heads take a cluster of two multiprocessors
    const double units = plan.heads <= kBlockHeads ? processors : std::max(1, processors / 2);
    const double sharing = std::min(resident, std::ceil(blocks / units)),
                 step = std::max(costs.tile + costs.sharing * sharing,
                                 costs.full * std::min(1.0, blocks / units));
    // Two warpgroups with a tile each wait for both tiles' records: that takes as long as three tiles.
    const double least = plan.tile_groups == 1 ? 1 : 3,
                 steps = std::max(least, double(ceil_div(tiles, int64_t(plan.splits)))) / plan.tile_groups;
    double cycles = std::ceil(blocks / (units * resident)) * (costs.task + step * steps);
    if (plan.splits > 1)
        cycles += kMerge + kMergePerSplit * plan.splits + double(plan.workspace()) / kSumsPerCycle;
    return cycles;
}

bool given(const smla_attend_source& source) { return source.cache.format != SMLA_FORMAT_NONE; }

smla_format format_of(const Args& args) {
    return (given(args.primary) ? args.primary : args.extra).cache.format;
}
bool has_f32_scales(smla_format format) { return format == SMLA_FP8_656 || format == SMLA_FP8_528; }

int64_t tiles_of(const Args& args) {  // of a token's lists
    int64_t tiles = 0;
    for (const smla_attend_source* source : {&args.primary, &args.extra})
        if (given(*source)) tiles += ceil_div(source->rows.shape[1], kTileKeys);
    return tiles;
}

struct Estimate {
    Schedule schedule;
    double cycles = -1;  // of batch-invariant calls not estimated
};

// The best splits for so many heads per block, or those of batch-invariant calls.
Estimate estimate(int heads, bool raw, const Args& args, const Env& env, int tile_groups = 1) {
    const smla_format format = format_of(args);
    Estimate best{.schedule = {.heads = heads,
                               .tokens = args.q.shape[0],
                               .all_heads = args.q.shape[1],
                               .coded = format != SMLA_ROW_BF16,
                               .raw = raw,
                               .tile_groups = tile_groups}};
    const int64_t tiles = tiles_of(args);
    const int most = int(std::clamp<int64_t>(tiles, 1, kMaxSplits));
    if (env.batch_invariant) {  // list widths alone: neither tokens nor the budget
        best.schedule.splits = std::clamp(most / 8, 1, kMaxSplits);
        best.schedule.tokens = tokens_of_a_launch(args, best.schedule.splits, env);
        return best;
    }
    const size_t room = most_workspace(args, env);
    for (int splits = 1; splits <= most; ++splits) {
        Schedule plan = best.schedule;
        plan.splits = splits;
        if (splits > 1 && plan.workspace() > room) continue;
        const double cycles = cost(plan, tiles, has_f32_scales(format), env.device->facts());
        if (best.cycles < 0 || cycles < best.cycles) best = {plan, cycles};
    }
    return best;
}

// The kernel that stores keys as 16 bits, with 64 heads per block.
Estimate estimate_many(const Args& args, const Env& env) {
    const bool clusters = format_of(args) != SMLA_ROW_BF16 && args.q.shape[1] > kBlockHeads;
    return estimate(clusters ? 2 * kBlockHeads : kBlockHeads, false, args, env);
}
// The kernel of raw records, with 16, 32 or 64 heads per block.
Estimate estimate_few(const Args& args, const Env& env) {
    const int64_t heads = args.q.shape[1];
    struct Block {
        int heads, tile_groups;
    };
    constexpr Block kBlocks[] = {{kBlockHeads, 1}, {kSomeHeads, 2}, {kFewHeads, 1}, {kFewHeads, 2}};
    const int most = heads <= kFewHeads ? kFewHeads : heads <= kSomeHeads ? kSomeHeads : kBlockHeads;
    Estimate best;
    for (const auto [of_block, tile_groups] : kBlocks) {
        if (of_block > most) continue;
        const Estimate other = estimate(of_block, true, args, env, tile_groups);
        if (env.batch_invariant) return other;
        if (best.cycles < 0 || other.cycles < best.cycles) best = other;
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

// Rows are bound by their bytes where heads are few, so they go to cuda_mma, whose copies are as quick.
template <int Width>
std::string refuse_few(const Args& args) {
    const smla_format first = args.primary.cache.format;
    const bool one_scale = first == (Width == 512 ? SMLA_FP8_512 : SMLA_FP8_576),
               f32_scales = first == (Width == 512 ? SMLA_FP8_528 : SMLA_FP8_656);
    if (!(one_scale || f32_scales) || given(args.extra))
        return Width == 512 ? "for fp8_512 or fp8_528 records of one cache"
                            : "for fp8_576 or fp8_656 records of one cache";
    return "";
}

template <int Width>
std::string refuse_many(const Args& args) {
    if (args.q.shape[1] <= kSomeHeads) return text("for more than ", kSomeHeads, " heads");
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

// What both kernels ask for.
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
    if (!aligned(args.q, 16) || !aligned(args.out, 16))
        return "rows of q and out must be aligned to 16 bytes";
    const std::string refusal = refuse_source("primary", args.primary);
    return refusal.empty() ? refuse_source("extra", args.extra) : refusal;
}

CallPlan<Args> plan_of(const Args& args, const Env& env, const Schedule& cut) {
    if (cut.blocks() > INT32_MAX) return refuse_call<Args>(text(cut.blocks(), " tasks: 2^31 or more"));
    CallPlan<Args> plan;
    plan.scratch = cut.workspace();
    plan.scratch_of_fewer = env.batch_invariant ? 0 : most_workspace(args, env);
#ifdef SMLA_CUDA_SM90A
    plan.checks_indices = cut.tokens >= args.q.shape[0];
    plan.rotates_out = cut.splits > 1;
    plan.launch = [cut](const Args& call, const Env& on) { each_launch(call, cut, on, run_sm90); };
#endif
    return plan;
}

template <int Width>
CallPlan<Args> plan_few(const Args& args, const Env& env) {
    std::string refusal = refuse_sm90<Width>(args, env);
    if (refusal.empty()) refusal = refuse_few<Width>(args);
    return refusal.empty() ? plan_of(args, env, estimate_few(args, env).schedule)
                           : refuse_call<Args>(refusal);
}
template <int Width>
CallPlan<Args> plan_many(const Args& args, const Env& env) {
    std::string refusal = refuse_sm90<Width>(args, env);
    if (refusal.empty()) refusal = refuse_many<Width>(args);
    return refusal.empty() ? plan_of(args, env, estimate_many(args, env).schedule)
                           : refuse_call<Args>(refusal);
}

// Whether keys stored as 16 bits come first for a call that both kernels take. Batch-invariant results are
// one kernel's, whatever the tokens.
template <int Width>
bool many_comes_first(const Args& args, const Env& env) {
    return refuse_many<Width>(args).empty() &&
           (env.batch_invariant || estimate_many(args, env).cycles < estimate_few(args, env).cycles);
}
template <int Width>
const char* last_resort_few(const Args& args, const Env& env) {
    if (!many_comes_first<Width>(args, env)) return nullptr;
    return env.batch_invariant
               ? "batch-invariant results of more than 32 heads are those of keys stored as 16 bits"
               : "for so many tokens and heads keys stored as 16 bits are faster";
}
// With 64 heads per block a tile takes half of what cuda_mma takes, and the rest of a task more. Calls with
// so many tiles are the faster ones here, as measured on an H200 with 1 to 32 tokens of 64 and 128 heads.
constexpr int64_t kFewestTilesOfRows = 120, kFewestTilesOfRecords = 400;

template <int Width>
const char* last_resort_many(const Args& args, const Env& env) {
    if (env.batch_invariant) return nullptr;
    if (refuse_few<Width>(args).empty())
        return many_comes_first<Width>(args, env) ? nullptr : "for so few tokens raw records are faster";
    const int64_t tiles = args.q.shape[0] * ceil_div(args.q.shape[1], kBlockHeads) * tiles_of(args);
    return tiles < (format_of(args) == SMLA_ROW_BF16 ? kFewestTilesOfRows : kFewestTilesOfRecords)
               ? "for so few tokens and rows cuda_mma is faster"
               : nullptr;
}

}  // namespace

namespace cuda_attend {

const Candidate<Args> kSm90FewAttend576{
    .name = "cuda_sm90_few_attend_576", .plan = plan_few<576>, .last_resort = last_resort_few<576>};
const Candidate<Args> kSm90FewAttend512{
    .name = "cuda_sm90_few_attend_512", .plan = plan_few<512>, .last_resort = last_resort_few<512>};
const Candidate<Args> kSm90Attend576{
    .name = "cuda_sm90_attend_576", .plan = plan_many<576>, .last_resort = last_resort_many<576>};
const Candidate<Args> kSm90Attend512{
    .name = "cuda_sm90_attend_512", .plan = plan_many<512>, .last_resort = last_resort_many<512>};

}  // namespace cuda_attend

}  // namespace smla
