// Epilogue of the tensor core kernels: writes accumulators and statistics to `out` or to partial results.
#pragma once

#include "engines/cuda/attend/tile_scheduler.cuh"
#include "engines/cuda/common/ptx/mma.cuh"
#include "engines/cuda/common/ptx/shared.cuh"

namespace smla::cuda_attend {

__device__ inline uint32_t pack_half(bool bf16, float low, float high) {
    const uint32_t as_bf16 = cuda::pack_bf16(low, high), as_f16 = cuda::pack_f16(low, high);
    return bf16 ? as_bf16 : as_f16;
}
// Stores two neighboring values of an output row.
__device__ inline void store_pair(const Tensor& out, int64_t at, float low, float high) {
    if (out.dtype == SMLA_F32)
        *reinterpret_cast<float2*>(static_cast<float*>(out.data) + at) = make_float2(low, high);
    else
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out.data) + at) =
            pack_half(out.dtype == SMLA_BF16, low, high);
}

// Writes a head's softmax statistics and returns the factor for its output row. With splits, the statistics
// are written to the partial results, and the factor is 1, or 0 if the split saw no key. Without splits, they
// are written to lse and max_logits.
__device__ inline float finish_head(const Arguments& args, const TileScheduler& scheduler,
                                    const WorkTile& work, int64_t h, bool any, float peak2, float largest2,
                                    float sum) {
    Totals totals = {any ? 1.f : 0.f, -INFINITY};
    if (scheduler.splits() > 1) {
        scheduler.partials.statistics[work.partial * args.q.shape[1] + h] = {peak2, sum, largest2,
                                                                             totals.factor};
        return totals.factor;
    }
    if (any) totals = finish(peak2 * kLn2, sum, sink_of(args, h));
    store_statistics(args, work.token, h, totals.lse, largest2 * kLn2);
    return totals.factor;
}

// Transposes a warp's accumulators through shared memory, 16 heads at a time, so that global stores are
// row-wise. Direct stores from registers take 4000 instructions, each with an instruction cache miss: 11 us
// per block.
template <int Columns>
struct EpilogueBuffer {
    static constexpr int pitch = 4 * (Columns + 16), bytes = 16 * pitch;  // adjacent rows: other banks

    uint32_t at;  // shared address of the warp's buffer

    // Writes columns `column` and `column` + 1 of row `row`.
    __device__ void write(uint32_t row, uint32_t column, float low, float high) const {
        cuda::store_shared(at + row * pitch + 4 * column,
                           make_uint2(__float_as_uint(low), __float_as_uint(high)));
    }
    // Stores rows, multiplied by their factors, to `out` or to the partial results. column_of(c): output
    // column of c, a multiple of 4. `factors`: shared address of the factors of the 16 heads that start at
    // `head`.
    template <class ColumnOf>
    __device__ void store(const Arguments& args, const TileScheduler& scheduler, const WorkTile& work,
                          int head, uint32_t factors, const ColumnOf& column_of) const {
        __syncwarp();
        const int lane = int(threadIdx.x % 32), column = column_of(lane % kLanes * 4),
                  heads = int(args.q.shape[1]), first = work.head + head + lane / kLanes;
        if (scheduler.splits() > 1) {
            float* const sums =
                scheduler.partials.sums + (int64_t(work.partial) * heads + first) * kValueWidth + column;
            store_rows(factors, heads - first, [&](int row, const float4& four) {
                *reinterpret_cast<float4*>(sums + row * kValueWidth) = four;
            });
        } else if (args.out.dtype == SMLA_F32) {
            float* const out = first_of<float>(args.out, work.token, first) + column;
            store_rows(factors, heads - first, [&](int row, const float4& four) {
                auto* const to = reinterpret_cast<float2*>(out + row * args.out.stride_elems[1]);
                to[0] = make_float2(four.x, four.y), to[1] = make_float2(four.z, four.w);
            });
        } else {
            uint16_t* const out = first_of<uint16_t>(args.out, work.token, first) + column;
            const bool bf16 = args.out.dtype == SMLA_BF16;
            store_rows(factors, heads - first, [&](int row, const float4& four) {
                auto* const to = reinterpret_cast<uint32_t*>(out + row * args.out.stride_elems[1]);
                to[0] = pack_half(bf16, four.x, four.y), to[1] = pack_half(bf16, four.z, four.w);
            });
        }
        __syncwarp();
    }

private:
    static constexpr int kLanes = Columns / 4;  // lanes per row

    template <class Value>
    static __device__ Value* first_of(const Tensor& tensor, int token, int head) {
        return static_cast<Value*>(tensor.data) + cuda::element(tensor, token, head);
    }

    // Stores this lane's rows up to the last head, four at a time.
    template <class Store>
    __device__ void store_rows(uint32_t factors, int heads, const Store& store) const {
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

}  // namespace smla::cuda_attend
