// The window of columns that a token sees.
#pragma once

#include "engines/cuda/common/values.cuh"

namespace smla::cuda {

struct Window {
    int begin = 0, end = 0;
    __device__ bool has(int column) const { return column >= begin && column < end; }
};

// Windows of all tokens, clipped to columns [begin, end).
struct Windows {
    Windows(const smla_tensor& starts, const smla_tensor& ends, int64_t columns, int64_t begin, int64_t end)
        : starts(starts), ends(ends), columns(int(columns)), begin(int(begin)), end(int(end)) {}

    // Returns the window without clipping. An empty window has begin == end.
    __device__ Window whole(int64_t token) const {
        int first = bound(starts, token, 0), last = bound(ends, token, columns);
        first = min(max(first, 0), columns), last = min(max(last, 0), columns);
        return {first, max(first, last)};
    }
    __device__ Window operator()(int64_t token) const {
        const Window window = whole(token);
        const int first = max(window.begin, begin);
        return {first, max(first, min(window.end, end))};
    }

    Tensor starts, ends;
    int columns, begin, end;

private:
    // Reads an i64's low half, without a branch on the dtype, so that the loads of both bounds overlap.
    __device__ static int bound(const Tensor& bounds, int64_t token, int otherwise) {
        const int words = bounds.dtype == SMLA_I64 ? 2 : 1;
        if (present(bounds))
            otherwise = static_cast<const int*>(bounds.data)[token * bounds.stride_elems[0] * words];
        return otherwise;
    }
};

}  // namespace smla::cuda
