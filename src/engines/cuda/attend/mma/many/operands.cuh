// Operands and accumulators of the score and value warps of attend_many, for bf16 rows and fp8 records.
#pragma once

#include "engines/cuda/attend/mma/codes.cuh"
#include "engines/cuda/attend/mma/decoded_rows.cuh"
#include "engines/cuda/attend/mma/many/pipeline.cuh"

namespace smla::cuda_attend {

// Work of a score warp: 32 heads, which its partner also processes, and half of the width.
template <class T>
struct ScoreSlice {
    const uint32_t base, warp, lane;

    __device__ uint32_t half() const { return warp % 2; }
    // Returns head r of this lane within the block. This warp computes the softmax of group 0, its partner of
    // group 1.
    __device__ int head(int group, int r) const {
        return int(16 * (warp ^ uint32_t(group)) + lane / 4) + 8 * r;
    }
    // Loads the left operands of a step: 16 columns of this warp's half of the first 512 or of the other 64.
    __device__ void load_queries(const ManyQueries<T>& queries, int step, uint32_t (&a)[2][4]) const {
        const uint32_t group = step < 16 ? 16 * half() + uint32_t(step) : 16 + 2 * half() + uint32_t(step);
#pragma unroll
        for (uint32_t m = 0; m < 2; ++m) queries.operand(16 * (warp ^ m), group, a[m]);
    }
    __device__ float largest(int r) const {  // returns max |q| of head r in group 0
        return cuda::load_shared_f32(WeightStage<T>::output_factor(base, head(0, r)));
    }
    // Stores left operands that do not fit in registers. Each lane has a separate slot in shared memory.
    __device__ void spill(int step, const uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int m = 0; m < 2; ++m)
            cuda::store_shared(spill_slot(2 * step + m), make_uint4(a[m][0], a[m][1], a[m][2], a[m][3]));
    }
    __device__ void reload(int step, uint32_t (&a)[2][4]) const {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const uint4 spilled = cuda::load_shared_4(spill_slot(2 * step + m));
            a[m][0] = spilled.x, a[m][1] = spilled.y, a[m][2] = spilled.z, a[m][3] = spilled.w;
        }
    }

private:
    __device__ uint32_t spill_slot(int operand) const {
        return base + T::spill_at + warp * T::spill_bytes + uint32_t(512 * operand) + 16 * lane;
    }
};

// Score operands of bf16 rows: 32 heads and half of the width.
template <class T>
class ScoreRows {
public:
    // Operands that are loaded before the keys arrive.
    struct Early {
        uint32_t a[2][4];
    };

    __device__ explicit ScoreRows(const ScoreSlice<T>& slice) : slice_(slice) {}

    // Loads the queries. All reads precede the spill, which overlaps the source. bf16 queries are not scaled.
    __device__ void load_queries(const ManyQueries<T>& queries, smla_format, float (&)[2]) {
        uint32_t spilled[T::q_spilled][2][4];
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s)
            slice_.load_queries(queries, s, s < T::q_steps ? q_[s] : spilled[s - T::q_steps]);
        if constexpr (T::decoded)
#pragma unroll
            for (int i = 0; i < 2 * T::k_steps; ++i) {
                const int s = i / 2;
                order_queries((s < T::q_steps ? q_[s] : spilled[s - T::q_steps])[i % 2]);
            }
        finish_queries_taken<T>();
#pragma unroll
        for (int i = 0; i < T::q_spilled; ++i) slice_.spill(i, spilled[i]);
    }
    __device__ void load_early(const BlockSource&, Early& early) const { slice_.reload(0, early.a); }
    __device__ void load_first(uint32_t, Early&) const {}  // loading keys before the mask is 3 % slower

    // Computes Q K^T of both groups over half of the width. A product that depends on the previous one waits
    // as long as four products take; the four independent accumulators of a step hide this latency.
    __device__ void multiply(uint32_t keys, const Early& early, float (&s)[2][2][4]) const {
        const auto step = [&](int k, const uint32_t(&a)[2][4]) {
            uint32_t b[4];
            load_keys(keys, k, b);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                cuda::mma_bf16(s[m][0], a[m], b[0], b[1]);
                cuda::mma_bf16(s[m][1], a[m], b[2], b[3]);
            }
        };
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 8][i / 4 % 2][i % 4] = 0;
        step(T::q_steps, early.a);
        constexpr int kBetween = 4;  // steps with queries in registers between two with spilled ones
        static_assert(kBetween * (T::q_spilled - 1) <= T::q_steps);
        uint32_t a[2][4];
