// 32 heads against half of the width of fp8 records, and all heads against some columns of their values: what
// a score warp and a value warp of attend_many multiply.
#pragma once

#include "engines/cuda_common/ptx/barrier.cuh"
#include "engines/cuda_mma/attend/codes.cuh"
#include "engines/cuda_mma/attend/many/half_warp.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

template <class T>
class ScoreRecords {
    using Operands = uint32_t[2][4];  // left ones of a step: of two groups of heads

public:
    // What is loaded before keys are there, and as soon as they are.
    struct Early {
        RecordKind<T::width> kind;
        Operands a[2];  // of the first two steps
        uint32_t row, raw[4];
    };

    __device__ explicit ScoreRecords(const HalfWarp<T>& warp) : warp_(warp) {}

    // In units of their head, which `unit` takes up. All are in registers before some go to their place in
    // shared memory.
    __device__ void load_queries(const ManyQueries<T>& queries, smla_format format, float (&unit)[2]) {
        bf16_rope_ = has_bf16_rope(format);
        Operands rest[T::q_rest];
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s)
            warp_.take_queries(queries, s, in_rest(s) ? rest[this->rest(s)] : q_[kept(s)]);
#pragma unroll
        for (int r = 0; r < 2; ++r) unit[r] = QueryUnit(warp_.largest(r)).of_products(unit[r]);
        queries_are_taken<T>();
#pragma unroll
        for (int i = 0; i < T::q_rest; ++i) warp_.store_rest(i, rest[i]);
    }
    __device__ void load_early(const Reader& reader, Early& early) const {
        early.kind = RecordKind<T::width>(reader);
        load_pair(0, early.a);
    }
    __device__ void load_first(uint32_t keys, Early& early) const {
        early.row = key_row<T>(keys, cuda::keep(warp_.lane));
        cuda::ldmatrix_x4(early.raw, early.row + 256 * warp_.half());
    }

    // Of both groups of heads, with half of the width. What a product needs is on its way during the one
    // before.
    __device__ void multiply(uint32_t keys, Early& early, float (&s)[2][2][4]) const {
        const uint32_t lane = cuda::keep(warp_.lane), half = cuda::keep(warp_.warp) % 2;
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
                         kSteps = T::scaled / 16;  // of columns with one scale each
    static constexpr int kPairs = kSteps / 2;

    // Steps in shared memory: the second ones of pairs first, then the first ones.
    static constexpr int kAllPairs = T::k_steps / 2;
    static constexpr int rest(int s) { return s % 2 ? s / 2 : kAllPairs + s / 2; }
    static constexpr bool in_rest(int s) { return rest(s) < T::q_rest; }
    static constexpr int least(int a, int b) { return a < b ? a : b; }
    static constexpr int kFirstSteps = T::q_rest > kAllPairs ? T::q_rest - kAllPairs : 0;
    static constexpr int kept(int s) {  // which of those in registers
        return s - least(s / 2, T::q_rest) - least((s + 1) / 2, kFirstSteps);
    }

    // Of step s; `loaded`, where they have been loaded.
    __device__ const Operands& queries(int s, const Operands& loaded) const {
        return in_rest(s) ? loaded : q_[kept(s)];
    }

    // Whether step s of this warp multiplies bf16.
    __device__ bool is_rope(int s) const {
        if (T::width == 576) return s >= 16 && bf16_rope_;
        return s >= 12 && warp_.half() == 1 && bf16_rope_;
    }
    // Steps s and s + 1, of codes.
    __device__ void multiply_pair(const uint32_t (&raw)[4], int s, float (&sums)[2][2][4]) const {
        Operands a[2];
        load_pair(s, a);
        multiply_pair(raw, s, a, sums);
    }
    __device__ void load_pair(int s, Operands (&a)[2]) const {
#pragma unroll
        for (int step = 0; step < 2; ++step)
            if (in_rest(s + step)) warp_.load_rest(rest(s + step), a[step]);
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
            if (in_rest(first + k)) warp_.load_rest(rest(first + k), a);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                cuda::mma_bf16(s[m][0], queries(first + k, a)[m], b[0], b[1]);
                cuda::mma_bf16(s[m][1], queries(first + k, a)[m], b[2], b[3]);
            }
        }
    }

    const HalfWarp<T> warp_;
    bool bf16_rope_ = false;
    Operands q_[T::k_steps - T::q_rest];
};

