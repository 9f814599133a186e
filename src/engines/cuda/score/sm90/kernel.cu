// score on Hopper, 128 channels: e4m3 queries and index_fp8_132 keys, up to 64 heads; e2m1 queries and
// index_mxfp4_68 keys, 32 or 64 heads.
//
// Math       logit[key] = scale * sum_h w_h relu(q_h . k): wgmma with keys as rows and (query row, head)
//            pairs as columns, f32 accumulators. Precision rounded multiplies e4m3, exact multiplies f16,
//            mxfp4 always multiplies bf16. Relu, weights and the sum over a thread's heads are in registers;
//            3 shuffles per 4 logits finish the sum.
// Tile       64 keys per warpgroup x steps of 64 or 128 columns.
// Roles      4 warpgroups multiply a tile each; the 4 warps of a fifth copy, each for one of them.
// Shared     Per warpgroup 2 or 4 stages of raw keys | weights | requests | windows | queries, 8 KB per 64
//            columns (f16: 16), in tiles of wgmma.
// Barriers   Full and empty mbarriers per stage (keys.cuh). All threads wait for the windows, and threads
//            that multiply for the queries.
// Registers  96 per thread at launch, then 112 for threads that multiply and 32 for threads that copy.
// Why        Keys as a register operand need half the shared-memory traffic of two shared operands and no
//            swizzle, so bulk copies load pages unchanged, once for up to 16 rows of 64 heads. wgmma never
//            overlaps with other instructions, so the number of instructions per product matters.
// Results    docs/kernels/cuda_score.md.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/score/sm90/kernel.cuh"
#include "engines/cuda/score/sm90/plan.h"

#include <bit>

namespace smla::cuda {

namespace {

using namespace sm90;

template <int Heads>
void launch_shape(Products products, const ScoreTask& task, const ScorePlan& plan, const Env& env) {
    const auto run = [&](auto* kernel) {
        launch(kernel, plan.groups * plan.splits, kThreads, plan.shared, env, task);
    };
    constexpr auto e4m3 = Products::e4m3, f16 = Products::f16, bf16 = Products::bf16;
    if constexpr (Heads >= kWideHeads) {
        const bool deep = plan.stages == 4;
        if (products == bf16) return run(score_sm90<Shape<Heads, bf16, 64, 4>>);
        if (products == f16 && deep) return run(score_sm90<Shape<Heads, f16, 64, 4>>);
        if (products == e4m3 && plan.columns == 64) return run(score_sm90<Shape<Heads, e4m3, 64, 4>>);
        if (products == e4m3 && deep) return run(score_sm90<Shape<Heads, e4m3, 128, 4>>);
        if (products == e4m3) return run(score_sm90<Shape<Heads, e4m3, 128, 2>>);
    } else if (products == e4m3) {
        return run(score_sm90<Shape<Heads, e4m3, 64, 2>>);
    }
    run(score_sm90<Shape<Heads, f16, 64, 2>>);
}

int page_shift(const smla_score_args& args, const CacheView& keys) {
    const bool paged = args.block_table.ndim != 0;
    if (!paged && keys.pages == 1) return 31;  // column j is row j of the page
    const auto tokens = uint32_t(paged ? keys.page_tokens : keys.page_rows);
    return std::has_single_bit(tokens) ? std::countr_zero(tokens) : -1;
}

}  // namespace

void run_score_sm90(const smla_score_args& args, const ScorePart& part, const Env& env) {
    const int64_t tokens = args.q.shape[0];
    if (part.begin == part.end || tokens == 0) return;
    const Products products = products_of(args);
    const DeviceFacts& device = env.device->facts();
    const ScorePlan plan(products, {.tokens = tokens,
                                    .heads = args.q.shape[1],
                                    .rows_of_request = rows_of_request(args, part),
                                    .columns = part.end - part.begin,
                                    .multiprocessors = device.multiprocessors,
                                    .shared_bytes = device.shared_bytes});
    const CacheView keys(args.keys);
    const int64_t stride_bytes = part.logits.stride * (part.logits.bf16 ? 2 : 4);
    const ScoreTask task{.q = args.q,
                         .q_scales = args.q_scales,
                         .w = args.w,
                         .keys = {.place = KeyColumns(args, keys),
                                  .data = keys.data,
                                  .page_stride = keys.page_stride,
                                  .row_stride = keys.row_stride,
                                  .wide = true},
                         .window = Windows(args.starts, args.ends, part.columns, part.begin, part.end),
                         .logits = part.logits,
                         .stride_bytes = stride_bytes,
                         .two_strides = 2 * stride_bytes,
                         .tokens = int(tokens),
                         .heads = int(args.q.shape[1]),
                         .rows = plan.rows,
                         .groups = int(plan.groups),
                         .splits = plan.splits,
                         .fill = args.fill,
                         .by_splits = Divisor(uint64_t(plan.splits)),
                         .page_shift = page_shift(args, keys)};
    switch (plan.heads) {
        case 8: return launch_shape<8>(products, task, plan, env);
        case 16: return launch_shape<16>(products, task, plan, env);
        case 32: return launch_shape<32>(products, task, plan, env);
        default: return launch_shape<64>(products, task, plan, env);
    }
}

}  // namespace smla::cuda