#pragma unroll
        for (int k = 0; k < T::q_steps; ++k) {
            const int i = k / kBetween + 1;  // spilled step
            if (i < T::q_spilled && k % kBetween == 0) slice_.reload(i, a);
            step(k, q_[k]);
            if (i < T::q_spilled && k % kBetween == kBetween - 1) step(T::q_steps + i, a);
        }
    }
    static __device__ uint32_t pack(float low, float high) { return cuda::pack_bf16(low, high); }

private:
    // Loads the right operand of a step: 16 keys.
    __device__ void load_keys(uint32_t keys, int k, uint32_t (&b)[4]) const {
        const uint32_t first =
            swizzled_at(keys, T::pitch, (slice_.lane & 7) + (slice_.lane >> 4) * 8, slice_.lane >> 3 & 1);
        const uint32_t half = slice_.half(), at = first + 512 * half, at_512 = (first ^ (64 * half)) + 1024;
        cuda::ldmatrix_x4(b, k < 16 ? (at ^ uint32_t(32 * (k % 4))) + uint32_t(128 * (k / 4))
                                    : at_512 ^ uint32_t(32 * (k - 16)));
    }
    const ScoreSlice<T> slice_;
    uint32_t q_[T::q_steps][2][4];
};

// Value operands of bf16 rows: all heads and this warp's share of the columns.
template <class T>
class ValueRows {
public:
    using Kind = RowKind;

    __device__ ValueRows(uint32_t, uint32_t) {}

    // Does nothing, because bf16 rows have no scales.
    template <class WeightAt>
    __device__ void prepare(uint32_t, const RowKind&, uint32_t, uint32_t, const WeightAt&) {}
    // Computes O += P V. `a`: P of 16 heads each.
    __device__ void accumulate(uint32_t keys, const RowKind&, uint32_t warp, uint32_t lane,
                               const uint32_t (&a)[T::m_values][4]) {
        const uint32_t at = swizzled_at(keys, T::pitch, lane & 15, lane >> 4) + 2 * T::columns * warp;
#pragma unroll
        for (int n = 0; n < T::n_values; ++n) {
            uint32_t b[4];
            cuda::ldmatrix_x4_trans(b, (at ^ uint32_t(32 * (n % 4))) + uint32_t(128 * (n / 4)));
#pragma unroll
            for (int m = 0; m < T::m_values; ++m) {
                cuda::mma_bf16(sums[m][n][0], a[m], b[0], b[1]);
                cuda::mma_bf16(sums[m][n][1], a[m], b[2], b[3]);
            }
        }
    }
    // Writes heads 16 m .. 16 m + 15.
    __device__ void write(const typename T::Epilogue& out, smla_format, uint32_t, uint32_t lane,
                          int m) const {
#pragma unroll
        for (int i = 0; i < 4 * T::n_values; ++i) {
            const Pair pair = neighbours<T>(sums[m][i / 4], i / 2 % 2, i % 2);
            out.write(lane / 4 + 8 * uint32_t(i % 2), 8 * uint32_t(i / 2) + 2 * (lane % 4), pair.low,
                      pair.high);
        }
    }

    float sums[T::m_values][T::n_values][2][4] = {};  // sums of [16 heads, 16 columns] each
};

// Score operands of fp8 records: 32 heads and half of the width.
template <class T>
class ScoreCodes {
    using Operands = uint32_t[2][4];  // left operands of a step, for two groups of heads

public:
    // Operands that are loaded before the keys arrive or immediately after.
    struct Early {
        RecordKind<T::width> kind;
        Operands a[2];  // queries of the first two steps
        uint32_t row, raw[4];
    };

    __device__ explicit ScoreCodes(const ScoreSlice<T>& slice) : slice_(slice) {}

