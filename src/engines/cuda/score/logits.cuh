// Stores of logits as f32 or bf16, with -inf outside of windows.
#pragma once

#include "engines/cuda/common/ptx/mma.cuh"
#include "engines/cuda/score/run.h"
#include "engines/cuda/score/windows.cuh"

namespace smla::cuda {

__device__ inline uint16_t to_bf16(float value) { return uint16_t(pack_bf16(value, 0)); }

// Stores a logit `at` elements after the first one.
__device__ inline void store_logit(const Logits& logits, int64_t at, float value) {
    if (logits.bf16) static_cast<uint16_t*>(logits.data)[at] = to_bf16(value);
    else static_cast<float*>(logits.data)[at] = value;
}

// Writes -inf to the columns outside of the windows of `rows` tokens starting at `token`, in part `split` of
// `splits` of all columns. Logits begin at the call's first token and column all.begin.
template <int Threads>
__device__ inline void fill_outside(const Windows& all, const Logits& logits, int64_t token, int rows,
                                    int split, int splits) {
    const int64_t length = all.end - all.begin;
    const int first = all.begin + int(length * split / splits);
    const int last = all.begin + int(length * (split + 1) / splits);
    for (int row = 0; row < rows; ++row) {
        const Window window = all(token + row);
        const int64_t at = (token + row) * logits.stride - all.begin;
        const bool empty = window.begin == window.end;
        const int before = empty ? last : min(window.begin, last),
                  after = empty ? last : max(window.end, first);
        for (int j = first + int(threadIdx.x); j < before; j += Threads)
            store_logit(logits, at + j, -INFINITY);
        for (int j = after + int(threadIdx.x); j < last; j += Threads) store_logit(logits, at + j, -INFINITY);
    }
}

}  // namespace smla::cuda
