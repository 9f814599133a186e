// The splits of a token's rows: how the mma kernel leaves them, and what joins them.
#pragma once

#include "engines/cuda_common/ptx/mma.cuh"
#include "engines/cuda_common/ptx/shared.cuh"
#include "engines/cuda_mma/attend/arguments.cuh"
#include "engines/cuda_mma/attend/schedule.h"

namespace smla::cuda_attend {

struct Cut {
    int head_tiles, splits;
    Parts parts;
};

// Where a block stands. Made anew where it is needed: registers.
struct Place {
    int part, token, head;  // token * splits + split; the first head of the block
    __device__ Place(const Cut& cut, int heads) {
        const unsigned block = cuda::keep(blockIdx.x);
        part = int(block / unsigned(cut.head_tiles));
        token = part / cut.splits;
        head = int(block % unsigned(cut.head_tiles)) * heads;
    }
};

// Two neighbours of a row of the output.
__device__ inline void store_pair(const Tensor& out, int64_t at, float low, float high) {
    if (out.dtype == SMLA_F32) {
        *reinterpret_cast<float2*>(static_cast<float*>(out.data) + at) = make_float2(low, high);
    } else {
        const uint32_t bf16 = cuda::pack_bf16(low, high), f16 = cuda::pack_f16(low, high);
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out.data) + at) =
            out.dtype == SMLA_BF16 ? bf16 : f16;
    }
}

// What one head comes to: its statistics, to the scratch of splits or to lse and max_logits; what its sums
// are to be multiplied with: in a split 1, or 0 where it had no keys.
__device__ inline float finish_head(const Arguments& args, const Cut& cut, const Place& place, int64_t h,
                                    bool any, float peak2, float largest2, float sum) {
    Totals totals = {any ? 1.f : 0.f, -INFINITY};
    if (cut.splits > 1) {
        cut.parts.statistics[place.part * args.q.shape[1] + h] = {peak2, sum, largest2, totals.factor};
        return totals.factor;
    }
    if (any) totals = finish(peak2 * kLn2, sum, sink_of(args, h));
    store_statistics(args, place.token, h, totals.lse, largest2 * kLn2);
    return totals.factor;
}

// The way out of a warp's sums, 16 heads at a time: lanes put them into shared memory as products leave them,
// and take them out in rows. Straight from registers each of them would need instructions of its own, of
// which a block that runs them once waits for most.
template <int Columns>
struct WayOut {
    static constexpr int pitch = 4 * (Columns + 16), bytes = 16 * pitch;  // rows g and g + 1 in other banks

    uint32_t at;  // of the warp's `bytes` bytes

    // Columns `column` and + 1 of row `row`.
    __device__ void put(uint32_t row, uint32_t column, float low, float high) const {
        cuda::store_shared(at + row * pitch + 4 * column,
                           make_uint2(__float_as_uint(low), __float_as_uint(high)));
    }
    // Times their head's factor, to the output or to the scratch of splits. column_of(c): which of the 512 c
    // is, c / 4 a whole number; `factors`: where those of the 16 heads from `head` on lie.
    template <class ColumnOf>
    __device__ void take(const Arguments& args, const Cut& cut, const Place& place, int head,
                         uint32_t factors, const ColumnOf& column_of) const {
        __syncwarp();
        constexpr int kLanes = Columns / 4;  // that share a row
        const int lane = int(threadIdx.x % 32), c = lane % kLanes * 4, heads = int(args.q.shape[1]);
#pragma unroll 2
        for (int i = 0; i < 16; i += 32 / kLanes) {
            const int row = i + lane / kLanes, h = place.head + head + row;
            const float factor = cuda::load_shared_f32(factors + 4 * uint32_t(row));
            if (h >= heads) continue;
            const uint4 bits = cuda::load_shared_4(at + uint32_t(row * pitch + 4 * c));
            const auto value = [&](uint32_t of) { return __uint_as_float(of) * factor; };
            const float4 four = make_float4(value(bits.x), value(bits.y), value(bits.z), value(bits.w));
            if (cut.splits > 1) {
                float* const sums = cut.parts.sums + (int64_t(place.part) * heads + h) * kValueWidth;
                *reinterpret_cast<float4*>(sums + column_of(c)) = four;
            } else {
                const int64_t out = cuda::element(args.out, place.token, h) + column_of(c);
                store_pair(args.out, out, four.x, four.y);
                store_pair(args.out, out + 2, four.z, four.w);
            }
        }
        __syncwarp();
    }
};

// Instances: widths of 576 and 512, fp8 records or bf16 rows. few/few.cu: 16 heads; many/many.cu: 32 or 64.
template <int Width, bool Coded>
void launch_few(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env);
template <int Width, bool Coded>
void launch_many(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env);

void join_splits(const smla_attend_args& args, const Cut& cut, const Env& env);

}  // namespace smla::cuda_attend
