// Hyper-connections (layers/mhc.h) on a GPU, in f32. Allocates nothing and does not wait.
#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace smla {

constexpr int kMostHyperStreams = 8;

struct HyperJob {
    const float *fn, *base, *scale;  // [2n+n*n,n*hidden], [2n+n*n], [3]
    Tensor streams;                  // [T,n,hidden], any float but f64
    Tensor block;                    // [T,hidden], the same; out of collapse, y of expand
    float* rows;                     // [T,2n+n*n] pre, post, comb; behind them partial sums
    int32_t iterations;
    float norm_eps, eps;
};

enum class HyperStep { mix, collapse, expand };

size_t hyper_bytes(int64_t tokens, int64_t n, int64_t hidden);  // of rows and partial sums
void hyper_connection_on_gpu(HyperStep step, const HyperJob& job, Device& device, smla_stream stream);

}  // namespace smla
