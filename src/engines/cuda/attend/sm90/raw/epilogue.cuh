// Epilogue of attend on Hopper over raw records: joins the warps' sums and writes the results of a block.
#pragma once

#include "engines/cuda/attend/epilogue.cuh"
#include "engines/cuda/attend/sm90/raw/consumer.cuh"

namespace smla::cuda_attend::sm90::raw {

// Epilogue of one block.
template <class Shape, class Consumer>
class Epilogue {
    using Group = GroupSmem<Shape>;
    using Lane = typename Consumer::Lanes;

public:
    __device__ Epilogue(const Arguments& args, const Tasks& tasks, const Task& task, Consumer& consumer,
                        uint32_t base)
        : args_(args),
          tasks_(tasks),
          task_(task),
          consumer_(consumer),
          group_smem_(consumer.group_smem()),
          rows_(base + offsetof(Smem<Shape>, records)) {}

    // Writes the results. A call of few tokens runs this code once and waits for its instructions, so the
    // code is short. A block of one warpgroup writes results through the shared memory of records, so that
    // stores are row-wise and one loop supports all types.
    __device__ void run() const {
        if (Shape::tile_groups > 1) join();
        if (tasks_.splits() > 1) return store_split();
        if (Shape::tile_groups == 1) store_sums();
        wait();  // all threads have finished reading records
        if (writes_statistics())
            cuda::store_shared(factors() + 4 * thread(), store_head_statistics(uint32_t(thread())));
        if (Shape::groups > 1) return store_pairs();
        store_rows();
        wait();
        const int heads = min(Shape::heads, int(args_.q.shape[1]) - task_.head), column = 4 * thread();
#pragma unroll 2
        for (int h = 0; h < heads; ++h) {
            const float factor = cuda::load_shared_f32(factors() + 4 * h);
            store(task_.head + h, column,
                  times(load_4(rows_ + uint32_t(h) * kRowPitch + 4 * column), factor));
        }
    }

private:
    __device__ static int thread() { return int(threadIdx.x) % kWarpgroup; }
    __device__ int64_t row_of(int head) const { return int64_t(task_.partial) * args_.q.shape[1] + head; }
    __device__ uint32_t factors() const {
        return consumer_.first_group_smem() + uint32_t(offsetof(Group, factors));
    }
    __device__ bool writes_statistics() const { return consumer_.group() == 0 && thread() < Shape::heads; }
    // Waits for all threads that have sums of the block's heads.
    __device__ void wait() const {
        if constexpr (Shape::tile_groups == 1) cuda::named_barrier<kWarpgroup>(consumer_.barrier());
        else cuda::named_barrier<Shape::consumers>(kJoinBarrier);
    }

    __device__ void store_sums() const {
#pragma unroll
        for (int j = 0; j < Lane::heads; ++j) {
            float sum = consumer_.sum[j], most = consumer_.largest_of(j);
#pragma unroll
            for (int step = Lane::first_step; step < 2 * Lane::last_step; step *= 2) {
                sum += __shfl_xor_sync(~0u, sum, step);
                most = cuda::max_nan(most, __shfl_xor_sync(~0u, most, step));
            }
            if (!consumer_.is_first_lane_of_heads()) continue;
            const uint32_t at = group_smem_ + consumer_.warp() * (4 * Shape::heads) +
                                4 * uint32_t(Lane::head_step(j)) + 4 * uint32_t(consumer_.first_head());
            cuda::store_shared(at + offsetof(Group, sums), sum);
            cuda::store_shared(at + offsetof(Group, most), most);
        }
    }
    // Adds the sums of two warpgroups with alternate tiles. Each keeps half of the columns as its first four
    // groups of 64, adds the other's sums to them and passes its sums of the other half to the other
    // warpgroup.
    __device__ void join() const {
        store_sums();
        wait();  // peaks and sums of both groups are stored, and all threads have finished reading records
        const bool second = consumer_.group() == 1;
        const uint32_t at = rows_ + 16 * uint32_t(thread()), sent_at = second ? 0 : kJoined,
                       received_at = kJoined - sent_at;
        float factor[Lane::heads];
#pragma unroll
        for (int j = 0; j < Lane::heads; ++j)
            factor[j] = rescale_to_joined_peak(uint32_t(consumer_.first_head() + Lane::head_step(j)),
                                               consumer_.group());
#pragma unroll
        for (int n = 0; n < Shape::pairs; ++n)
#pragma unroll
            for (int m = 0; m < kHalf; ++m) {
                float other[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int i = 4 * n + e;
                    const float by = factor[Lane::head_of(i)], low = consumer_.o[m][i] * by,
                                high = consumer_.o[m + kHalf][i] * by;
                    consumer_.o[m][i] = second ? high : low;
                    other[e] = second ? low : high;
                }
                cuda::store_shared(at + sent_at + kPart * uint32_t(n * kHalf + m),
                                   make_uint4(__float_as_uint(other[0]), __float_as_uint(other[1]),
                                              __float_as_uint(other[2]), __float_as_uint(other[3])));
            }
        wait();
#pragma unroll
        for (int n = 0; n < Shape::pairs; ++n)
#pragma unroll
            for (int m = 0; m < kHalf; ++m) {
                const uint4 received =
                    cuda::load_shared_4(at + received_at + kPart * uint32_t(n * kHalf + m));
                consumer_.o[m][4 * n] += __uint_as_float(received.x);
                consumer_.o[m][4 * n + 1] += __uint_as_float(received.y);
                consumer_.o[m][4 * n + 2] += __uint_as_float(received.z);
                consumer_.o[m][4 * n + 3] += __uint_as_float(received.w);
            }
    }
    __device__ float peak_of(uint32_t in_block, uint32_t group) const {
        const uint32_t smem = consumer_.first_group_smem() + group * uint32_t(sizeof(Group));
        return cuda::load_shared_f32(unit_at<Shape>(smem, in_block) + kPeakAfterUnit);
    }
    __device__ float joined_peak(uint32_t in_block) const {
        const float first = peak_of(in_block, 0);
        return Shape::tile_groups == 1 ? first : cuda::max_nan(first, peak_of(in_block, 1));
    }
    // Returns exp2(peak of a warpgroup - joined peak), the factor for its sums of a head.
    __device__ float rescale_to_joined_peak(uint32_t in_block, uint32_t group) const {
        if (Shape::tile_groups == 1) return 1;
        return cuda::exp2_fast(peak_of(in_block, group) - joined_peak(in_block));
    }