    // Loads scaled queries and multiplies `scale_log2` by their scale. Reads precede the spill to the same
    // place.
    __device__ void load_queries(const ManyQueries<T>& queries, smla_format format, float (&scale_log2)[2]) {
        bf16_rope_ = has_bf16_rope(format);
        Operands spilled[T::q_spilled];
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s)
            slice_.load_queries(queries, s, is_spilled(s) ? spilled[slot(s)] : q_[kept(s)]);
#pragma unroll
        for (int r = 0; r < 2; ++r) scale_log2[r] = QueryScale(slice_.largest(r)).of_products(scale_log2[r]);
        finish_queries_taken<T>();
#pragma unroll
        for (int i = 0; i < T::q_spilled; ++i) slice_.spill(i, spilled[i]);
    }
    __device__ void load_early(const BlockSource& source, Early& early) const {
        early.kind = RecordKind<T::width>(source);
        load_pair(0, early.a);
    }
    __device__ void load_first(uint32_t keys, Early& early) const {
        early.row = key_row<T>(keys, cuda::keep(slice_.lane));
        cuda::ldmatrix_x4(early.raw, early.row + 256 * slice_.half());
    }

    // Computes Q K^T of both groups of heads over half of the width. Keys are loaded one product ahead.
    __device__ void multiply(uint32_t keys, Early& early, float (&s)[2][2][4]) const {
        const uint32_t lane = cuda::keep(slice_.lane), half = cuda::keep(slice_.warp) % 2;
        const uint32_t codes = early.row + 256 * half;
        const uint32_t first_key = keys + 2 * (lane % 4) * T::pitch;
        HalfScales<T::width> scales;
        uint32_t more[4];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (is_rope(kSteps * g)) {
                multiply_rope<kSteps>(early.row + layout::Fp8_584::rope_at, kSteps * g, s);
                continue;
            }
            float sums[2][2][4] = {};
#pragma unroll
            for (int p = kPairs * g; p < kPairs * (g + 1); ++p) {
                if (p + 1 < 8) cuda::ldmatrix_x4(p % 2 ? early.raw : more, codes + uint32_t(32 * (p + 1)));
                if (p + 1 == kPairs) scales.load(early.kind, first_key, half);
                if (p == 0) multiply_pair(early.raw, 0, early.a, sums);
                else multiply_pair(p % 2 ? more : early.raw, 2 * p, sums);
            }
            if (T::width == 576 && g == kGroups - 1 && !bf16_rope_) {  // fp8_576: one scale for all
                cuda::ldmatrix_x4(more, early.row + layout::Fp8_576::rope_at + 32 * half);
                multiply_pair(more, 16, sums);
            }
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                float& out = s[i / 8][i / 4 % 2][i % 4];
                const float sum = sums[i / 8][i / 4 % 2][i % 4];
                const float scale = scales.of(g, i / 4 % 2 * 2 + i % 2);
                out = g == 0 ? sum * scale : fmaf(sum, scale, out);
            }
        }
        if (T::width == 576 && bf16_rope_)
            multiply_rope<2>(early.row + layout::Fp8_656::rope_at + 64 * half, 16, s);
    }
    static __device__ uint32_t pack(float low, float high) { return cuda::pack_f16(low, high); }

