// attend by wgmma on Hopper: 17 heads and more; keys of 576 or 512 values, as bf16 rows, fp8_656, fp8_528 or
// fp8_584.
//
// Math      S = Q K^T; weights P = exp2(S * scale - peak), online over tiles of 64 row-list entries;
//           O += P V, where V is the first 512 columns of K. Operands are bf16 or f16, accumulators f32.
// Operands  Rows and fp8_584 are multiplied as bf16, exactly, with P rounded to bf16. fp8_656 and fp8_528 are
//           multiplied as f16, to which the hardware converts codes: f16(code * f16(scale)). Q and P are then
//           also f16, with powers of two that keep them in range (config.h, queries.cuh); columns of rope
//           stay bf16. If f16 cannot represent a scale, the block repeats its tasks from that point with keys
//           of bf16(code * scale).
// Tile      64 heads x 64 keys. As many blocks as fit process tasks (token, split, 64 heads) with one
//           pipeline: a task's first keys are loaded during the last products of the previous task.
// Cluster   With records and more than 64 heads, two blocks share a token. Each converts half of its keys and
//           stores them in both.
// Roles
//   consumer  two warpgroups (consumer.cuh) process alternate tiles. The owner of a tile computes its scores
//             and weights. Both add its values, each for 256 columns. The order of one warpgroup: half of the
//             scores of tile t, values of t - 1 with the other's weights, the other half of the scores,
//             softmax, values of t.
//   producer  one warpgroup. latent_producer.cuh gathers records through registers, a tile ahead, and
//             converts them. row_producer.cuh copies rows by cp.async.
// Shared    config.h (Smem): queries, two stages of keys in halves of 256 columns, and a ring of three tiles
//           for columns 512 to 575, which the weights later overwrite. 226 KB: one block per multiprocessor.
// mbarriers
//   keys_full[stage][half]
//     arrive  records: each producer warp after its stores, and with a cluster the bytes of the other
//             block. fp8_584, right half: also every producer thread when its copies of rope are done.
//             rows: every producer thread when its copies are done, and for the first half each warp
//             when it has stored the validity of its keys.
//     wait    the owner of the tile.
//   keys_empty[stage][half]
//     arrive  the four warps that read values there, in both blocks of a cluster.
//     wait    producers.
//   rope_full[slot], only fp8_656
//     arrive  every producer thread when its copies are done.
//     wait    the owner of the tile.
//   queries_copied, only records
//     arrive  every thread of the warpgroup that copies the queries, when its copies are done.
//     wait    both warpgroups, which convert half of the heads each.
//   queries_full
//     arrive  records: every consumer thread, when it has converted; rows: every thread that copies.
//     wait    both warpgroups.
//   pass_done, formats in f16 without a cluster
//     arrive, wait  every thread, between a pass in f16 and one in bf16. Not a barrier of the block, because
//             each role would reach it at a different instruction, which synccheck reports as divergence.
// Proxies   cp.async writes through the generic proxy and wgmma reads through the async proxy, so a proxy
//           fence must separate them (PTX ISA, "Memory Consistency Model"). The owner of a tile executes the
//           fence after its wait for keys_full. Value products of the other warpgroup follow the fence before
//           the named barrier `weights`. The fence costs at most 1 % (H200, seven shapes).
// Named barriers (enum class Barrier)
//   weights + parity  arrive: the owner, with weights and peaks of a tile. Wait: the other warpgroup.
//   queries_read      arrive: the owner of the last tile, after its scores. Wait: the other warpgroup,
//                     which then copies the next queries.
//   statistics        both, with sums and maxima of a task.
// Registers 208 for a consumer (128 of O, 32 of S, 16 of P), 88 for a producer (32 of pending records);
//           fp8_584: 192 and 120 (64). A spill in the producer's loop costs 2 to 25 %; there is none.
// Why       Products of one warpgroup overlap the softmax of the other, and stores of keys overlap value
//           products: score products leave 6 to 14 bytes of shared memory per cycle to stores, value
//           products 47. A half of a stage is therefore freed as soon as its values are added.
// Results   docs/kernels/cuda_attend.md.
#include "engines/cuda/attend/arguments.cuh"
#include "engines/cuda/attend/sm90/epilogue.cuh"
#include "engines/cuda/attend/sm90/latent_producer.cuh"
#include "engines/cuda/attend/sm90/queries.cuh"
#include "engines/cuda/attend/sm90/row_producer.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"

