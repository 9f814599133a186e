// score on Hopper: e4m3 queries and index_fp8_132 keys of 128 channels, up to 64 heads.
//
// Maths      logit[key] = scale * sum_h w_h relu(q_h . k): wgmma m64n64 with keys as rows and (query row,
// head)
//            pairs as columns, f32 accumulators. Precision rounded multiplies e4m3, exact multiplies f16.
//            relu, weight and the sum over a thread's heads in registers; 3 shuffles per 4 keys finish the
//            sum.
// Tile       128 keys, two banks of 64, x 64 columns; up to 8 steps of columns per tile.
// Roles      one warpgroup, all threads alike. The tensor cores work on one bank while the epilogue of the
//            other runs; two or three blocks per multiprocessor fill each other's gaps.
// Shared     queries, 8 KB per step (f16: 16), in tiles of wgmma | weights | requests | windows.
// Barriers   two __syncthreads, before and after the queries are loaded.
// Registers  up to 168 per thread, for three blocks (f16, or fewer than 32 heads: 255, for two).
// Why        keys go from memory to the registers of the lanes that multiply them: no stage in shared memory,
//            no barrier per tile, half the shared-memory traffic of two shared operands, and pages of any
//            size.
// Results    docs/kernels/cuda_score.md.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/score/sm90/kernel.cuh"
#include "engines/cuda/score/sm90/plan.h"

namespace smla::cuda {

namespace {

using namespace sm90;

template <Products P>
void launch_heads(const ScoreTask& task, const ScorePlan& plan, const Env& env) {
    const auto run = [&](auto* kernel) {
        launch(kernel, plan.groups * plan.splits, kThreads, plan.shared, env, task);
    };
    switch (plan.heads) {
        case 8: return run(score_sm90<8, P>);
        case 16: return run(score_sm90<16, P>);
        case 32: return run(score_sm90<32, P>);
        default: return run(score_sm90<64, P>);
    }
}

}  // namespace

void run_score_sm90(const smla_score_args& args, const ScorePart& part, const Env& env) {
    const int64_t tokens = args.q.shape[0];
    if (part.begin == part.end || tokens == 0) return;
    const bool rounded = args.precision == SMLA_PRECISION_ROUNDED;
    const DeviceFacts& device = env.device->facts();
    const ScorePlan plan(rounded ? Products::e4m3 : Products::f16,
                         {.tokens = tokens,
                          .heads = args.q.shape[1],
                          .requests = args.block_table.ndim ? args.block_table.shape[0] : 1,
                          .columns = part.end - part.begin,
                          .multiprocessors = device.multiprocessors,
                          .shared_bytes = device.shared_bytes});
    const CacheView keys(args.keys);
    const ScoreTask task{.q = args.q,
                         .w = args.w,
                         .keys = {.place = KeyColumns(args, keys),
                                  .data = keys.data,
                                  .page_stride = keys.page_stride,
                                  .row_stride = keys.row_stride,
                                  .wide = true},
                         .window = Windows(args.starts, args.ends, part.columns, part.begin, part.end),
                         .logits = part.logits,
                         .stride = part.stride,
                         .tokens = int(tokens),
                         .heads = int(args.q.shape[1]),
                         .rows = plan.rows,
                         .groups = int(plan.groups),
                         .splits = plan.splits,
                         .fill = args.fill,
                         .zero = 0};
    if (rounded) launch_heads<Products::e4m3>(task, plan, env);
    else launch_heads<Products::f16>(task, plan, env);
}

}  // namespace smla::cuda
