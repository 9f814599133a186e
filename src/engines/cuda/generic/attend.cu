// attend for every shape, format and dtype except f64, in f32 arithmetic.
//
// Math    As in the specification (ops/attend/reference.cpp), but with a running maximum instead of a second
//         pass.
// Tile    One block of 4 warps per token and head; 32 entries of the row list at a time. Each warp computes
//         the dot products of 8 entries; then each thread accumulates some channels over all 32.
// Shared  q [Dqk], weights and rows of the 32 keys, scratch: less than 5 KB.
// Why     Correct for any dimensions, but slow: each row is decoded value by value, twice for every head.
#include "engines/cuda/attend/arguments.cuh"
#include "engines/cuda/attend/run.h"
#include "engines/cuda/common/launch.cuh"

namespace smla::cuda_attend {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kGenericTileKeys = 32, kMaxWidth = 1024;
constexpr int kChannels = kMaxWidth / kThreads;  // maximum per thread

struct Shared {
    float q[kMaxWidth];
    float weights[kGenericTileKeys];  // logits, then exp(logit - peak)
    int rows[kGenericTileKeys];       // -1: masked
};

struct Running {
    float peak = -INFINITY, sum = 0, out[kChannels] = {};
    bool any = false;  // whether there was a key
};

// Writes the logits of up to 32 row-list entries to shared memory; row -1 is masked or past the list's end.
__device__ void take_logits(const Source& source, int64_t t, int64_t begin, int64_t length, int width,
                            float scale, Shared& shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int j = warp; j < kGenericTileKeys; j += kWarps) {
        const int64_t row = begin + j < length ? cuda::load_int(source.rows, t, begin + j) : -1;
        const bool hole = source.cache.hole(row);
        float dot = 0;
        for (int d = lane; d < width && !hole; d += 32) dot += shared.q[d] * source.cache.value(row, d);
        dot = cuda::warp_sum(dot);
        if (lane != 0) continue;
        shared.rows[j] = hole ? -1 : int(row);
        shared.weights[j] = scale * dot;
    }
}

__device__ void add_keys(const Source& source, int value_width, Shared& shared, Running& running) {
    float peak = running.peak;
    bool any = false;
    for (int j = 0; j < kGenericTileKeys; ++j) {
        if (shared.rows[j] < 0) continue;
        const float logit = shared.weights[j];
        if (!(logit <= peak) && peak == peak) peak = logit;  // keeps a NaN peak
        any = true;
    }
    if (!any) return;
    running.any = true;
    const float base = peak == -INFINITY ? 0.f : peak;  // makes weights of -inf logits 0
    const float shrink = running.peak == -INFINITY ? 0.f : expf(running.peak - base);
    running.peak = peak;
    running.sum *= shrink;
    for (float& out : running.out) out *= shrink;
    for (int j = 0; j < kGenericTileKeys; ++j) {
        const int row = shared.rows[j];
        if (row < 0) continue;
        const float weight = expf(shared.weights[j] - base);
        running.sum += weight;
        for (int i = 0; i < kChannels; ++i) {
            const int d = int(threadIdx.x) + i * kThreads;
            if (d < value_width) running.out[i] += weight * source.cache.value(row, d);
        }
    }
}

__global__ void __launch_bounds__(kThreads) attend_generic(const __grid_constant__ Arguments args) {
    __shared__ Shared shared;
    cuda::follow_grid_before();
    const int64_t heads = args.q.shape[1], t = blockIdx.x / heads, h = blockIdx.x % heads;
    const int width = int(args.q.shape[2]), value_width = int(args.out.shape[2]);
    for (int d = threadIdx.x; d < width; d += kThreads)
        shared.q[d] = cuda::load_value(args.q, cuda::element(args.q, t, h, d));
    const float scale = args.scale();
    Running running;
    for (const Source& source : args.sources) {
        if (source.cache.format == SMLA_FORMAT_NONE) continue;
        const int64_t length = source.length(t);
        for (int64_t begin = 0; begin < length; begin += kGenericTileKeys) {
            __syncthreads();
            take_logits(source, t, begin, length, width, scale, shared);
            __syncthreads();
            add_keys(source, value_width, shared, running);
        }
    }
    Totals totals = {0.f, -INFINITY};
    if (running.any) totals = finish(running.peak, running.sum, sink_of(args, h));
    for (int i = 0; i < kChannels; ++i) {
        const int d = int(threadIdx.x) + i * kThreads;
        if (d < value_width)
            cuda::store_value(args.out, cuda::element(args.out, t, h, d), running.out[i] * totals.factor);
    }
    if (threadIdx.x == 0) store_statistics(args, t, h, totals.lse, running.peak);
}

}  // namespace

void run_generic(const smla_attend_args& args, const Env& env) {
    cuda::launch_early(attend_generic, args.q.shape[0] * args.q.shape[1], kThreads, 0, env, Arguments(args));
}

}  // namespace smla::cuda_attend
