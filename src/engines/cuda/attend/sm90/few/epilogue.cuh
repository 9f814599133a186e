// Epilogue of attend on Hopper with few heads: joins the warps' sums and writes the results of a block.
#pragma once

#include "engines/cuda/attend/epilogue.cuh"
#include "engines/cuda/attend/sm90/few/consumer.cuh"

namespace smla::cuda_attend::sm90::few {

template <class Shape>
class Epilogue {
    using Own = GroupSmem<Shape>;

public:
    __device__ Epilogue(const Arguments& args, const Tasks& tasks, const Task& task,
                        const Consumer<Shape>& of, uint32_t base)
        : args_(args),
          tasks_(tasks),
          task_(task),
          of_(of),
          own_(of.own()),
          rows_(base + offsetof(Smem<Shape>, records)) {}

    // A call of few tokens runs this code once and waits for its instructions, so it is short. Results go
    // through shared memory, where records were: so stores are row-wise, and one loop serves all types.
    __device__ void run() const {
        if (tasks_.splits() > 1) return store_split();
        store_sums();
        cuda::named_barrier<kWarpgroup>(of_.barrier());  // and nobody reads records any more
        if (thread() < Shape::heads)
            cuda::store_shared(own_ + offsetof(Own, factors) + 4 * thread(), finish_head(uint32_t(thread())));
        if (Shape::groups > 1) return store_pairs();
        store_rows();
        cuda::named_barrier<kWarpgroup>(of_.barrier());
        const int heads = min(Shape::heads, int(args_.q.shape[1]) - task_.head), column = 4 * thread();
#pragma unroll 2
        for (int h = 0; h < heads; ++h) {
            const float factor = cuda::load_shared_f32(own_ + offsetof(Own, factors) + 4 * h);
            const uint4 bits = cuda::load_shared_4(rows_ + uint32_t(h) * kRowPitch + 4 * column);
            store(task_.head + h, column,
                  make_float4(__uint_as_float(bits.x) * factor, __uint_as_float(bits.y) * factor,
                              __uint_as_float(bits.z) * factor, __uint_as_float(bits.w) * factor));
        }
    }

private:
    __device__ static int thread() { return int(threadIdx.x) % kWarpgroup; }
    __device__ int64_t row_of(int head) const { return int64_t(task_.partial) * args_.q.shape[1] + head; }

