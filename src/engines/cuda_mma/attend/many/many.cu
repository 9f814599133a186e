// attend by mma.sync for 64 and for 32 heads, for keys of 576 or 512 values and values of 512: bf16 rows or
// fp8 records.
//
// Maths:  S = Q K^T; weights = exp2(S * scale - peak), running over tiles of 16 listed rows; O += weights V;
//         V is the first 512 values of K. f32 sums; weights are rounded, to bf16 or to f16 (codes.cuh), for
//         the second product.
// Tile:   64 or 32 heads x 16 keys. One token per block, a split of its rows each.
// Roles:  two score warps for every 32 heads: each has half of the width of their queries, some steps in
//         registers (tile.cuh: q_steps of k_steps), they exchange products, and each weighs 16 heads
//         (score.cuh). Two value warps for every score warp: each has all heads and a share of the 512
//         columns as sums in registers (values.cuh); together they copy the rows (maker.cuh). What they
//         multiply: rows.cuh, records.cuh.
// Shared: buffers: keys [16, width] bf16 (swizzled, fill.cuh) or [16] records as they are | other steps of
//         queries | products exchanged | weights, twice | factors, at first largest queries | news |
//         mbarriers | masks of holes | scales of values | row numbers; tile.cuh. At most 99 KB. At first all
//         queries lie behind the first buffer (queries.cuh), at the end sums of 16 heads where keys and
//         queries do (WayOut).
// Stages: cp.async of tile t + 3 begins before the values of t, by a quarter of the value warps, half of them
//         or all.
// Barriers:
//   full[b]               who copies arrives once its copies are done, and one thread per row when it has
//                         stored the row's byte of the mask; score warps wait
//   empty[b]              every warp arrives after its last read of b; who writes waits
//   weights full[2]       score warps arrive with the weights of their heads; value warps wait, and then see
//                         the keys too
//   scored[2]             score warps arrive after the products of the next tile; value warps wait before
//                         they add this one
//   weights empty[2]      value warps arrive when they have them in registers; score warps wait
//   1                     named: score warps arrive when factors of their heads are there, value warps wait
//   2 + pair              named, 64 threads: products to exchange are there
//   4 + pair              named, 64 threads: what was exchanged before is read
//   8                     named: value warps arrive when they have brought the queries, score warps wait
//   9                     named: score warps arrive when they have them in registers, value warps wait
//   10                    named, score warps: the same; some go to their place where others lay
// Why:    sums and queries of 64 heads fill a register file, so a scheduler has few warps, and a warp that
//         does everything stands still in each phase's latency. Here a scheduler has one warp that scores
//         tile t + 1, and two that add the values of t while that one exchanges and weighs, or copy. The 168
//         registers per thread that 12 warps have suffice for either role: 112 of queries (for fp8
//         half of it, and more sums) or 128 of sums. Half of the width for 32 heads and not all of it for 16
//         reads each key half as often, and each ldmatrix feeds four products.
// Prediction and results: docs/kernels/cuda_attend.md.
#include "engines/cuda_common/launch.cuh"
#include "engines/cuda_common/ptx/grid.cuh"
#include "engines/cuda_mma/attend/many/score.cuh"
#include "engines/cuda_mma/attend/many/values.cuh"

namespace smla::cuda_attend {

namespace {

template <class T>
__global__ void __launch_bounds__(T::threads, T::resident)
    attend_many(const __grid_constant__ Arguments args, const __grid_constant__ Cut cut) {
    extern __shared__ __align__(128) char shared[];
    const uint32_t base = cuda::keep(cuda::shared_address(shared));
    if (threadIdx.x == 0) init_barriers<T>(base);
    if (cut.splits() > 1) cuda::start_next_grid();
    auto& board = *reinterpret_cast<Board<T::keys, T::row_slots>*>(shared + T::board_at);
    const bool scores = threadIdx.x < 32 * T::score_warps;
    const Place start(cut, T::heads);
    if (!scores) Maker<T>::fetch_queries(args, start, base);
    // meets all threads: the mbarriers are there
    const ManyTiles<T> tiles(args, board, start.token, start.split(cut), cut.by_splits);
    if (scores) {
        Scorer<T> scorer(args, base);
        scorer.load_queries();
        scorer.walk(tiles);
        scorer.finish(cut, Place(cut, T::heads));
        cuda::named_barrier_arrive<T::threads>(1);  // factors are there
    } else {
        Values<T> values(base);
        values.walk(tiles, any_format(args));
        cuda::named_barrier<T::threads>(1);
        values.store(args, cut, Place(cut, T::heads));
    }
}

template <class T>
void launch_tile(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env) {
    cuda::launch(attend_many<T>, schedule.blocks(), T::threads, T::bytes, env, Arguments(args), cut);
}

}  // namespace

template <int Width, bool Coded>
void launch_many(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env) {
    if (schedule.heads == kSomeHeads)
        launch_tile<ManyHeads<Width, Coded, kSomeHeads>>(args, schedule, cut, env);
    else launch_tile<ManyHeads<Width, Coded, kManyHeads>>(args, schedule, cut, env);
}
template void launch_many<576, false>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);
template void launch_many<576, true>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);
template void launch_many<512, false>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);
template void launch_many<512, true>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);

}  // namespace smla::cuda_attend
