// attend by mma.sync, 32 or 64 heads per block: keys of 576 or 512 values, as bf16 rows or fp8 records;
// values are the first 512 of a key.
//
// Math      S = Q K^T; weights P = exp2(S * scale - peak), online over tiles of 16 row-list entries; O += P
//           V. f32 accumulators; P is rounded to bf16, or to f16 with fp8 (codes.cuh), for the second
//           product.
// Tile      32 or 64 heads x 16 keys; a block processes one split of one token.
// Roles (roles.cuh)
//   score            two warps for 32 heads. Each multiplies half of the width; they exchange partial
//                    products, and each computes the softmax of 16 heads and publishes their P.
//   accumulate       two value warps per score warp. Each keeps O of all heads for its share of the 512
//                    columns.
//   producer         the value warps, by cp.async of queries and key tiles.
//   epilogue         the value warps, through shared memory.
// Shared    config.h (Smem). Keys: bf16 rows, swizzled (key_tiles.cuh), or unchanged fp8 records. Initially,
//           all queries are stored after the first stage of keys; at the end, the epilogue overlaps keys and
//           queries.
// Pipeline  4 or 5 stages of keys, 2 of weights (pipeline.cuh). A quarter, half or all of the value warps, in
//           rotation, start the copy of tile t + 3 before the products with the values of t. Then tile t + 2
//           is decoded, if necessary. Score warps run one tile ahead.
// mbarriers
//   full[stage]      arrive: every copying thread when its copies are done, and one per row again when it has
//                    stored the row's byte of the mask; for records that become rows, every warp that has
//                    decoded its rows. Wait: score warps.
//   empty[stage]     arrive: every warp after its last read. Wait: producers.
//   weights full     arrive: score warps, with P of their heads. Wait: value warps, which can then also read
//                    the keys.
//   weights scored   arrive: score warps, after the products of the next tile. Wait: value warps, before O
//                    += P V.
//   weights empty    arrive: value warps, when P is in registers. Wait: score warps.
// Named barriers (enum class Barrier)
//   factors_ready    arrive: score warps, when the factors of output rows are written. Wait: value warps.
//   scores_sent      a pair of score warps: partial products are written.
//   scores_read      a pair of score warps: the partial products of the previous tile are read.
//   queries_loaded   arrive: value warps, when queries are in shared memory. Wait: score warps.
//   queries_taken    arrive: score warps, when queries are in registers. Wait: value warps.
//   score_warps      all score warps: queries are in registers; then some are spilled over their source.
// Registers 168 per thread (12 warps for 64 heads): up to 112 for queries or 128 for O.
// Why       O and Q of 64 heads fill a register file, so a scheduler has few warps, and a warp that performed
//           every role would wait in each phase. A scheduler has one warp that scores tile t + 1 and two that
//           accumulate tile t, or copy, while the first exchanges products and computes the softmax.
//           Multiplying half of the width for 32 heads instead of all of it for 16 reads each key half as
//           often, and each ldmatrix feeds four products.
// Results   docs/kernels/cuda_attend.md.
#include "engines/cuda/attend/arguments.cuh"
#include "engines/cuda/attend/mma/many/roles.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"

namespace smla::cuda_attend {

namespace {

template <class T>
__global__ void __launch_bounds__(T::threads, T::resident)
    attend_many(const __grid_constant__ Arguments args, const __grid_constant__ TileScheduler scheduler) {
    extern __shared__ __align__(128) char shared[];
    const uint32_t base = cuda::keep(cuda::shared_address(shared));
    if (threadIdx.x == 0) init_barriers<T>(base);
    if (scheduler.splits() > 1) cuda::start_next_grid();
    auto& tile_list = *reinterpret_cast<typename T::TileList*>(shared + T::tile_list_at);
    const bool scores = threadIdx.x < 32 * T::score_warps;
    const WorkTile start(scheduler, T::heads);
    if (!scores) Producer<T>::fetch_queries(args, start, base);
    // The constructor calls __syncthreads; afterwards, the mbarriers are initialized for all threads.
    const ManyTiles<T> tiles(args, tile_list, start.token, start.split(scheduler), scheduler.by_splits);
    if (scores) {
        ScoreRole<T> score(args, base);
        score.load_queries();
        score.main_loop(tiles);
        score.finish(scheduler, WorkTile(scheduler, T::heads));
        cuda::named_barrier_arrive<T::threads>(id(Barrier::factors_ready));
    } else {
        AccumulateRole<T> values(base);
        values.main_loop(tiles, first_format(args));
        cuda::named_barrier<T::threads>(id(Barrier::factors_ready));
        values.epilogue(args, scheduler, WorkTile(scheduler, T::heads));
    }
}

template <class T>
void launch_tile(const smla_attend_args& args, const Schedule& schedule, const TileScheduler& scheduler,
                 const Env& env) {
    cuda::launch(attend_many<T>, schedule.blocks(), T::threads, T::bytes, env, Arguments(args), scheduler);
}

}  // namespace

template <int Width, KeyForm Form>
void launch_many(const smla_attend_args& args, const Schedule& schedule, const TileScheduler& scheduler,
                 const Env& env) {
    if (schedule.shape->heads == kSomeHeads)
        launch_tile<ManyHeads<Width, Form, kSomeHeads>>(args, schedule, scheduler, env);
    else launch_tile<ManyHeads<Width, Form, kManyHeads>>(args, schedule, scheduler, env);
}
template void launch_many<576, KeyForm::rows>(const smla_attend_args&, const Schedule&, const TileScheduler&,
                                              const Env&);
template void launch_many<576, KeyForm::codes>(const smla_attend_args&, const Schedule&, const TileScheduler&,
                                               const Env&);
template void launch_many<512, KeyForm::rows>(const smla_attend_args&, const Schedule&, const TileScheduler&,
                                              const Env&);
template void launch_many<512, KeyForm::codes>(const smla_attend_args&, const Schedule&, const TileScheduler&,
                                               const Env&);
template void launch_many<512, KeyForm::decoded>(const smla_attend_args&, const Schedule&,
                                                 const TileScheduler&, const Env&);

}  // namespace smla::cuda_attend
