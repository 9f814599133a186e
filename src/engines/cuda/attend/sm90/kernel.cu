// attend by wgmma.
#include "engines/cuda/attend/sm90/epilogue.cuh"
#include "engines/cuda/attend/sm90/launch.h"
#include "engines/cuda/attend/sm90/producer.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"

namespace smla::cuda_attend::sm90 {

namespace {

template <int Cluster>
__device__ void init_barriers(uint32_t base) {
    for (uint32_t i = 0; i < 4; ++i) {
        cuda::mbarrier_init(base + kKeysFullAt + 8 * i, 4);
        cuda::mbarrier_init(base + kKeysEmptyAt + 8 * i, 4 * Cluster);
    }
    for (uint32_t i = 0; i < 3; ++i) cuda::mbarrier_init(base + kRopeFullAt + 8 * i, kWarpgroup);
    cuda::mbarrier_init(base + kQueriesFullAt, kWarpgroup);
    cuda::fence_mbarrier_init();
}

// A consumer warpgroup through all tasks of the block.
template <int Cluster>
__device__ void consume(const Arguments& args, const Tasks& tasks, uint32_t base) {
    const int step = int(gridDim.x / Cluster), last = tasks.count;
    const auto task_of = [&](int index) {
        Task task(tasks, index, kHeads * Cluster);
        task.head += Cluster == 2 ? kHeads * int(blockIdx.x % 2) : 0;
        return task;
    };
    Consumer<Cluster> consumer(base, args.scale() * kLog2E);
    uint32_t tile = 0, done = 0;
    int index = int(blockIdx.x / Cluster);
    if (index < last && consumer.group() == 1) copy_queries(args, task_of(index), base);
    for (; index < last; index += step, ++done) {
        const Task task = task_of(index);
        const uint32_t end = tile + uint32_t(TileRange(args, tasks, task).count());
        cuda::mbarrier_wait(base + kQueriesFullAt, done & 1);
        cuda::fence_async_proxy();
        consumer.attend(tile, end, [&] {
            if (index + step < last) copy_queries(args, task_of(index + step), base);
        });
        Epilogue<Cluster>(args, tasks, task, consumer, base, done & 1).run();
        tile = end;
    }
}

template <int Cluster>
__global__ void __launch_bounds__(kThreads, 1)
    attend_sm90(const __grid_constant__ Arguments args, const __grid_constant__ Tasks tasks,
                const __grid_constant__ Keys keys) {
    extern __shared__ __align__(1024) char shared[];
    const uint32_t base = cuda::shared_address(shared);
    if (threadIdx.x == 0) init_barriers<Cluster>(base);
    if constexpr (Cluster == 2) cuda::cluster_sync();
    else __syncthreads();
    if (tasks.splits() > 1) cuda::start_next_grid();
    if (threadIdx.x < kConsumers) {
        cuda::raise_registers<kConsumerRegisters>();
        consume<Cluster>(args, tasks, base);
    } else {
        cuda::lower_registers<kProducerRegisters>();
        Producer<Cluster>(args, tasks, keys, base).run();
    }
    if constexpr (Cluster == 2) cuda::cluster_sync();  // the peer may still store here and arrive here
}

template <int Cluster>
void launch_cluster(const smla_attend_args& args, const Tasks& tasks, const Keys& keys, const Env& env) {
    const auto kernel = attend_sm90<Cluster>;
    SMLA_CUDA_CALL(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(sizeof(Smem))));
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {unsigned(Cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.dynamicSmemBytes = sizeof(Smem);
    config.attrs = &cluster;
    config.numAttrs = 1;
    const int64_t clusters = std::min<int64_t>(tasks.count, env.device->facts().multiprocessors / Cluster);
    cuda::launch_with(config, kernel, clusters * Cluster, kThreads, env, Arguments(args), tasks, keys);
}

}  // namespace

void launch_records(const smla_attend_args& args, const Schedule& schedule, const Tasks& tasks,
                    const Keys& keys, const Env& env) {
    if (schedule.heads == 2 * kHeads) launch_cluster<2>(args, tasks, keys, env);
    else launch_cluster<1>(args, tasks, keys, env);
}

}  // namespace smla::cuda_attend::sm90