private:
    static constexpr int kGroups = 256 / T::scaled,
                         kSteps = T::scaled / 16;  // steps of columns that share a scale
    static constexpr int kPairs = kSteps / 2;

    // Order of spilled steps: first the odd ones (second of a pair), then even ones.
    static constexpr int kAllPairs = T::k_steps / 2;
    static constexpr int slot(int s) { return s % 2 ? s / 2 : kAllPairs + s / 2; }
    static constexpr bool is_spilled(int s) { return slot(s) < T::q_spilled; }
    static constexpr int least(int a, int b) { return a < b ? a : b; }
    static constexpr int kFirstSteps = T::q_spilled > kAllPairs ? T::q_spilled - kAllPairs : 0;
    static constexpr int kept(int s) {  // returns an index into q_
        return s - least(s / 2, T::q_spilled) - least((s + 1) / 2, kFirstSteps);
    }

    // Returns the queries of step s: `loaded` if they are spilled and have been reloaded.
    __device__ const Operands& queries(int s, const Operands& loaded) const {
        return is_spilled(s) ? loaded : q_[kept(s)];
    }

    // Returns whether step s of this warp is bf16 rope.
    __device__ bool is_rope(int s) const {
        if (T::width == 576) return s >= 16 && bf16_rope_;
        return s >= 12 && slice_.half() == 1 && bf16_rope_;
    }
    // Multiplies steps s and s + 1 of codes.
    __device__ void multiply_pair(const uint32_t (&raw)[4], int s, float (&sums)[2][2][4]) const {
        Operands a[2];
        load_pair(s, a);
        multiply_pair(raw, s, a, sums);
    }
    __device__ void load_pair(int s, Operands (&a)[2]) const {
#pragma unroll
        for (int step = 0; step < 2; ++step)
            if (is_spilled(s + step)) slice_.reload(slot(s + step), a[step]);
    }
    __device__ void multiply_pair(const uint32_t (&raw)[4], int s, const Operands (&a)[2],
                                  float (&sums)[2][2][4]) const {
        multiply_codes(raw, [&](int step, int n, uint32_t b0, uint32_t b1) {
#pragma unroll
            for (int m = 0; m < 2; ++m)
                cuda::mma_half<cuda::Half::f16>(sums[m][n], queries(s + step, a[step])[m], b0, b1);
        });
    }
    template <int Steps>
    __device__ void multiply_rope(uint32_t row, int first, float (&s)[2][2][4]) const {
        uint32_t keys[2][4];
        cuda::ldmatrix_x4(keys[0], row);
#pragma unroll
        for (int k = 0; k < Steps; ++k) {
            const uint32_t(&b)[4] = keys[k % 2];
            Operands a;
            if (k + 1 < Steps) cuda::ldmatrix_x4(keys[(k + 1) % 2], row + uint32_t(32 * (k + 1)));
            if (is_spilled(first + k)) slice_.reload(slot(first + k), a);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                cuda::mma_bf16(s[m][0], queries(first + k, a)[m], b[0], b[1]);
                cuda::mma_bf16(s[m][1], queries(first + k, a)[m], b[2], b[3]);
            }
        }
    }

    const ScoreSlice<T> slice_;
    bool bf16_rope_ = false;
    Operands q_[T::k_steps - T::q_spilled];
};

// Value operands of fp8 records: all heads and this warp's share of the columns.
template <class T>
class ValueCodes {
public:
    using Kind = RecordKind<T::width>;

    __device__ explicit ValueCodes(uint32_t base, uint32_t warp) : base_(base) {
        for (int g = 0; g < kGroups; ++g) value_scales(warp, g).clear();
        __syncwarp();
    }

    // Makes the scales of the tile relative (ValueScales) and accumulates the keys whose scale is outside of
    // the window. weight_at(head, key): shared address of a weight.
    template <class WeightAt>
    __device__ void prepare(uint32_t keys, const Kind& kind, uint32_t warp, uint32_t lane,
                            const WeightAt& weight_at) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (is_rope(kind.bf16_rope(), warp, kSteps * g)) continue;
            const uint32_t codes = first_column(warp, g);
            float scales[4];
            load_scales<T::width>(kind, keys + 2 * (lane % 4) * T::pitch, codes / 64, scales);
            if (value_scales(warp, g).normalize(scales))
                add_out_of_window(keys + codes + 4 * (lane % 4), lane, g, scales, weight_at);
            factors_[g][0] = cuda::pack_f16(scales[0], scales[1]);
            factors_[g][1] = cuda::pack_f16(scales[2], scales[3]);
        }
    }
    // Computes O += P V. `a`: P of 16 heads each.
    __device__ void accumulate(uint32_t keys, const Kind& kind, uint32_t warp, uint32_t lane,
                               const uint32_t (&a)[T::m_values][4]) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
            if (is_rope(kind.bf16_rope(), warp, kSteps * g)) add_rope(keys, lane, kSteps * g, a);
            else add_codes(keys, warp, lane, g, a);
    }
    // Writes heads 16 m .. 16 m + 15.
    __device__ void write(const typename T::Epilogue& out, smla_format format, uint32_t warp, uint32_t lane,
                          int m) const {
        float units[kGroups];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) units[g] = value_scales(warp, g).inverse();
#pragma unroll
        for (int n = 0; n < T::n_values; ++n)
            write_codes_or_rope(out, lane, 16 * uint32_t(n), is_rope(has_bf16_rope(format), warp, n),
                                sums[m][n], units[n / kSteps]);
    }

    // [m][n][b]: sums of 16 heads and of the even (b = 0) or odd columns of 16; in bf16 rope, of the first or
    // last 8.
    float sums[T::m_values][T::n_values][2][4] = {};

