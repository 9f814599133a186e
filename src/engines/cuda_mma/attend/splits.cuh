// The splits of a token's rows: how the mma kernel leaves them, and what joins them.
#pragma once

#include "engines/cuda_common/ptx/mma.cuh"
#include "engines/cuda_common/ptx/shared.cuh"
#include "engines/cuda_mma/attend/arguments.cuh"
#include "engines/cuda_mma/attend/schedule.h"

namespace smla::cuda_attend {

struct Cut {
    Divisor head_tiles, by_splits;
    Parts parts;

    __host__ __device__ int splits() const { return int(by_splits.by); }
};

// Where a block stands. Made anew where it is needed: registers.
struct Place {
    int part, token, head;  // token * splits + split; the first head of the block
    __device__ Place(const Cut& cut, int heads) {
        uint32_t block;  // read again each time, not kept
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
        const uint32_t first = cut.head_tiles.quotient(block);
        part = int(first);
        token = int(cut.by_splits.quotient(first));
        head = int(block - first * cut.head_tiles.by) * heads;
    }
    __device__ int split(const Cut& cut) const { return part - token * cut.splits(); }
};

__device__ inline uint32_t pack_half(bool bf16, float low, float high) {
    const uint32_t as_bf16 = cuda::pack_bf16(low, high), as_f16 = cuda::pack_f16(low, high);
    return bf16 ? as_bf16 : as_f16;
}
// Two neighbours of a row of the output.
__device__ inline void store_pair(const Tensor& out, int64_t at, float low, float high) {
    if (out.dtype == SMLA_F32)
        *reinterpret_cast<float2*>(static_cast<float*>(out.data) + at) = make_float2(low, high);
    else
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out.data) + at) =
            pack_half(out.dtype == SMLA_BF16, low, high);
}

// What one head comes to: its statistics, to the scratch of splits or to lse and max_logits; what its sums
// are to be multiplied with: in a split 1, or 0 where it had no keys.
__device__ inline float finish_head(const Arguments& args, const Cut& cut, const Place& place, int64_t h,
                                    bool any, float peak2, float largest2, float sum) {
    Totals totals = {any ? 1.f : 0.f, -INFINITY};
    if (cut.splits() > 1) {
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
        const int lane = int(threadIdx.x % 32), column = column_of(lane % kLanes * 4),
                  heads = int(args.q.shape[1]), first = place.head + head + lane / kLanes;
        if (cut.splits() > 1) {
            float* const sums = cut.parts.sums + (int64_t(place.part) * heads + first) * kValueWidth + column;
            take_rows(factors, heads - first, [&](int row, const float4& four) {
                *reinterpret_cast<float4*>(sums + row * kValueWidth) = four;
            });
        } else if (args.out.dtype == SMLA_F32) {
            float* const out = first_of<float>(args.out, place.token, first) + column;
            take_rows(factors, heads - first, [&](int row, const float4& four) {
                auto* const to = reinterpret_cast<float2*>(out + row * args.out.stride_elems[1]);
                to[0] = make_float2(four.x, four.y), to[1] = make_float2(four.z, four.w);
            });
        } else {
            uint16_t* const out = first_of<uint16_t>(args.out, place.token, first) + column;
            const bool bf16 = args.out.dtype == SMLA_BF16;
            take_rows(factors, heads - first, [&](int row, const float4& four) {
                auto* const to = reinterpret_cast<uint32_t*>(out + row * args.out.stride_elems[1]);
                to[0] = pack_half(bf16, four.x, four.y), to[1] = pack_half(bf16, four.z, four.w);
            });
        }
        __syncwarp();
    }

private:
    static constexpr int kLanes = Columns / 4;  // that share a row

    template <class Value>
    static __device__ Value* first_of(const Tensor& tensor, int token, int head) {
        return static_cast<Value*>(tensor.data) + cuda::element(tensor, token, head);
    }

    // This lane's rows, as many of them as are heads, four at a time.
    template <class Store>
    __device__ void take_rows(uint32_t factors, int heads, const Store& store) const {
        const uint32_t lane = threadIdx.x % 32, own = lane / kLanes;
        const uint32_t from = at + own * pitch + 16 * (lane % kLanes);
        constexpr int kStep = 32 / kLanes;
#pragma unroll
        for (int begin = 0; begin < 16; begin += 4 * kStep) {
            float factor[4];
            uint4 bits[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t row = uint32_t(begin + i * kStep);
                factor[i] = cuda::load_shared_f32(factors + 4 * (own + row));
                bits[i] = cuda::load_shared_4(from + row * pitch);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const auto value = [&](uint32_t of) { return __uint_as_float(of) * factor[i]; };
                if (begin + i * kStep < heads)
                    store(begin + i * kStep, make_float4(value(bits[i].x), value(bits[i].y), value(bits[i].z),
                                                         value(bits[i].w)));
            }
        }
    }
};

// Instances: widths of 576 and 512, fp8 records or bf16 rows. few/few.cu: 16 heads; many/many.cu: 32 or 64.
template <int Width, bool Coded>
void launch_few(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env);
template <int Width, bool Coded>
void launch_many(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env);

void join_splits(const smla_attend_args& args, const Cut& cut, const Env& env);

}  // namespace smla::cuda_attend
