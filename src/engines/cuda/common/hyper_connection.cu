// mix: two kernels. In the first a block takes kSlice channels of kTile tokens and a warp one output at a
// time, so that even one token's product with the weights (1.5 MiB for four streams of 4096) uses many SMs.
// In the second a warp per token adds the slices in order and iterates. collapse, expand: a thread per
// channel. A token's bits depend on no other token.
#include "engines/cuda/common/hyper_connection.h"

#include "core/workspace.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/values.cuh"

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kSlice = 512, kTile = 4;
constexpr int kMost = kMostHyperStreams;

struct HyperParams : HyperJob {
    int n, outputs, slices;
    int64_t tokens, hidden;
    float* partial;  // [T,slices,outputs+1]; the last output is the sum of squares
};

__global__ void __launch_bounds__(kThreads) hyper_partial_kernel(const __grid_constant__ HyperParams p) {
    __shared__ float x[kTile][kSlice];
    follow_grid_before();
    const int slice = int(blockIdx.x) % p.slices, lane = int(threadIdx.x % 32);
    const int64_t token = int64_t(blockIdx.x) / p.slices * kTile, begin = int64_t(slice) * kSlice;
    const int count = int(min(int64_t(kSlice), p.n * p.hidden - begin));
    for (int i = int(threadIdx.x); i < kTile * kSlice; i += kThreads) {
        const int t = i / kSlice, c = i % kSlice, channel = int(begin) + c, hidden = int(p.hidden);
        x[t][c] =
            token + t < p.tokens && c < count
                ? load_value(p.streams, element(p.streams, token + t, channel / hidden, channel % hidden))
                : 0.f;
    }
    __syncthreads();
    for (int o = int(threadIdx.x / 32); o <= p.outputs; o += kWarps) {
        float sum[kTile] = {};
        const bool squares = o == p.outputs;
        const float* const weights = p.fn + (squares ? 0 : o) * p.n * p.hidden + begin;
#pragma unroll 8
        for (int i = lane; i < count; i += 32) {
            const float w = weights[i];
#pragma unroll
            for (int t = 0; t < kTile; ++t) sum[t] += (squares ? x[t][i] : w) * x[t][i];
        }
#pragma unroll
        for (int t = 0; t < kTile; ++t) {
            const float all = warp_sum(sum[t]);
            if (lane == 0 && token + t < p.tokens)
                p.partial[((token + t) * p.slices + slice) * (p.outputs + 1) + o] = all;
        }
    }
}

// Row or column `lane` of c [n,n]: elements `stride` apart.
__device__ void normalise(float* line, int n, int stride, float eps) {
    float sum = eps;
    if (threadIdx.x % 32 < n) {
        for (int i = 0; i < n; ++i) sum += line[i * stride];
        const float factor = 1.f / sum;
        for (int i = 0; i < n; ++i) line[i * stride] *= factor;
    }
    __syncwarp();
}

__device__ void sinkhorn(const HyperParams& p, float* c) {
    const int lane = int(threadIdx.x % 32), n = p.n;
    float* const row = c + lane * n;
    if (lane < n) {
        float peak = -INFINITY, sum = 0;
        for (int k = 0; k < n; ++k) peak = fmaxf(peak, row[k]);
        for (int k = 0; k < n; ++k) sum += row[k] = expf(row[k] - peak);
        for (int k = 0; k < n; ++k) row[k] = row[k] / sum + p.eps;
    }
    __syncwarp();
    normalise(c + lane, n, n, p.eps);
    for (int i = 1; i < p.iterations; ++i) {
        normalise(row, n, 1, p.eps);
        normalise(c + lane, n, n, p.eps);
    }
}