    __device__ void store_sums() const {
#pragma unroll
        for (int i = 0; i < 2 * Shape::pairs; ++i) {
            float sum = of_.sum[i], most = of_.largest_of(i);
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
                sum += __shfl_xor_sync(~0u, sum, step);
                most = cuda::max_nan(most, __shfl_xor_sync(~0u, most, step));
            }
            if (of_.lane() >= 4) continue;
            const uint32_t at =
                own_ + of_.warp() * (4 * Shape::heads) + 32 * (i / 2) + 8 * of_.lane() + 4 * (i % 2);
            cuda::store_shared(at + offsetof(Own, sums), sum);
            cuda::store_shared(at + offsetof(Own, most), most);
        }
    }
    // Partial sums, two columns at a time: eight lanes fill two sectors.
    __device__ void store_split() const {
        const float by = unit();
        const int first = task_.head + 2 * int(of_.lane() % 4);
        float* const to =
            tasks_.partials.sums + row_of(first) * kValueWidth + 16 * of_.warp() + 2 * (of_.lane() / 4);
#pragma unroll
        for (int i = 0; i < 2 * Shape::pairs; ++i) {
            const int head = 8 * (i / 2) + i % 2;
            if (first + head < int(args_.q.shape[1]))
#pragma unroll
                for (int m = 0; m < 8; ++m)
                    *reinterpret_cast<float2*>(to + head * kValueWidth + 64 * m) =
                        make_float2(of_.o[m][i / 2 * 4 + i % 2] * by, of_.o[m][i / 2 * 4 + i % 2 + 2] * by);
        }
        store_sums();
        cuda::named_barrier<kWarpgroup>(of_.barrier());
        if (thread() < Shape::heads) finish_head(uint32_t(thread()));
    }
    // Writes a head's statistics and returns the factor of its output row; 0 for a split, whose sums are
    // stored.
    __device__ float finish_head(uint32_t in_block) const {
        float sum = -0.f, most = -INFINITY;
#pragma unroll
        for (uint32_t w = 0; w < 4; ++w) {
            const uint32_t at = own_ + w * (4 * Shape::heads) + 4 * in_block;
            sum += cuda::load_shared_f32(at + offsetof(Own, sums));
            most = cuda::max_nan(most, cuda::load_shared_f32(at + offsetof(Own, most)));
        }
        const int head = task_.head + int(in_block);
        if (head >= int(args_.q.shape[1])) return 0;
        const uint32_t of = own_ + offsetof(Own, heads) + in_block / 2 * 16 + in_block % 2 * 4;
        float peak2 = cuda::load_shared_f32(of + 8);
        if (peak2 == kNoPeak) peak2 = -INFINITY;
        const float largest2 = most * cuda::load_shared_f32(of);
        const bool any = __float_as_uint(sum) != 0x80000000u;
        if (tasks_.splits() > 1) {
            tasks_.partials.statistics[row_of(head)] = {peak2, sum, largest2, any ? 1.f : 0.f};
            return 0;
        }
        Totals totals = {0.f, -INFINITY};
        if (any) totals = finish(peak2 * kLn2, sum, sink_of(args_, head));
        store_statistics(args_, task_.token, head, totals.lse, any ? largest2 * kLn2 : -INFINITY);
        return totals.factor == 0 ? 0 : totals.factor * unit();
    }
    // Of the values that were multiplied.
    __device__ float unit() const { return Shape::scaled ? 1.f : args_.sources[0].cache.tensor_scale(); }
    __device__ void store_rows() const {
        const uint32_t to =
            rows_ + 2 * (of_.lane() % 4) * kRowPitch + 4 * (16 * of_.warp() + 2 * (of_.lane() / 4));
#pragma unroll
        for (int i = 0; i < 2 * Shape::pairs; ++i)
#pragma unroll
            for (int m = 0; m < 8; ++m)
                cuda::store_shared(to + uint32_t(8 * (i / 2) + i % 2) * kRowPitch + 256 * m,
                                   make_uint2(__float_as_uint(of_.o[m][i / 2 * 4 + i % 2]),
                                              __float_as_uint(of_.o[m][i / 2 * 4 + i % 2 + 2])));
    }
    __device__ void store(int head, int column, const float4& four) const {
        const int64_t at = cuda::element(args_.out, task_.token, head) + column;
        if (args_.out.dtype == SMLA_F32) {
            *reinterpret_cast<float4*>(static_cast<float*>(args_.out.data) + at) = four;
            return;
        }
        const bool bf16 = args_.out.dtype == SMLA_BF16;
        *reinterpret_cast<uint2*>(static_cast<uint16_t*>(args_.out.data) + at) =
            make_uint2(pack_half(bf16, four.x, four.y), pack_half(bf16, four.z, four.w));
    }

    // From registers, two columns at a time: there is no room for the rows of two warpgroups.
    __device__ void store_pairs() const {
        cuda::named_barrier<kWarpgroup>(of_.barrier());
        const int first = 2 * int(of_.lane() % 4), column = 16 * int(of_.warp()) + 2 * int(of_.lane() / 4);
#pragma unroll
        for (int i = 0; i < 2 * Shape::pairs; ++i) {
            const int in_block = first + 8 * (i / 2) + i % 2, head = task_.head + in_block;
            if (head >= int(args_.q.shape[1])) continue;
            const float factor =
                cuda::load_shared_f32(own_ + uint32_t(offsetof(Own, factors)) + 4 * in_block);
            const int64_t at = cuda::element(args_.out, task_.token, head) + column;
#pragma unroll
            for (int m = 0; m < 8; ++m)
                store_pair(args_.out, at + 64 * m, of_.o[m][i / 2 * 4 + i % 2] * factor,
                           of_.o[m][i / 2 * 4 + i % 2 + 2] * factor);
        }
    }

    static constexpr uint32_t kRowPitch = 4 * kValueWidth + 32;  // rows h and h + 2: other banks
    static_assert(Shape::groups > 1 || Shape::heads * kRowPitch <= sizeof(Smem<Shape>::records));
    const Arguments& args_;
    const Tasks& tasks_;
    const Task& task_;
    const Consumer<Shape>& of_;
    const uint32_t own_, rows_;
};

}  // namespace smla::cuda_attend::sm90::few