template <class T>
class ValueRecords {
public:
    using Kind = RecordKind<T::width>;

    __device__ explicit ValueRecords(uint32_t base, uint32_t warp) : base_(base) {
        for (int g = 0; g < kGroups; ++g) value_scales(warp, g).clear();
        __syncwarp();
    }

    // Scales of the tile, relative; keys whose scale is out of the window are added. weight_at(head, key):
    // where a weight lies.
    template <class WeightAt>
    __device__ void prepare(uint32_t keys, const Kind& kind, uint32_t warp, uint32_t lane,
                            const WeightAt& weight_at) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (is_rope(kind.bf16_rope(), warp, kSteps * g)) continue;
            const uint32_t codes = first_column(warp, g);
            float scales[4];
            load_scales<T::width>(kind, keys + 2 * (lane % 4) * T::pitch, codes / 64, scales);
            if (value_scales(warp, g).relate(scales))
                add_far(keys + codes + 4 * (lane % 4), lane, g, scales, weight_at);
            factors_[g][0] = cuda::pack_f16(scales[0], scales[1]);
            factors_[g][1] = cuda::pack_f16(scales[2], scales[3]);
        }
    }
    // Sums += weights V. `a`: operands of 16 heads each.
    __device__ void add(uint32_t keys, const Kind& kind, uint32_t warp, uint32_t lane,
                        const uint32_t (&a)[T::m_values][4]) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
            if (is_rope(kind.bf16_rope(), warp, kSteps * g)) add_rope(keys, lane, kSteps * g, a);
            else add_codes(keys, warp, lane, g, a);
    }
    // Of 16 heads.
    __device__ void put(const WayOut<T::columns>& out, smla_format format, uint32_t warp, uint32_t lane,
                        int m) const {
        float units[kGroups];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) units[g] = value_scales(warp, g).unit();
#pragma unroll
        for (int n = 0; n < T::n_values; ++n)
            put_codes_or_rope(out, lane, 16 * uint32_t(n), is_rope(has_bf16_rope(format), warp, n),
                              sums[m][n], units[n / kSteps]);
    }

    // [16 heads, 16 columns] each: even columns and odd ones, or, of bf16, the first 8 and the last.
    float sums[T::m_values][T::n_values][2][4] = {};

private:
    static constexpr int kScaled = T::columns < T::scaled ? T::columns : T::scaled;
    static constexpr int kGroups = T::columns / kScaled,
                         kSteps = kScaled / 16;  // of columns with one scale each

    static __device__ uint32_t first_column(uint32_t warp, int g) {
        return uint32_t(T::columns) * warp + uint32_t(kScaled * g);
    }
    __device__ ValueScales value_scales(uint32_t warp, int g) const {
        return {base_ + T::scales_at + 8 * warp + 4 * uint32_t(g)};
    }
    // Whether 16 columns from 16 n on of this warp are bf16.
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
    // Keys whose scale is out of the window, one by one; their scales become 0.
    template <class WeightAt>
    __device__ void add_far(uint32_t codes, uint32_t lane, int g, float (&scales)[4],
                            const WeightAt& weight_at) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll 1
            for (int t = 0; t < 4; ++t) {
                const float scale = __shfl_sync(~0u, scales[i], t);
                if (!ValueScales::is_far(scale)) continue;
                const int key = 8 * (i / 2) + 2 * t + i % 2;
#pragma unroll
                for (int m = 0; m < T::m_values; ++m) {
                    const int head = 16 * m + int(lane / 4);
                    const float weights[2] = {cuda::load_shared_f16(weight_at(head, key)) * scale,
                                              cuda::load_shared_f16(weight_at(head + 8, key)) * scale};
                    add_far_key(sums[m], weights, kSteps * g, kSteps, codes + uint32_t(key) * T::pitch);
                }
            }
            if (ValueScales::is_far(scales[i])) scales[i] = 0;
        }
    }

    const uint32_t base_;
    uint32_t factors_[kGroups][2];  // of the tile: keys 2t and 2t + 1, keys + 8
};

}  // namespace smla::cuda_attend
