// A score warp of attend_many: which heads and which half of the width are its, and where those of its
// queries lie that registers have no room for.
#pragma once

#include "engines/cuda_mma/attend/many/turn.cuh"
#include "engines/cuda_mma/attend/queries.cuh"

namespace smla::cuda_attend {

template <class T>
struct HalfWarp {
    const uint32_t base, warp, lane;

    __device__ uint32_t half() const { return warp % 2; }
    // Of the block: head r of this lane in group 0, which this warp weighs, or 1, which the other of its pair
    // does.
    __device__ int head(int group, int r) const {
        return int(16 * (warp ^ uint32_t(group)) + lane / 4) + 8 * r;
    }
    // The left operands of a step: 16 columns of this warp's half of the first 512, or of the other 64.
    __device__ void take_queries(const ManyQueries<T>& queries, int step, uint32_t (&a)[2][4]) const {
        const uint32_t group = step < 16 ? 16 * half() + uint32_t(step) : 16 + 2 * half() + uint32_t(step);
#pragma unroll
        for (uint32_t m = 0; m < 2; ++m) queries.operand(16 * (warp ^ m), group, a[m]);
    }
    __device__ float largest(int r) const {  // query of a head that this warp weighs
        return cuda::load_shared_f32(WeightsTurn<T>::last_factor(base, head(0, r)));
    }
    // A step's left operands lie in shared memory, each lane's in a place of its own.
    __device__ void store_rest(int step, const uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int m = 0; m < 2; ++m)
            cuda::store_shared(rest_at(2 * step + m), make_uint4(a[m][0], a[m][1], a[m][2], a[m][3]));
    }
    __device__ void load_rest(int step, uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint4 rest = cuda::load_shared_4(rest_at(2 * step + m));
            a[m][0] = rest.x, a[m][1] = rest.y, a[m][2] = rest.z, a[m][3] = rest.w;
        }
    }

private:
    __device__ uint32_t rest_at(int operand) const {
        return base + T::queries_at + warp * T::queries_bytes + uint32_t(512 * operand) + 16 * lane;
    }
};

}  // namespace smla::cuda_attend