    static __device__ float4 load_4(uint32_t at) {
        const uint4 bits = cuda::load_shared_4(at);
        return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                __uint_as_float(bits.w)};
    }
    static __device__ float4 times(const float4& four, float factor) {
        return {four.x * factor, four.y * factor, four.z * factor, four.w * factor};
    }

    // Stores partial sums. The lanes of a head together write whole sectors.
    __device__ void store_split() const {
        const float by = cache_scale();
        const int first = task_.head + consumer_.first_head();
        float* const to = tasks_.partials.sums + row_of(first) * kValueWidth + first_column();
#pragma unroll
        for (int j = 0; j < Lane::heads; ++j) {
            if (first + Lane::head_step(j) < int(args_.q.shape[1]))
#pragma unroll
                for (int m = 0; m < kColumns; ++m)
                    store_run(to + Lane::head_step(j) * kValueWidth + 64 * m, m, j, by);
        }
        if (Shape::tile_groups == 1) store_sums(), wait();
        if (writes_statistics()) store_head_statistics(uint32_t(thread()));
    }
    // Stores the lane's neighboring columns of a head in one store; a store per pair takes 6 % longer for one
    // token.
    __device__ void store_run(float* to, int m, int j, float by) const {
        const auto value = [&](int c) { return consumer_.o[m][Lane::product(j, c)] * by; };
        if constexpr (Lane::run == 4)
            *reinterpret_cast<float4*>(to) = make_float4(value(0), value(1), value(2), value(3));
        else *reinterpret_cast<float2*>(to) = make_float2(value(0), value(1));
    }
    // Returns a head's statistics over the warps of one warpgroup.
    __device__ PartialStatistics group_statistics(uint32_t smem, uint32_t in_block) const {
        float sum = -0.f, most = -INFINITY;
#pragma unroll
        for (uint32_t w = 0; w < 4; ++w) {
            const uint32_t at = smem + w * (4 * Shape::heads) + 4 * in_block;
            sum += cuda::load_shared_f32(at + offsetof(Group, sums));
            most = cuda::max_nan(most, cuda::load_shared_f32(at + offsetof(Group, most)));
        }
        const uint32_t unit_address = unit_at<Shape>(smem, in_block);
        const float peak2 = cuda::load_shared_f32(unit_address + kPeakAfterUnit);
        return {peak2 == kNoPeak ? -INFINITY : peak2, sum, most * cuda::load_shared_f32(unit_address),
                __float_as_uint(sum) != 0x80000000u ? 1.f : 0.f};
    }
    // Returns a head's statistics over the block.
    __device__ PartialStatistics statistics_of(uint32_t in_block) const {
        PartialStatistics first = group_statistics(consumer_.first_group_smem(), in_block);
        if (Shape::tile_groups == 1) return first;
        const PartialStatistics second =
            group_statistics(consumer_.first_group_smem() + uint32_t(sizeof(Group)), in_block);
        first.sum = rescale_to_joined_peak(in_block, 0) * first.sum +
                    rescale_to_joined_peak(in_block, 1) * second.sum;
        first.peak2 = cuda::max_nan(first.peak2, second.peak2);
        first.largest2 = cuda::max_nan(first.largest2, second.largest2);
        first.any += second.any;
        return first;
    }
    // Writes a head's statistics and returns the factor of its output row, or 0 for a split.
    __device__ float store_head_statistics(uint32_t in_block) const {
        const int head = task_.head + int(in_block);
        if (head >= int(args_.q.shape[1])) return 0;
        const PartialStatistics head_statistics = statistics_of(in_block);
        if (tasks_.splits() > 1) {
            tasks_.partials.statistics[row_of(head)] = head_statistics;
            return 0;
        }
        Totals totals = {0.f, -INFINITY};
        if (head_statistics.any != 0)
            totals = finish(head_statistics.peak2 * kLn2, head_statistics.sum, sink_of(args_, head));
        store_statistics(args_, task_.token, head, totals.lse,
                         head_statistics.any != 0 ? head_statistics.largest2 * kLn2 : -INFINITY);
        return totals.factor == 0 ? 0 : totals.factor * cache_scale();
    }
    // Returns the scale of the multiplied values, or 1 if the weights contain the scales.
    __device__ float cache_scale() const {
        return Shape::scaled ? 1.f : args_.sources[0].cache.tensor_scale();
    }
    __device__ void store_rows() const {
        const uint32_t to =
            rows_ + uint32_t(consumer_.first_head()) * kRowPitch + 4 * uint32_t(first_column());
#pragma unroll
        for (int j = 0; j < Lane::heads; ++j)
#pragma unroll
            for (int m = 0; m < kColumns; ++m)
#pragma unroll
                for (int c = 0; c < Lane::run; c += 2)
                    cuda::store_shared(to + uint32_t(Lane::head_step(j)) * kRowPitch + 256 * m + 4 * c,
                                       make_uint2(__float_as_uint(consumer_.o[m][Lane::product(j, c)]),
                                                  __float_as_uint(consumer_.o[m][Lane::product(j, c + 1)])));
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

    // Stores two columns at a time from registers: rows of two warpgroups do not fit in shared memory.
    __device__ void store_pairs() const {
        wait();
        const int first = consumer_.first_head();
#pragma unroll
        for (int j = 0; j < Lane::heads; ++j) {
            const int in_block = first + Lane::head_step(j), head = task_.head + in_block;
            if (head >= int(args_.q.shape[1])) continue;
            const float factor = cuda::load_shared_f32(factors() + 4 * uint32_t(in_block));
            const int64_t at = cuda::element(args_.out, task_.token, head) + first_column();
#pragma unroll
            for (int m = 0; m < kColumns; ++m) store_out(at + 64 * m, m, j, factor);
        }
    }
    __device__ void store_out(int64_t at, int m, int j, float factor) const {
        store_pair(args_.out, at, consumer_.o[m][Lane::product(j, 0)] * factor,
                   consumer_.o[m][Lane::product(j, 1)] * factor);
        if constexpr (Lane::run == 4)
            store_pair(args_.out, at + 2, consumer_.o[m][Lane::product(j, 2)] * factor,
                       consumer_.o[m][Lane::product(j, 3)] * factor);
    }
    // Returns the first of the lane's columns.
    __device__ int first_column() const { return int(consumer_.group()) * 64 * kHalf + consumer_.column(); }

    // Groups of 64 columns: half of the row's eight groups, and the number that a warpgroup stores.
    static constexpr int kHalf = 4, kColumns = 8 / Shape::tile_groups;
    // Bytes of shared memory for join(): four values of each thread, and all sums that a warpgroup passes.
    static constexpr uint32_t kPart = 16 * kWarpgroup, kJoined = kPart * kHalf * Shape::pairs;
    static_assert(Shape::tile_groups == 1 || 2 * kJoined <= sizeof(Smem<Shape>::records));
    static constexpr uint32_t kRowPitch = 4 * kValueWidth + 32;  // rows h and h + 2 use different banks
    static_assert(Shape::head_parts > 1 || Shape::heads * kRowPitch <= sizeof(Smem<Shape>::records));
    const Arguments& args_;
    const Tasks& tasks_;
    const Task& task_;
    Consumer& consumer_;
    const uint32_t group_smem_, rows_;
};

}  // namespace smla::cuda_attend::sm90::raw
