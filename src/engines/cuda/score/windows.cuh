// The window of columns that a token sees.
#pragma once

#include "engines/cuda/common/ptx/mma.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/score/run.h"

namespace smla::cuda {

struct Window {
    int begin = 0, end = 0;
    __device__ bool has(int64_t column) const { return column >= begin && column < end; }
};

// Windows of the tokens, clipped to columns [begin, end).
struct Windows {
    Windows(const smla_tensor& starts, const smla_tensor& ends, int64_t columns, int64_t begin, int64_t end)
        : starts(starts), ends(ends), columns(int(columns)), begin(int(begin)), end(int(end)) {}

    // Not clipped. An empty window has begin == end.
    __device__ Window whole(int64_t token) const {
        int first = 0, last = columns;
        if (present(starts)) first = min(max(int(load_int(starts, token)), 0), columns);
        if (present(ends)) last = min(max(int(load_int(ends, token)), 0), columns);
        return {first, max(first, last)};
    }
    __device__ Window operator()(int64_t token) const {
        const Window window = whole(token);
        const int first = max(window.begin, begin);
        return {first, max(first, min(window.end, end))};
    }

    Tensor starts, ends;
    int columns, begin, end;
};

// at: elements from the first one.
__device__ inline void store_logit(const Logits& logits, int64_t at, float value) {
    if (logits.bf16) static_cast<uint16_t*>(logits.data)[at] = uint16_t(pack_bf16(value, 0));
    else static_cast<float*>(logits.data)[at] = value;
}

// Writes -inf to the columns outside of the windows of `rows` tokens from `token` on, in part `split` of
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