__global__ void __launch_bounds__(kThreads) hyper_finish_kernel(const __grid_constant__ HyperParams p) {
    __shared__ float shared[kWarps][2 * kMost + kMost * kMost + 1];
    follow_grid_before();
    const int64_t token = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (token >= p.tokens) return;  // no block-wide barrier follows
    float* const row = shared[threadIdx.x / 32];
    const int lane = int(threadIdx.x % 32), n = p.n;
    for (int o = lane; o <= p.outputs; o += 32) {
        const float* const partial = p.partial + token * p.slices * (p.outputs + 1) + o;
        float sum = 0;
#pragma unroll 8
        for (int s = 0; s < p.slices; ++s) sum += partial[s * (p.outputs + 1)];
        row[o] = sum;
    }
    __syncwarp();
    const float factor = 1.f / sqrtf(row[p.outputs] / float(n * p.hidden) + p.norm_eps);
    for (int o = lane; o < p.outputs; o += 32) {
        const float z = row[o] * factor * p.scale[min(o / n, 2)] + p.base[o];
        const float sigmoid = 1.f / (1.f + expf(-z));
        row[o] = o < n ? sigmoid + p.eps : o < 2 * n ? 2 * sigmoid : z;
    }
    __syncwarp();
    sinkhorn(p, row + 2 * n);
    for (int o = lane; o < p.outputs; o += 32) p.rows[token * p.outputs + o] = row[o];
}

// The thread's token and channel; false past the last channel.
__device__ bool find_channel(const HyperParams& p, int64_t& token, int64_t& d) {
    const int64_t blocks = (p.hidden + kThreads - 1) / kThreads;
    token = blockIdx.x / blocks;
    d = blockIdx.x % blocks * kThreads + threadIdx.x;
    return d < p.hidden;
}

__global__ void __launch_bounds__(kThreads) hyper_collapse_kernel(const __grid_constant__ HyperParams p) {
    follow_grid_before();
    int64_t token, d;
    if (!find_channel(p, token, d)) return;
    float sum = 0;
    for (int i = 0; i < p.n; ++i)
        sum += p.rows[token * p.outputs + i] * load_value(p.streams, element(p.streams, token, i, d));
    store_value(p.block, element(p.block, token, d), sum);
}

__global__ void __launch_bounds__(kThreads) hyper_expand_kernel(const __grid_constant__ HyperParams p) {
    follow_grid_before();
    int64_t token, d;
    if (!find_channel(p, token, d)) return;
    const float* const post = p.rows + token * p.outputs + p.n;
    const float* const comb = post + p.n;
    const float y = load_value(p.block, element(p.block, token, d));
    float old[kMost];
#pragma unroll
    for (int j = 0; j < kMost; ++j)
        old[j] = j < p.n ? load_value(p.streams, element(p.streams, token, j, d)) : 0.f;
    for (int k = 0; k < p.n; ++k) {
        float sum = post[k] * y;
#pragma unroll
        for (int j = 0; j < kMost; ++j)
            if (j < p.n) sum += comb[j * p.n + k] * old[j];
        store_value(p.streams, element(p.streams, token, k, d), sum);
    }
}

}  // namespace

}  // namespace cuda

size_t hyper_bytes(int64_t tokens, int64_t n, int64_t hidden) {
    const int64_t outputs = 2 * n + n * n, slices = ceil_div(n * hidden, cuda::kSlice);
    return size_t(tokens * (outputs + slices * (outputs + 1))) * sizeof(float);
}

void hyper_connection_on_gpu(HyperStep step, const HyperJob& job, Device& device, smla_stream stream) {
    Device::Scope scope(device);
    Env env;
    env.device = &device;
    env.stream = stream;
    cuda::HyperParams p{};
    static_cast<HyperJob&>(p) = job;
    p.tokens = job.streams.shape[0], p.n = int(job.streams.shape[1]), p.hidden = job.streams.shape[2];
    p.outputs = 2 * p.n + p.n * p.n;
    p.slices = int(ceil_div(p.n * p.hidden, cuda::kSlice));
    p.partial = p.rows + p.tokens * p.outputs;
    const int64_t channels = p.tokens * ceil_div(p.hidden, cuda::kThreads);
    const auto run = [&](auto* kernel, int64_t blocks) {
        cuda::launch_early(kernel, blocks, cuda::kThreads, 0, env, p);
    };
    if (step == HyperStep::collapse) return run(cuda::hyper_collapse_kernel, channels);
    if (step == HyperStep::expand) return run(cuda::hyper_expand_kernel, channels);
    run(cuda::hyper_partial_kernel, ceil_div(p.tokens, cuda::kTile) * p.slices);
    run(cuda::hyper_finish_kernel, ceil_div(p.tokens, cuda::kWarps));
}

}  // namespace smla
