// Arguments of attend as its kernels receive them, by value, and the last steps of a softmax.
#pragma once

#include "engines/cuda/attend/schedule.h"
#include "engines/cuda/common/records.cuh"
#include "ops/attend/attend.h"

namespace smla::cuda_attend {

using cuda::DeviceCache;

// Divides numbers below 2^31 by multiplication with a host-computed reciprocal (Granlund and Montgomery
// 1994).
struct Divisor {
    Divisor() = default;
    explicit Divisor(int64_t by) : by(uint32_t(by)) {
        while ((int64_t(1) << shift) < by) ++shift;
        multiplier = uint32_t((((uint64_t(1) << shift) - uint64_t(by)) << 32) / uint64_t(by) + 1);
    }
    __device__ uint32_t quotient(uint32_t number) const {
        return (__umulhi(number, multiplier) + number) >> shift;
    }

    uint32_t by = 1, multiplier = 1, shift = 0;
};

struct Source {
    Source() = default;
    explicit Source(const smla_attend_source& source) : cache(source.cache) {
        if (source.cache.format == SMLA_FORMAT_NONE) return;
        page_rows = Divisor(cache.page_rows < int64_t(1) << 31 ? cache.page_rows : int64_t(1) << 31);
        rows = source.rows;
        lengths = source.lengths;
        listed = source.rows.shape[1];
        rows_below = uint32_t(cache.capacity < (int64_t(1) << 31) ? cache.capacity : int64_t(1) << 31);
    }
    __device__ int64_t length(int64_t token) const {
        if (!cuda::present(lengths)) return listed;
        const int64_t length = cuda::load_int(lengths, token);
        return length < 0 ? 0 : length < listed ? length : listed;
    }

    __device__ bool has(int row) const {  // false for a masked entry (-1)
        const uint32_t page = page_rows.quotient(uint32_t(row)), token = uint32_t(row) - page * page_rows.by;
        return uint32_t(row) < rows_below && token < uint32_t(cache.page_tokens);
    }

    DeviceCache cache;
    Tensor rows{}, lengths{};
    int64_t listed = 0;  // K, the width of the row list
    Divisor page_rows;
    uint32_t rows_below = 0;  // capacity; a negative row, converted to unsigned, is above it
};

struct Arguments {
    explicit Arguments(const smla_attend_args& args)
        : q(args.q),
          sink(args.sink),
          out(args.out),
          lse(args.lse),
          max_logits(args.max_logits),
          softmax_scale(float(args.softmax_scale)),
          q_scale(args.q.dtype == SMLA_E4M3 ? float(args.q_scale) : 1.f),
          softmax_scale_device(args.softmax_scale_device),
          q_scale_device(args.q.dtype == SMLA_E4M3 ? args.q_scale_device : nullptr),
          empty_lse(float(lse_of_no_rows(args))),
          log2(args.lse_base == SMLA_LSE_LOG2),
          q_chunks(q.dtype == SMLA_BF16 && reinterpret_cast<uintptr_t>(q.data) % 16 == 0 &&
                   q.stride_elems[0] % 8 == 0 && q.stride_elems[1] % 8 == 0) {
        sources[0] = Source(args.primary);
        sources[1] = Source(args.extra);
    }
    __device__ float scale() const {
        return (softmax_scale_device ? *softmax_scale_device : softmax_scale) *
               (q_scale_device ? *q_scale_device : q_scale);
    }

    Tensor q, sink, out, lse, max_logits;
    Source sources[2];
    float softmax_scale, q_scale;
    const float *softmax_scale_device, *q_scale_device;
    float empty_lse;      // lse of a token without valid rows
    bool log2, q_chunks;  // q_chunks: whether q is bf16 with rows aligned to 16 bytes
};

// Returns the format of one source. has_bf16_rope is the same for both, as kernels.cpp rejects other calls.
__device__ inline smla_format first_format(const Arguments& args) {
    const smla_format primary = args.sources[0].cache.format;
    return primary == SMLA_FORMAT_NONE ? args.sources[1].cache.format : primary;
}

// Result of a head after its last key.
struct Totals {
    float factor;  // out = factor * sum_j exp(logit_j - peak) v_j
    float lse;     // natural logarithm, without the sink
};
// Returns the totals for sum = sum_j exp(logit_j - peak) over at least one key. A peak of -inf means that no
// logit is finite, so the result is NaN.
__device__ inline Totals finish(float peak, float sum, float sink) {
    if (peak == -INFINITY) return {NAN, NAN};
    // The denominator is sum + exp(sink - peak). If sink > peak, numerator and denominator are multiplied by
    // exp(peak - sink).
    const float above = fmaxf(0.f, sink - peak);
    const float factor = expf(-above) / (sum * expf(-above) + expf(sink - peak - above));
    return {sink == INFINITY ? 0.f : factor, peak + logf(sum)};
}

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// Writes lse and the largest logit. An lse of -inf marks a token without valid rows.
__device__ inline void store_statistics(const Arguments& args, int64_t t, int64_t h, float lse, float peak) {
    if (cuda::present(args.lse)) {
        const float scaled = args.log2 ? lse * kLog2E : lse;
        cuda::store_value(args.lse, cuda::element(args.lse, t, h),
                          lse == -INFINITY ? args.empty_lse : scaled);
    }
    if (cuda::present(args.max_logits))
        cuda::store_value(args.max_logits, cuda::element(args.max_logits, t, h), peak);
}

__device__ inline float sink_of(const Arguments& args, int64_t h) {  // the sink is f32 or f64
    if (!cuda::present(args.sink)) return -INFINITY;
    const int64_t at = cuda::element(args.sink, h);
    return args.sink.dtype == SMLA_F64 ? float(static_cast<const double*>(args.sink.data)[at])
                                       : static_cast<const float*>(args.sink.data)[at];
}

}  // namespace smla::cuda_attend