namespace smla::cuda_attend::sm90 {

namespace {

template <class Format, int Cluster>
__device__ void init(uint32_t base) {
    for (uint32_t stage = 0; stage < 2; ++stage)
        for (uint32_t half = 0; half < 2; ++half) {
            // Arrivals: warps that store keys or, in the first half, their validity, and threads that copy.
            const bool warps = Format::records || stage == half,
                       copies = !Format::records || (Format::rope_tile < 8 && half == 1);
            cuda::mbarrier_init(keys_full(base, stage, half), (warps ? 4 : 0) + (copies ? kWarpgroup : 0));
            cuda::mbarrier_init(keys_empty(base, stage, half), 4 * Cluster);
        }
    for (uint32_t i = 0; i < 3; ++i) cuda::mbarrier_init(rope_full(base, i), kWarpgroup);
    cuda::mbarrier_init(base + kQueriesCopiedAt, kWarpgroup);
    cuda::mbarrier_init(base + kQueriesFullAt, Format::records ? kConsumers : kWarpgroup);
    cuda::mbarrier_init(base + kPassDoneAt, kThreads);
    cuda::store_shared(base + kOutOfRangeAt, ~0u);
    cuda::fence_mbarrier_init();
}

// Start of a pass over tasks. Tasks and tiles are numbered through both passes.
struct Start {
    int task;       // index in the grid's tasks
    uint32_t tile;  // number of the task's first tile
    uint32_t done;  // number of this block's earlier tasks
};

// Runs a consumer warpgroup through the tasks of the block. Returns the start of a following pass.
template <class Format, int Cluster>
__device__ Start consume(const Arguments& args, const Tasks& tasks, uint32_t base, Start at) {
    const int step = tasks.blocks / Cluster, last = tasks.count;
    const auto task_of = [&](int index) {
        Task task(tasks, index, kHeads * Cluster);
        task.head += Cluster == 2 ? kHeads * int(blockIdx.x % 2) : 0;
        return task;
    };
    Consumer<Format, Cluster> consumer(base, args.scale());
    if (at.task < last && consumer.group() == 1) copy_queries<Format>(args, task_of(at.task), base);
    for (; at.task < last; at.task += step, ++at.done) {
        const Task task = task_of(at.task);
        const uint32_t end = at.tile + uint32_t(TileRange(args, tasks, task).count());
        if constexpr (Format::records) convert_queries<Format>(base, at.done);
        wait_for_queries(base, at.done);
        const bool more = at.task + step < last;
        // Prefetches only for long tasks, because short tasks are no faster with prefetching.
        if (end - at.tile >= 16 && more) prefetch_queries<Format>(args, task_of(at.task + step));
        consumer.attend(at.tile, end, [&] {
            if (more) copy_queries<Format>(args, task_of(at.task + step), base);
        });
        Epilogue<Format, Cluster>(args, tasks, task, consumer, base, at.done & 1).run();
        at.tile = end;
    }
    return at;
}

// Runs a producer warp through the tasks of the block. Returns the number of the tile after the last.
template <class Format, int Cluster>
__device__ uint32_t produce(const Arguments& args, const Tasks& tasks, const KeySources& keys, uint32_t base,
                            int task, uint32_t tile) {
    if constexpr (Format::records)
        return LatentProducer<Format, Cluster>(args, tasks, keys, base, task, tile).run();
    else return RowProducer<Format>(args, tasks, keys, base).run();
}

// Returns, after a pass in f16, the task of the first tile with scales out of range, in this block or the
// other block of its cluster; tasks.count if there is none.
template <int Cluster>
__device__ int first_out_of_range(const Arguments& args, const Tasks& tasks, uint32_t base) {
    if constexpr (Cluster == 2) {
        cuda::cluster_sync();
    } else {
        cuda::mbarrier_arrive(base + kPassDoneAt);
        cuda::mbarrier_wait(base + kPassDoneAt, 0);
    }
    const uint32_t tile = cuda::load_shared(base + kOutOfRangeAt);
    if (tile == ~0u) return tasks.count;
    int index = int(blockIdx.x / Cluster);
    for (uint32_t end = 0;; index += tasks.blocks / Cluster) {
        end += uint32_t(TileRange(args, tasks, Task(tasks, index, kHeads * Cluster)).count());
        if (tile < end) return index;
    }
}

template <class Format, int Cluster>
__global__ void __launch_bounds__(kThreads, 1)
    attend_sm90(const __grid_constant__ Arguments args, const __grid_constant__ Tasks tasks,
                const __grid_constant__ KeySources keys) {
    extern __shared__ __align__(1024) char shared[];
    const uint32_t base = cuda::shared_address(shared);
    if (threadIdx.x == 0) init<Format, Cluster>(base);
    if constexpr (Cluster == 2) cuda::cluster_sync();
    else __syncthreads();
    cuda::wait_for_grid_before();
    if (tasks.splits() > 1) cuda::start_next_grid();
    const int first = int(blockIdx.x / Cluster);
    if (threadIdx.x < kConsumers) {
        cuda::raise_registers<Format::consumer_registers>();
        Start end = consume<Format, Cluster>(args, tasks, base, {first, 0, 0});
        if constexpr (Format::f16) {
            end.task = first_out_of_range<Cluster>(args, tasks, base);
            consume<typename Format::Bf16, Cluster>(args, tasks, base, end);
        }
    } else {
        cuda::lower_registers<kRegisters - 2 * Format::consumer_registers>();
        const uint32_t end = produce<Format, Cluster>(args, tasks, keys, base, first, 0);
        if constexpr (Format::f16) {
            const int again = first_out_of_range<Cluster>(args, tasks, base);
            produce<typename Format::Bf16, Cluster>(args, tasks, keys, base, again, end);
        }
    }
    if constexpr (Cluster == 2) cuda::cluster_sync();  // the other block may still store or arrive here
}

template <class Format, int Cluster>
void launch_cluster(const smla_attend_args& args, Tasks tasks, const KeySources& keys, const Env& env) {
    tasks.blocks = Cluster * std::min(tasks.count, env.device->facts().multiprocessors / Cluster);
    cuda::launch_as({.early = true, .cluster = Cluster > 1 ? Cluster : 0}, attend_sm90<Format, Cluster>,
                    tasks.blocks, kThreads, sizeof(Smem), env, Arguments(args), tasks, keys);
}

template <class Format>
void launch_records(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
                    const KeySources& keys, const Env& env) {
    if (schedule.shape->heads == 2 * kHeads) launch_cluster<Format, 2>(args, tasks, keys, env);
    else launch_cluster<Format, 1>(args, tasks, keys, env);
}

}  // namespace

void launch(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
            const KeySources& keys, const Env& env) {
    const bool wide = args.q.shape[2] == 576, records = schedule.shape->keys != KeyForm::rows;
    const auto f16 = cuda::Half::f16;
    if (records && wide) launch_records<LatentsF32<f16, true>>(args, schedule, tasks, keys, env);
    else if (args.primary.cache.format == SMLA_FP8_528)
        launch_records<LatentsF32<f16, false>>(args, schedule, tasks, keys, env);
    else if (records) launch_records<Latents584>(args, schedule, tasks, keys, env);
    else if (wide) launch_cluster<Rows<576>, 1>(args, tasks, keys, env);
    else launch_cluster<Rows<512>, 1>(args, tasks, keys, env);
}

}  // namespace smla::cuda_attend::sm90
