// attend on Hopper over raw records (fp8_656, fp8_528, fp8_576 or fp8_512), whose codes become operands in
// registers. The kernel processes calls of up to 32 heads, calls of more heads if tokens are few, and calls
// whose keys may not be rounded (schedule.cpp).
//
// Math      S = Q K^T; weights P = exp2(S * scale - peak), online over tiles of 64 row-list entries;
//           O += P V, where V is the first 512 columns of K. 16 heads are rows of mma.sync m16n8k16, 32 the
//           columns of wgmma m64n32k16, which multiplies the transposes: S^T = K Q^T, O^T += V^T P.
// Operands  Keys are f16(code), exactly, in both products. Scores: sums of 128 columns are multiplied by
//           their scale in f32. Rope: bf16. Values: each 128 columns have separate weights, f16(P * scale).
//           A tile with a scale above 1 or below 2^-17, with which f16 weights would overflow or lose bits,
//           multiplies code * scale as the sum of two bf16 with P in bf16. For a cache with one scale, P is
//           f16, and logits and results are multiplied by the scale.
// Tile      16, 32 or 64 heads x 64 keys. A block processes one split of one token.
// Roles
//   consumer  a warpgroup: scores, softmax and values of its tiles and heads (consumer.cuh; mma_consumer.cuh
//             multiplies 16 heads, wgmma_consumer.cuh 32). A block has two.
//             With 64 heads, each has 32, and both share only records. With 16 or 32 heads, they process
//             alternate tiles with all heads, also share queries, and add their sums at the end
//             (Epilogue::join). For 16 heads, there is also a block of one warpgroup.
//   producer  four warps (producer.cuh): one bulk copy per record, as many tiles ahead as there are stages.
// Shared    config.h (Smem): queries | weights of a tile for each consumer | two to four stages of raw
//           records. fp8_656 takes 110 KiB with one warpgroup, so that a multiprocessor runs two
//           blocks, and 199 to 204 KiB with two.
// mbarriers
//   full          of tile t: number t modulo Shape::fulls. Arrive: each producer, with its records' bytes.
//                 Wait: the tile's consumers.
//   empty[stage]  arrive: all warps that process the tile, when they have read values. Wait: producers.
// Named barriers (config.h)
//   consumer, for each warpgroup, once per tile: all weights are in shared memory. It also reports whether a
//   weight exceeded 2^15; if so, peaks rise and weights are stored again. With scales, also before the
//   weights are stored: the weights of the previous tile have been read.
//   producers, once: mbarriers are initialized. Producers do not wait for the consumers' queries.
//   start, once. Arrive: producers. Wait: consumers, with queries.
//   join, with alternate tiles: both warpgroups have finished their tiles; again, when they have stored the
//   sums that they exchange.
// Registers One warpgroup: 128 per thread at the start, then 216 of consumers (64 of O, 32 of products, 32 of
//           operands) and 40 of producers; two: 168, then 216 and 40, or 240 and 24 for 32 heads each.
// Why       Few heads are bound by memory, and by the time that a block of few tiles takes to begin and end.
//           A word of codes feeds the operands of all heads, and no converted key is stored. For 16 heads,
//           mma.sync computes no padding, and a lane stores four neighboring columns of a head: one token
//           takes 8 % less than with wgmma. A single warpgroup waits for its own products and barriers, so
//           two blocks, or two warpgroups, fill each other's gaps.
// Results   docs/kernels/cuda_attend.md.
#include "engines/cuda/attend/arguments.cuh"
#include "engines/cuda/attend/sm90/raw/epilogue.cuh"
#include "engines/cuda/attend/sm90/raw/mma_consumer.cuh"
#include "engines/cuda/attend/sm90/raw/producer.cuh"
#include "engines/cuda/attend/sm90/raw/queries.cuh"
#include "engines/cuda/attend/sm90/raw/wgmma_consumer.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"

#include <type_traits>

