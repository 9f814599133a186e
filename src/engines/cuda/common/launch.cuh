// Launches kernels and checks the result.
#pragma once

#include "engines/candidate.h"
#include "engines/cuda/common/check.h"
#include "engines/cuda/common/ptx/grid.cuh"

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace smla::cuda {

// Returns the blocks along x, at most 2^31 - 1.
inline unsigned grid_of(int64_t blocks) {
    if (blocks > INT32_MAX)
        fail(SMLA_UNSUPPORTED, "args", text("a grid of ", blocks, " blocks"), "at most 2^31 - 1");
    return unsigned(blocks);
}

// Allows a kernel's blocks this much shared memory; 48 KB need no permission. Calls the driver once per
// kernel and device, because each call takes 2 us on an H200's host.
inline void allow_shared(const void* kernel, size_t bytes, const Env& env) {
    if (bytes <= 48 * 1024) return;
    static std::mutex mutex;
    static std::map<std::pair<const void*, int32_t>, size_t> allowed;
    const std::lock_guard lock(mutex);
    size_t& most = allowed[{kernel, env.device->index()}];
    if (bytes <= most) return;
    SMLA_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
    most = bytes;
}

// Allows clusters of more than kPortableCluster blocks; calls the driver as often as allow_shared().
constexpr int kPortableCluster = 8;
inline void allow_wide_clusters(const void* kernel, const Env& env) {
    static std::mutex mutex;
    static std::set<std::pair<const void*, int32_t>> allowed;
    const std::lock_guard lock(mutex);
    if (!allowed.insert({kernel, env.device->index()}).second) return;
    SMLA_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
}

struct LaunchOptions {
    // Programmatic dependent launch, for a kernel that calls wait_for_grid_before() (ptx/grid.cuh) before it
    // accesses memory. On sm_90 and later the kernel starts before the previous kernel has ended.
    bool early = false;
    // Blocks of a cluster, which divide the blocks of the grid; 0 means no clusters. Requires sm_90.
    int cluster = 0;
};

// Launches every kernel. Checks the result of the launch, not cudaGetLastError(), which may return an older
// error of the caller.
template <class... Params, class... Given>
void launch_as(const LaunchOptions& options, void (*kernel)(Params...), int64_t blocks, int threads,
               size_t shared_bytes, const Env& env, const Given&... given) {
    if (blocks == 0) return;
    allow_shared(reinterpret_cast<const void*>(kernel), shared_bytes, env);
    if (options.cluster > kPortableCluster) allow_wide_clusters(reinterpret_cast<const void*>(kernel), env);
    cudaLaunchAttribute attributes[2]{};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid_of(blocks));
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream_of(env.stream);
    config.attrs = attributes;
    if (options.early && env.device->facts().capability >= 90) {
        cudaLaunchAttribute& early = attributes[config.numAttrs++];
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
    }
    if (options.cluster > 0) {
        cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {unsigned(options.cluster), 1, 1};
    }
    SMLA_CUDA_CALL(cudaLaunchKernelEx(&config, kernel, given...));
    if (env.launched) *env.launched = true;
}

template <class... Params, class... Given>
void launch(void (*kernel)(Params...), int64_t blocks, int threads, size_t shared_bytes, const Env& env,
            const Given&... given) {
    launch_as({}, kernel, blocks, threads, shared_bytes, env, given...);
}

template <class... Params, class... Given>
void launch_early(void (*kernel)(Params...), int64_t blocks, int threads, size_t shared_bytes, const Env& env,
                  const Given&... given) {
    launch_as({.early = true}, kernel, blocks, threads, shared_bytes, env, given...);
}

// Launches early a kernel that begins with GridOrder::start(), and obeys `Env::beside`.
template <class... Params, class... Given>
void launch_ordered(int cluster, void (*kernel)(GridOrder, Params...), int64_t blocks, int threads,
                    size_t shared_bytes, const Env& env, const Given&... given) {
    if (blocks == 0) return;
    const bool beside = env.beside && env.device->facts().capability >= 90;
    launch_as({.early = true, .cluster = cluster}, kernel, blocks + (beside ? std::max(cluster, 1) : 0),
              threads, shared_bytes, env, GridOrder{beside ? grid_of(blocks) : 0}, given...);
}
template <class... Params, class... Given>
void launch_ordered(void (*kernel)(GridOrder, Params...), int64_t blocks, int threads, size_t shared_bytes,
                    const Env& env, const Given&... given) {
    launch_ordered(0, kernel, blocks, threads, shared_bytes, env, given...);
}

}  // namespace smla::cuda
