// merge: combines partial results of disjoint row lists by their lse; one block per token and head.
//
// Math    As in the specification (ops/merge/reference.cpp): weights relative to the largest lse; the sink
//         enters the denominator; empty partials, whose lse is -inf or +inf, are never read.
// Tile    128 threads; each sums some channels over the partials, in order.
// Shared  One float per warp. Every thread recomputes the weights, because partials are few.
// Limit   The bytes of the partials, which are read once.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/generic/generic.h"

namespace smla::cuda_merge {

namespace {

using cuda::Tensor;

constexpr int kThreads = 128;

struct Arguments {
    Tensor partials, lse, sink, out, lse_out;
    float unit;  // unit of lse and lse_out, in nats
};

struct Weights {
    float peak = -INFINITY, lse = -INFINITY, factor = 0;
};

// Returns the lse of a partial, or -inf if it is empty.
__device__ float lse_of(const Arguments& args, int64_t part, int64_t t, int64_t h) {
    const float lse = cuda::load_value(args.lse, cuda::element(args.lse, part, t, h));
    return lse == INFINITY ? -INFINITY : lse * args.unit;
}

__device__ Weights weigh(const Arguments& args, int64_t t, int64_t h) {
    const int64_t parts = args.partials.shape[0];
    Weights out;
    for (int64_t i = 0; i < parts; ++i) {
        const float lse = lse_of(args, i, t, h);
        if (!(lse <= out.peak) && out.peak == out.peak) out.peak = lse;  // keeps a NaN peak
    }
    if (out.peak == -INFINITY) return out;  // no partial has a key, so out is 0 with any sink
    float sum = 0;
    for (int64_t i = 0; i < parts; ++i) {
        const float lse = lse_of(args, i, t, h);
        sum += lse == -INFINITY ? 0.f : expf(lse - out.peak);
    }
    out.lse = out.peak + logf(sum);
    const float sink =
        cuda::present(args.sink) ? cuda::load_value(args.sink, cuda::element(args.sink, h)) : -INFINITY;
    if (sink == INFINITY) return out;
    // if sink > peak, numerator and denominator are scaled by exp(peak - sink), which cannot overflow
    const float above = sink > out.peak ? sink - out.peak : 0.f;
    out.factor = expf(-above) / (sum * expf(-above) + expf(sink - out.peak - above));
    return out;
}

__global__ void __launch_bounds__(kThreads) merge_generic(const __grid_constant__ Arguments args) {
    cuda::follow_grid_before();
    const int64_t heads = args.partials.shape[2], t = blockIdx.x / heads, h = blockIdx.x % heads;
    const Weights weights = weigh(args, t, h);
    for (int64_t d = threadIdx.x; d < args.partials.shape[3]; d += kThreads) {
        float out = 0;
        for (int64_t i = 0; i < args.partials.shape[0]; ++i) {
            const float lse = lse_of(args, i, t, h);
            if (lse == -INFINITY) continue;  // empty partials are never read
            const float weight = expf(lse - weights.peak) * weights.factor;
            out += weight * cuda::load_value(args.partials, cuda::element(args.partials, i, t, h, d));
        }
        cuda::store_value(args.out, cuda::element(args.out, t, h, d), out);
    }
    if (threadIdx.x == 0 && cuda::present(args.lse_out))
        cuda::store_value(args.lse_out, cuda::element(args.lse_out, t, h), weights.lse / args.unit);
}

}  // namespace

void run_generic(const smla_merge_args& args, const Env& env) {
    const float unit = args.lse_base == SMLA_LSE_LOG2 ? 0.6931471805599453f : 1.f;
    const Arguments arguments{.partials = args.partials,
                              .lse = args.lse,
                              .sink = args.sink,
                              .out = args.out,
                              .lse_out = args.lse_out,
                              .unit = unit};
    cuda::launch_early(merge_generic, args.partials.shape[1] * args.partials.shape[2], kThreads, 0, env,
                       arguments);
}

}  // namespace smla::cuda_merge