namespace smla::cuda_attend::sm90 {

namespace raw {

namespace {

template <class Shape>
__device__ void init(uint32_t base) {
    for (uint32_t i = 0; i < Shape::fulls; ++i)
        cuda::mbarrier_init(base + offsetof(Smem<Shape>, full) + 8 * i, kProducerWarps);
    for (uint32_t stage = 0; stage < Shape::stages; ++stage)
        cuda::mbarrier_init(base + offsetof(Smem<Shape>, empty) + 8 * stage,
                            Shape::head_parts * kWarpgroup / 32);
    for (uint32_t group = 0; group < Shape::groups; ++group)
        cuda::store_shared(
            group_at<Shape>(base, group) + uint32_t(offsetof(GroupSmem<Shape>, out_of_range_tile)),
            make_uint2(0, 0));
    cuda::fence_mbarrier_init();
}

template <class Shape>
using ConsumerOf = std::conditional_t<Shape::heads == kFewHeads, MmaConsumer<Shape>, WgmmaConsumer<Shape>>;

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::resident)
    attend_sm90_raw(const __grid_constant__ Arguments args, const __grid_constant__ Tasks tasks,
                    const __grid_constant__ KeySources keys) {
    extern __shared__ __align__(1024) char shared[];
    const uint32_t base = cuda::shared_address(shared);
    cuda::wait_for_grid_before();
    if (tasks.splits() > 1) cuda::start_next_grid();
    const Task task(tasks, int(blockIdx.x), Shape::block_heads);
    const TileRange tiles(args, tasks, task);
    if (threadIdx.x >= Shape::consumers) {
        cuda::lower_registers<Shape::producer_registers>();
        Producer<Shape> producer(args, keys.of[0], base, task.token, tiles);
        if (threadIdx.x == Shape::consumers) init<Shape>(base);
        cuda::named_barrier<Shape::threads - Shape::consumers>(kProducerBarrier);
        cuda::named_barrier_arrive<Shape::threads>(kStartBarrier);
        return producer.run();
    }
    cuda::raise_registers<Shape::consumer_registers>();
    const uint32_t group = Shape::groups == 1 ? 0 : __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
    const int first_head = Shape::head_parts == 1 ? 0 : Shape::heads * int(group);
    const float key_unit = Shape::scaled ? 1.f : args.sources[0].cache.tensor_scale();
    Queries<Shape>(args, queries_at<Shape>(base, group),
                   group_at<Shape>(base, Shape::tile_groups == 1 ? group : 0), task.token,
                   task.head + first_head, args.scale() * kLog2E * key_unit)
        .load();
    cuda::named_barrier<Shape::threads>(kStartBarrier);
    ConsumerOf<Shape> consumer(base, group);
    consumer.attend(tiles.count());
    // Computed again, because no register is free to keep it through the loop.
    Task finished(tasks, int(cuda::keep(blockIdx.x)), Shape::block_heads);
    finished.head += first_head;
    Epilogue<Shape, ConsumerOf<Shape>>(args, tasks, finished, consumer, base).run();
}

template <class Shape>
void launch_shape(const smla_attend_args& args, Tasks tasks, const KeySources& keys, const Env& env) {
    tasks.blocks = tasks.count;
    cuda::launch_early(attend_sm90_raw<Shape>, tasks.blocks, Shape::threads, sizeof(Smem<Shape>), env,
                       Arguments(args), tasks, keys);
}

template <smla_format Format>
void launch_heads(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
                  const KeySources& keys, const Env& env) {
    const int heads = schedule.shape->heads;
    if (heads == kManyHeads) launch_shape<Shape<Format, kManyHeads, 1>>(args, tasks, keys, env);
    else if (heads == kSomeHeads) launch_shape<Shape<Format, kSomeHeads, 2>>(args, tasks, keys, env);
    else if (schedule.shape->warpgroups == 2)
        launch_shape<Shape<Format, kFewHeads, 2>>(args, tasks, keys, env);
    else launch_shape<Shape<Format, kFewHeads, 1>>(args, tasks, keys, env);
}

}  // namespace

}  // namespace raw

void launch_raw(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
                const KeySources& keys, const Env& env) {
    switch (args.primary.cache.format) {
        case SMLA_FP8_656: return raw::launch_heads<SMLA_FP8_656>(args, schedule, tasks, keys, env);
        case SMLA_FP8_528: return raw::launch_heads<SMLA_FP8_528>(args, schedule, tasks, keys, env);
        case SMLA_FP8_576: return raw::launch_heads<SMLA_FP8_576>(args, schedule, tasks, keys, env);
        default:  // SMLA_FP8_512
            return raw::launch_heads<SMLA_FP8_512>(args, schedule, tasks, keys, env);
    }
}

}  // namespace smla::cuda_attend::sm90
