// Hadamard rotation (core/hadamard.h) by one warp, of n values in shared memory; n is a power of two.
#pragma once

#include <cstdint>

namespace smla::cuda {

// Rotates a row in place. The caller makes the row visible to the warp (__syncwarp); the result is visible.
__device__ inline void warp_hadamard(float* row, int n) {
    const int lane = int(threadIdx.x % 32);
    for (int half = 1; half < n; half *= 2) {
        for (int pair = lane; pair < n / 2; pair += 32) {
            const int i = (pair & ~(half - 1)) * 2 + (pair & (half - 1));  // blocks of 2 * half
            const float a = row[i], b = row[i + half];
            row[i] = a + b;
            row[i + half] = a - b;
        }
        __syncwarp();
    }
    const float factor = 1.f / sqrtf(float(n));
    for (int i = lane; i < n; i += 32) row[i] *= factor;
    __syncwarp();
}

}  // namespace smla::cuda
