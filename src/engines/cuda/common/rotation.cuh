// Rotation of pairs of channels by position * frequency, for rope and other kernels that rotate.
#pragma once

#include "engines/cuda/common/values.cuh"

namespace smla::cuda {

// Out of line, because no real position has such an angle.
static __device__ __noinline__ float2 turn_of_large_angle(double angle) {
    double sine, cosine;
    sincos(angle, &sine, &cosine);
    return {float(cosine), float(sine)};
}

// Returns cosine and sine of an angle, each with an error of at most 2^-23. The angle is reduced to [-pi/4,
// pi/4] in f64, because an f32 angle of 10^6 radians is off by 0.06. The reduction takes ten f64 operations,
// which some GPUs run at 1/64 of the f32 rate; sincos works entirely in f64.
__device__ inline float2 turn_of(double angle) {
    if (!(fabs(angle) < 1e9)) return turn_of_large_angle(angle);
    constexpr double kQuarter = 1.5707963267948966, kQuarterRest = 6.123233995736766e-17;
    const double quarters = rint(angle * (1 / kQuarter));
    const double rest = fma(-quarters, kQuarterRest, fma(-quarters, kQuarter, angle));
    const float x = float(rest), low = float(rest - double(x)), z = x * x;
    // Taylor series; the omitted terms are below 2^-28
    const float s = fmaf(x * z, fmaf(z, fmaf(z, fmaf(z, 1.f / 362880, -1.f / 5040), 1.f / 120), -1.f / 6), x);
    const float c = fmaf(
        z, fmaf(z, fmaf(z, fmaf(z, fmaf(z, -1.f / 3628800, 1.f / 40320), -1.f / 720), 1.f / 24), -0.5f), 1.f);
    const float sine = fmaf(c, low, s), cosine = fmaf(-s, low, c);
    const int quadrant = int(quarters) & 3;
    const float along = quadrant & 1 ? sine : cosine, across = quadrant & 1 ? cosine : sine;
    return {quadrant == 1 || quadrant == 2 ? -along : along, quadrant >= 2 ? -across : across};
}
__device__ inline double frequency_of(const Tensor& frequencies, int64_t pair) {
    return static_cast<const double*>(frequencies.data)[pair];
}

__device__ inline void rotate_pair(float2 turn, float& a, float& b) {
    const float x = a, y = b;
    a = x * turn.x - y * turn.y;
    b = y * turn.x + x * turn.y;
}

struct RowRotation {
    Tensor positions, frequencies;
    int pairs, first;  // number of pairs (0: no rotation); first rotated channel
    bool half;

    RowRotation() = default;
    RowRotation(const Tensor& position, const Tensor& frequency, int first_channel, smla_rope_style style)
        : positions(position),
          frequencies(frequency),
          pairs(position.ndim != 0 ? int(frequency.shape[0]) : 0),
          first(first_channel),
          half(style == SMLA_ROPE_HALF) {}

    // Computes the cosines and sines of a token. Called by a warp.
    __device__ void find_turns(int64_t token, float2* turns) const {
        for (int i = int(threadIdx.x % 32); i < pairs; i += 32) {
            const double frequency =
                frequency_of(frequencies, i);  // loaded first, so that both loads overlap
            turns[i] = turn_of(frequency * double(load_int(positions, token)));
        }
    }
    // Rotates the row by `threads` threads; the caller is number `thread`.
    __device__ void rotate(const float2* turns, float* row, int thread, int threads) const {
        for (int i = thread; i < pairs; i += threads) {
            const int a = first + (half ? i : 2 * i), b = half ? a + pairs : a + 1;
            rotate_pair(turns[i], row[a], row[b]);
        }
    }
};

}  // namespace smla::cuda
