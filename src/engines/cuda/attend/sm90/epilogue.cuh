// Epilogue of attend on Hopper: writes the results of a task, or the partial results of a split.
#pragma once

#include "engines/cuda/attend/epilogue.cuh"
#include "engines/cuda/attend/sm90/consumer.cuh"

namespace smla::cuda_attend::sm90 {

// Transposes words within four lanes: lane q passes word q of blocks 0 to 3 and receives block q.
__device__ inline uint4 transpose_quad(uint32_t (&x)[4], uint32_t lane) {
    const bool odd = lane & 1, high = lane & 2;
    const uint32_t a = __shfl_xor_sync(~0u, odd ? x[0] : x[1], 1),
                   b = __shfl_xor_sync(~0u, odd ? x[2] : x[3], 1);
    if (odd) x[0] = a, x[2] = b;
    else x[1] = a, x[3] = b;
    const uint32_t c = __shfl_xor_sync(~0u, high ? x[0] : x[2], 2),
                   d = __shfl_xor_sync(~0u, high ? x[1] : x[3], 2);
    return high ? make_uint4(c, d, x[2], x[3]) : make_uint4(x[0], x[1], c, d);
}

// Adds the sums and maxima of both warpgroups and stores the task's rows.
template <class Format, int Cluster>
class Epilogue {
public:
    // `parity`: parity of the task's number in this block.
    __device__ Epilogue(const Arguments& args, const Tasks& tasks, const Task& task,
                        Consumer<Format, Cluster>& of, uint32_t base, uint32_t parity)
        : args_(args), tasks_(tasks), task_(task), of_(of), base_(base + 512 * parity) {}

    __device__ void run() {
        float factor[2];
        exchange(factor);
        const bool split = tasks_.splits() > 1;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int h = task_.head + int(of_.row()) + 8 * r;
            const bool real = h < int(args_.q.shape[1]);
            if (split) {
                float* const to =
                    tasks_.partials.sums + (int64_t(task_.partial) * args_.q.shape[1] + h) * kValueWidth;
                store_floats(to, r, factor[r], real);
            } else if (args_.out.dtype == SMLA_F32) {
                float* const to =
                    static_cast<float*>(args_.out.data) + cuda::element(args_.out, task_.token, h);
                store_floats(to, r, factor[r], real);
            } else {
                store_halves(
                    static_cast<uint16_t*>(args_.out.data) + cuda::element(args_.out, task_.token, h), r,
                    factor[r], real);
            }
        }
    }

private:
    // Returns the first column of block i of a lane: 8 columns of its warpgroup's 256, in tile i / 8.
    __device__ int column_of(int i) const {
        return natural(i) ? 8 * i : i / 16 * 128 + i % 8 * 16 + i / 8 % 2 * 8;
    }
    __device__ bool natural(int i) const {
        return !Format::permuted || (Format::natural_from < 512 && i >= 16 && of_.group() == 1);
    }
    // Returns the output factor of block i. `factor` undoes key_factor, which columns of rope do not have.
    __device__ float factor_of(int i, float factor) const {
        return Format::rope_tile < 8 && i >= 24 && of_.group() == 1 ? factor * Format::key_factor : factor;
    }

    __device__ void exchange(float (&factor)[2]) {
        float sums[2];
        const uint32_t own = base_ + 256 * of_.group() + 4 * of_.row(), both = base_ + 4 * of_.row();
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
            sums[r] = of_.sum[r] + __shfl_xor_sync(~0u, of_.sum[r], 1);
            sums[r] += __shfl_xor_sync(~0u, sums[r], 2);
            if (of_.lane() % 4 == 0) {
                cuda::store_shared(own + kSumsAt + 32 * r, sums[r]);
                cuda::store_shared(own + kLargestAt + 32 * r, of_.largest[r]);
            }
        }
        cuda::named_barrier<kConsumers>(int(Barrier::statistics));
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) {
            const uint32_t at = both + 32 * r;
            const float sum = cuda::load_shared_f32(at + kSumsAt) + cuda::load_shared_f32(at + kSumsAt + 256);
            const float largest = cuda::max_nan(cuda::load_shared_f32(at + kLargestAt),
                                                cuda::load_shared_f32(at + kLargestAt + 256));
            factor[r] = finish_row(task_.head + int(of_.row() + 8 * r), of_.peak2[r], sum,
                                   largest * of_.scale_log2(r));
        }
    }
    // Writes a head's statistics from one lane, and returns the factor of its output row.
    __device__ float finish_row(int h, float peak2, float sum, float largest2) const {
        if (h >= int(args_.q.shape[1])) return 0;
        const bool any = __float_as_uint(sum) != 0x80000000u,
                   writes = of_.group() == 0 && of_.lane() % 4 == 0;
        if (tasks_.splits() > 1) {
            if (writes)
                tasks_.partials.statistics[int64_t(task_.partial) * args_.q.shape[1] + h] = {
                    peak2, sum, largest2, any ? 1.f : 0.f};
            return any ? 1 / Format::key_factor : 0.f;
        }
        Totals totals = {0.f, -INFINITY};
        if (any) totals = finish(peak2 * kLn2, sum, sink_of(args_, h));
        if (writes) store_statistics(args_, task_.token, h, totals.lse, largest2 * kLn2);
        return totals.factor / Format::key_factor;
    }
    __device__ void store_floats(float* to, int r, float factor, bool real) const {
        if (!real) return;
        to += 256 * of_.group() + 2 * (of_.lane() % 4);
#pragma unroll
        for (int i = 0; i < 32; ++i)
            *reinterpret_cast<float2*>(to + column_of(i)) = make_float2(
                of_.o[4 * i + 2 * r] * factor_of(i, factor), of_.o[4 * i + 2 * r + 1] * factor_of(i, factor));
    }
    // Stores rows of 16-bit values. A lane stores 8 of the 32 columns (16 bytes) of four adjacent blocks.
    __device__ void store_halves(uint16_t* to, int r, float factor, bool real) const {
        to += 256 * of_.group() + 8 * (of_.lane() % 4);
        const bool bf16 = args_.out.dtype == SMLA_BF16;
#pragma unroll
        for (int g = 0; g < 8; ++g) {
            uint32_t x[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const auto value = [&](int i) {
                    const float own = factor_of(i, factor);
                    return pack_half(bf16, of_.o[4 * i + 2 * r] * own, of_.o[4 * i + 2 * r + 1] * own);
                };
                const int permuted = (g / 4 * 2 + k % 2) * 8 + g % 4 * 2 + k / 2;
                x[k] = natural(4 * g) ? value(4 * g + k) : value(permuted);
            }
            const uint4 chunk = transpose_quad(x, of_.lane());
            if (real) *reinterpret_cast<uint4*>(to + 32 * g) = chunk;
        }
    }

    const Arguments& args_;
    const Tasks& tasks_;
    const Task& task_;
    Consumer<Format, Cluster>& of_;
    const uint32_t base_;
};

}  // namespace smla::cuda_attend::sm90