private:
    static constexpr int kScaled = T::columns < T::scaled ? T::columns : T::scaled;
    static constexpr int kGroups = T::columns / kScaled,
                         kSteps = kScaled / 16;  // steps of columns that share a scale

    static __device__ uint32_t first_column(uint32_t warp, int g) {
        return uint32_t(T::columns) * warp + uint32_t(kScaled * g);
    }
    __device__ ValueScales value_scales(uint32_t warp, int g) const {
        return {base_ + T::value_scales_at + 8 * warp + 4 * uint32_t(g)};
    }
    // Returns whether the 16 columns of this warp that start at 16 n are bf16 rope.
    static __device__ bool is_rope(bool bf16_rope, uint32_t warp, int n) {
        return T::width == 512 && bf16_rope && int(warp) == T::value_warps - 1 && n >= T::n_values - 4;
    }
    __device__ void add_codes(uint32_t keys, uint32_t warp, uint32_t lane, int g,
                              const uint32_t (&a)[T::m_values][4]) {
        const uint32_t codes = first_column(warp, g);
        uint32_t weights[T::m_values][4];
#pragma unroll
        for (int i = 0; i < 4 * T::m_values; ++i)
            weights[i / 4][i % 4] = cuda::times_f16(a[i / 4][i % 4], factors_[g][i % 4 / 2]);
#pragma unroll
        for (int c = 0; c < kSteps / 2; ++c) {
            uint32_t raw[4];
            cuda::ldmatrix_x4_trans(raw, value_row<T>(keys, lane) + codes + uint32_t(32 * c));
            multiply_code_values(raw, [&](int n, int odd, uint32_t b0, uint32_t b1) {
#pragma unroll
                for (int m = 0; m < T::m_values; ++m)
                    cuda::mma_half<cuda::Half::f16>(sums[m][kSteps * g + 2 * c + n][odd], weights[m], b0, b1);
            });
        }
    }
    __device__ void add_rope(uint32_t keys, uint32_t lane, int first, const uint32_t (&a)[T::m_values][4]) {
        uint32_t weights[T::m_values][4];
#pragma unroll
        for (int i = 0; i < 4 * T::m_values; ++i) weights[i / 4][i % 4] = cuda::f16_to_bf16(a[i / 4][i % 4]);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            uint32_t b[4];
            cuda::ldmatrix_x4_trans(b,
                                    value_row<T>(keys, lane) + layout::Fp8_584::rope_at + uint32_t(32 * n));
#pragma unroll
            for (int m = 0; m < T::m_values; ++m) {
                cuda::mma_bf16(sums[m][first + n][0], weights[m], b[0], b[1]);
                cuda::mma_bf16(sums[m][first + n][1], weights[m], b[2], b[3]);
            }
        }
    }
    // Accumulates, one by one, the keys whose scale is outside of the window, and sets their scales to 0.
    template <class WeightAt>
    __device__ void add_out_of_window(uint32_t codes, uint32_t lane, int g, float (&scales)[4],
                                      const WeightAt& weight_at) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll 1
            for (int t = 0; t < 4; ++t) {
                const float scale = __shfl_sync(~0u, scales[i], t);
                if (!ValueScales::out_of_window(scale)) continue;
                const int key = 8 * (i / 2) + 2 * t + i % 2;
#pragma unroll
                for (int m = 0; m < T::m_values; ++m) {
                    const int head = 16 * m + int(lane / 4);
                    const float weights[2] = {cuda::load_shared_f16(weight_at(head, key)) * scale,
                                              cuda::load_shared_f16(weight_at(head + 8, key)) * scale};
                    add_key_f32(sums[m], weights, kSteps * g, kSteps, codes + uint32_t(key) * T::pitch);
                }
            }
            if (ValueScales::out_of_window(scales[i])) scales[i] = 0;
        }
    }

    const uint32_t base_;
    uint32_t factors_[kGroups][2];  // relative scales of the tile for keys 2t, 2t + 1, 2t + 8, 2t + 9
};

}  // namespace smla::cuda_attend
