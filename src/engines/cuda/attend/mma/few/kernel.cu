// attend by mma.sync, 16 heads per block: keys of 576 or 512 values, as bf16 rows or fp8 records; values are
// the first 512 of a key.
//
// Math      S = Q K^T; weights P = exp2(S * scale - peak), online over tiles of 32 row-list entries; O += P
//           V. f32 accumulators; P is rounded to bf16, or to f16 with fp8 (codes.cuh), for the second
//           product.
// Tile      16 heads x 32 keys, 4 warps; a block processes one split of one token.
// Roles     every warp performs every role (roles.cuh). Score: warps divide the width of the keys; queries
//           stay in registers; partial products are summed through shared memory; each warp computes the same
//           softmax and keeps P as a left operand. Accumulate: a warp multiplies 512 / 4 columns of V.
// Shared    config.h (Smem): two stages of keys | partial products | factors | scale references | tile list.
// Pipeline  cp.async of tile i + 1 while tile i is multiplied; row numbers three tiles ahead.
// Barriers  __syncthreads twice per tile: tile i is complete and the other stage is free; partial products
//           are written. The first also protects the partial products of the previous tile.
// Registers config.h (resident): few enough for 2 or 3 blocks per multiprocessor.
// Why       memory-bound: several small blocks per multiprocessor hide each other's phases. Because warps
//           divide the width instead of the keys, each warp can keep its queries.
// Results   docs/kernels/cuda_attend.md.
#include "engines/cuda/attend/arguments.cuh"
#include "engines/cuda/attend/mma/few/roles.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"

namespace smla::cuda_attend {

namespace {

template <class T>
__global__ void __launch_bounds__(T::threads, T::resident)
    attend_few(const __grid_constant__ Arguments args, const __grid_constant__ TileScheduler scheduler) {
    extern __shared__ __align__(128) char shared[];
    cuda::wait_for_grid_before();
    WarpState<T> warp(args, shared);
    if (scheduler.splits() > 1) cuda::start_next_grid();
    main_loop<T>(warp, WorkTile(scheduler, T::heads), scheduler);

    // Epilogue: warp 0 writes statistics, and all warps write output rows. With a separate function, the
    // compiler generates different code for the rest of this kernel.
    const WorkTile work(scheduler, T::heads);
    const int lane = threadIdx.x % 32;
    float* const factors = reinterpret_cast<float*>(shared + T::factors_at);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = warp.softmax.row_sum(r), largest2 = warp.softmax.max2(r);
        const int in_block = lane / 4 + 8 * r;
        if (warp_index() == 0 && lane % 4 == 0 && work.head + in_block < args.q.shape[1])
            factors[in_block] = finish_head(args, scheduler, work, work.head + in_block, warp.softmax.any(),
                                            warp.softmax.peak2[r], largest2, sum);
    }
    __syncthreads();  // the factors are written, and no thread reads keys any more
    const uint32_t base = cuda::shared_address(shared);
    const typename T::Epilogue out{base + uint32_t(warp_index()) * T::Epilogue::bytes};
    warp.mma.write(out, first_format(args));
    out.store(args, scheduler, work, 0, base + T::factors_at, [](int c) { return WarpMma<T>::column_of(c); });
}

}  // namespace

template <int Width, KeyForm Form>
void launch_few(const smla_attend_args& args, const Schedule& schedule, const TileScheduler& scheduler,
                const Env& env) {
    using T = FewHeads<Width, Form>;
    cuda::launch_early(attend_few<T>, schedule.blocks(), T::threads, T::bytes, env, Arguments(args),
                       scheduler);
}
template void launch_few<576, KeyForm::rows>(const smla_attend_args&, const Schedule&, const TileScheduler&,
                                             const Env&);
template void launch_few<576, KeyForm::codes>(const smla_attend_args&, const Schedule&, const TileScheduler&,
                                              const Env&);
template void launch_few<512, KeyForm::rows>(const smla_attend_args&, const Schedule&, const TileScheduler&,
                                             const Env&);
template void launch_few<512, KeyForm::codes>(const smla_attend_args&, const Schedule&, const TileScheduler&,
                                              const Env&);
template void launch_few<512, KeyForm::decoded>(const smla_attend_args&, const Schedule&,
                                                const TileScheduler&, const Env&);

}  // namespace smla::cuda_attend
