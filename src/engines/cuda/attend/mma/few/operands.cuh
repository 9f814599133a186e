// Operands of a warp of attend_few: its queries, its part of the keys and values, and its accumulators.
#pragma once

#include "engines/cuda/attend/mma/codes.cuh"
#include "engines/cuda/attend/mma/decoded_rows.cuh"
#include "engines/cuda/attend/mma/few/config.h"
#include "engines/cuda/attend/mma/queries.cuh"

namespace smla::cuda_attend {

// Packs P of 16 keys (groups 2 k and 2 k + 1 of Softmax) as a left operand. pack(group, low, high) rounds.
template <int Groups, class Pack>
__device__ inline void pack_weights(const float (&s)[Groups][4], int k, const Pack& pack,
                                    uint32_t (&operand)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int n = 2 * k + i / 2, c = 2 * (i % 2);
        operand[i] = pack(n, s[n][c], s[n][c + 1]);
    }
}

// Computes O += P V for bf16 values: `Count` times 16 columns, which begin at accumulator `First`. row_at(k,
// n): this lane's row of keys 16 k .. 16 k + 15 and columns 16 n .. 16 n + 15 (mma_bf16_rows).
template <int First, int Count, int N, class RowAt>
__device__ inline void add_bf16_values(float (&sums)[N][2][4], const float (&s)[4][4], const RowAt& row_at) {
    const auto pack = [](int, float low, float high) { return cuda::pack_bf16(low, high); };
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        uint32_t weights[4];
        pack_weights(s, k, pack, weights);
#pragma unroll
        for (int n = 0; n < Count; ++n) cuda::mma_bf16_rows(sums[First + n], weights, row_at(k, n));
    }
}

// Operands of fp8 records. A warp multiplies 128 of the first 512 columns of keys and values, and 16 of the
// rest.
template <class T>
class FewCodes {
public:
    using Kind = RecordKind<T::width>;

    __device__ explicit FewCodes(const char* shared) : shared_(shared) {
        for (int g = 0; g < kGroups; ++g) value_scales(g).clear();
        __syncwarp();
    }
    // Loads the queries and multiplies `scale_log2` by their scales. `largest`: shared address of the heads'
    // max |q|.
    __device__ void load_queries(const QueryTile<T::width, T::query_rows>& queries, uint32_t largest,
                                 float (&scale_log2)[2]) {
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s)
            queries.operand(0, s < 8 ? 8 * warp() + uint32_t(s) : 32 + warp(), q_[s]);
#pragma unroll
        for (int r = 0; r < 2; ++r)
            scale_log2[r] = QueryScale(cuda::load_shared_f32(largest + 4 * (lane() / 4 + 8 * uint32_t(r))))
                                .of_products(scale_log2[r]);
    }

    // Computes this warp's part of Q K^T: 16 heads x 32 keys. Codes are loaded two products ahead.
    __device__ void score(uint32_t buffer, const Kind& kind, float (&s)[4][4]) const {
        const uint32_t row = key_row<T>(buffer, lane()), codes = row + 128 * warp();
        constexpr int kAhead = 2;
        uint32_t raw[kAhead + 1][4];
        const auto load = [&](int i) {  // 32 columns of 16 keys
            if (i < 8)
                cuda::ldmatrix_x4(raw[i % (kAhead + 1)], codes + uint32_t(32 * (i / 2) + i % 2 * kHalf));
        };
#pragma unroll
        for (int i = 0; i < kAhead; ++i) load(i);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (is_rope(kind.bf16_rope(), kSteps * g)) {
                score_rope<kSteps>(row + layout::Fp8_584::rope_at, kSteps * g, s);
                continue;
            }
            float sums[4][4] = {}, scales[8];
#pragma unroll
            for (int i = kSteps * g; i < kSteps * (g + 1); ++i) {
                load(i + kAhead);
                if (i + 1 == kSteps * (g + 1))
                    load_scales<T::width>(kind, buffer + 2 * (lane() % 4) * T::pitch, group(g), scales);
                multiply_codes(raw[i % (kAhead + 1)], [&](int step, int n, uint32_t b0, uint32_t b1) {
                    cuda::mma_half<cuda::Half::f16>(sums[2 * (i % 2) + n], q_[i / 2 * 2 + step], b0, b1);
                });
            }
            if (T::width == 576 && !kind.bf16_rope()) score_rope_codes(buffer, sums);
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const float sum = sums[i / 4][i % 4], scale = scales[i / 4 * 2 + i % 2];
                s[i / 4][i % 4] = g == 0 ? sum * scale : fmaf(sum, scale, s[i / 4][i % 4]);
            }
        }
        if (T::width == 576 && kind.bf16_rope())
            score_rope<1>(row + layout::Fp8_656::rope_at + 32 * warp(), T::k_steps - 1, s);
    }

    // Computes O += P V.
    __device__ void accumulate(uint32_t buffer, const Kind& kind, float (&s)[4][4]) {
        add_group<0>(buffer, kind, s);
        if constexpr (kGroups == 2) {
            if (is_rope(kind.bf16_rope(), kSteps)) add_rope(buffer, s);
            else add_group<1>(buffer, kind, s);
        }
    }
    __device__ void rescale(const float (&by)[2]) {
#pragma unroll
        for (int i = 0; i < 8 * T::n_steps; ++i) sums_[i / 8][i / 4 % 2][i % 4] *= by[i / 2 % 2];
    }
    // Returns the output column of this warp's column c.
    static __device__ int column_of(int c) { return int(128 * warp()) + c; }
    __device__ void write(const typename T::Epilogue& out, smla_format format) const {
        float units[kGroups];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) units[g] = value_scales(g).inverse();
#pragma unroll
        for (int n = 0; n < T::n_steps; ++n)
            write_codes_or_rope(out, lane(), 16 * uint32_t(n), is_rope(has_bf16_rope(format), n), sums_[n],
                                units[n / kSteps]);
    }

private:
    static constexpr int kGroups = 128 / T::scaled,
                         kSteps = T::scaled / 16;     // steps of columns that share a scale
    static constexpr uint32_t kHalf = 16 * T::pitch;  // distance to the tile's other 16 keys

    static __device__ uint32_t warp() { return threadIdx.x / 32; }
    static __device__ uint32_t lane() { return threadIdx.x % 32; }
    __device__ ValueScales value_scales(int g) const {
        return {cuda::shared_address(shared_) + T::value_scales_at + 4 * (2 * warp() + uint32_t(g))};
    }
    static __device__ uint32_t group(int g) { return 2 * warp() + uint32_t(g); }
    // Returns whether this warp's 16 columns of step s are bf16.
    static __device__ bool is_rope(bool bf16_rope, int s) {
        if (T::width == 576) return s == 8 && bf16_rope;
        return s >= 4 && warp() == 3 && bf16_rope;
    }

    template <int Steps>
    __device__ void score_rope(uint32_t row, int first_step, float (&s)[4][4]) const {
#pragma unroll
        for (int k = 0; k < 2 * Steps; ++k) {
            uint32_t b[4];
            cuda::ldmatrix_x4(b, row + uint32_t(32 * (k / 2)) + uint32_t(k % 2) * kHalf);
#pragma unroll
            for (int n = 0; n < 2; ++n)
                cuda::mma_bf16(s[2 * (k % 2) + n], q_[first_step + k / 2], b[2 * n], b[2 * n + 1]);
        }
    }
    // Adds the scores of 16 columns of rope of fp8_576, which are codes, for all 32 keys.
    __device__ void score_rope_codes(uint32_t buffer, float (&s)[4][4]) const {
        uint32_t raw[4];
        cuda::ldmatrix_x4(raw, buffer + lane() * T::pitch + layout::Fp8_576::rope_at + 16 * warp());
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            uint32_t b0, b1;
            cuda::e4m3_to_f16(raw[n], b0, b1);
            cuda::mma_half<cuda::Half::f16>(s[n], q_[T::k_steps - 1], b0, b1);
        }
    }

    template <int G>
    __device__ void add_group(uint32_t buffer, const Kind& kind, float (&s)[4][4]) {
        constexpr int kFirst = kSteps * G;
        float scales[8];
        load_scales<T::width>(kind, buffer + 2 * (lane() % 4) * T::pitch, group(G), scales);
        const uint32_t codes = 128 * warp() + uint32_t(16 * kFirst);
        if (value_scales(G).normalize(scales)) add_out_of_window<kFirst>(buffer + codes, s, scales);
        const uint32_t row = value_row<T>(buffer, lane()) + codes;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            uint32_t weights[4];
            const auto pack = [&](int n, float low, float high) {
                return cuda::pack_f16(low * scales[2 * n], high * scales[2 * n + 1]);
            };
            pack_weights(s, k, pack, weights);
#pragma unroll
            for (int c = 0; c < kSteps / 2; ++c) {
                uint32_t raw[4];
                cuda::ldmatrix_x4_trans(raw, row + uint32_t(k) * kHalf + uint32_t(32 * c));
                multiply_code_values(raw, [&](int n, int odd, uint32_t b0, uint32_t b1) {
                    cuda::mma_half<cuda::Half::f16>(sums_[kFirst + 2 * c + n][odd], weights, b0, b1);
                });
            }
        }
    }
    __device__ void add_rope(uint32_t buffer, const float (&s)[4][4]) {
        const uint32_t row = value_row<T>(buffer, lane()) + layout::Fp8_584::rope_at;
        add_bf16_values<4, 4>(sums_, s,
                              [&](int k, int n) { return row + uint32_t(k) * kHalf + uint32_t(32 * n); });
    }
    // Accumulates, one by one, keys whose scale is outside of the window, and sets their scales to 0. A lane
    // rotates its eight keys through registers, because a run-time index would move them to local memory.
    template <int First>
    __device__ void add_out_of_window(uint32_t codes, float (&s)[4][4], float (&scales)[8]) {
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
#pragma unroll 1
            for (int t = 0; t < 4; ++t) {
                const float scale = __shfl_sync(~0u, scales[0], t);
                const int from = int(lane() & ~3u) + t;
                const float weights[2] = {__shfl_sync(~0u, s[0][0], from) * scale,
                                          __shfl_sync(~0u, s[0][2], from) * scale};
                const uint32_t key = uint32_t(8 * (i / 2) + 2 * t + i % 2);
                if (ValueScales::out_of_window(scale))
                    add_key_f32(sums_, weights, First, kSteps, codes + key * T::pitch + 4 * (lane() % 4));
            }
            if (ValueScales::out_of_window(scales[0])) scales[0] = 0;
            const float first[3] = {scales[0], s[0][0], s[0][2]};
#pragma unroll
            for (int j = 0; j < 7; ++j) {
                scales[j] = scales[j + 1];
                s[j / 2][j % 2] = s[(j + 1) / 2][(j + 1) % 2];
                s[j / 2][2 + j % 2] = s[(j + 1) / 2][2 + (j + 1) % 2];
            }
            scales[7] = first[0], s[3][1] = first[1], s[3][3] = first[2];
        }
    }

    const char* shared_;
    uint32_t q_[T::k_steps][4];
    // [n][b]: sums of the even (b = 0) or odd columns of the 16 that start at 128 warp + 16 n; in bf16 rope,
    // of the first or last 8.
    float sums_[T::n_steps][2][4] = {};
};

// Operands of bf16 rows. A warp multiplies every fourth group of 16 columns of keys and of values.
template <class T>
class FewRows {
public:
    using Kind = RowKind;

    __device__ explicit FewRows(const char*) {}
    // Loads columns 16 * (4 s + warp) for step s. bf16 queries are not scaled.
    __device__ void load_queries(const QueryTile<T::width, T::query_rows>& queries, uint32_t, float (&)[2]) {
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s) {
            queries.operand(0, uint32_t(4 * s + warp()), q_[s]);
            if constexpr (T::decoded) order_queries(q_[s]);
        }
    }

    // Computes this warp's part of Q K^T: 16 heads x 32 keys.
    __device__ void score(uint32_t buffer, const RowKind&, float (&s)[4][4]) const {
        const int lane = threadIdx.x % 32, row = (lane & 7) + (lane >> 4) * 8;
        const uint32_t keys =
            swizzled_at(buffer, T::pitch, uint32_t(row), uint32_t(2 * warp() + (lane >> 3 & 1)));
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 4][i % 4] = 0;
#pragma unroll
        for (int k = 0; k < T::k_steps; ++k) {
            uint32_t low[4], high[4];
            cuda::ldmatrix_x4(low, keys + uint32_t(128 * k));
            cuda::ldmatrix_x4(high, keys + uint32_t(128 * k + 16 * T::pitch));
            cuda::mma_bf16(s[0], q_[k], low[0], low[1]);
            cuda::mma_bf16(s[1], q_[k], low[2], low[3]);
            cuda::mma_bf16(s[2], q_[k], high[0], high[1]);
            cuda::mma_bf16(s[3], q_[k], high[2], high[3]);
        }
    }
    // Computes O += P V.
    __device__ void accumulate(uint32_t buffer, const RowKind&, const float (&s)[4][4]) {
        const int lane = threadIdx.x % 32;
        const uint32_t values =
            swizzled_at(buffer, T::pitch, uint32_t(lane & 15), uint32_t(2 * warp() + (lane >> 4)));
        add_bf16_values<0, T::n_steps>(
            sums_, s, [&](int k, int n) { return values + uint32_t(k * 16 * T::pitch + 128 * n); });
    }
    __device__ void rescale(const float (&by)[2]) {
#pragma unroll
        for (int i = 0; i < 8 * T::n_steps; ++i) sums_[i / 8][i / 4 % 2][i % 4] *= by[i / 2 % 2];
    }
    // Returns the output column of this warp's column c.
    static __device__ int column_of(int c) { return 64 * (c / 16) + 16 * warp() + c % 16; }
    __device__ void write(const typename T::Epilogue& out, smla_format) const {
#pragma unroll
        for (int i = 0; i < 4 * T::n_steps; ++i) {
            const Pair pair = neighbours<T>(sums_[i / 4], i / 2 % 2, i % 2);
            out.write(threadIdx.x % 32 / 4 + 8 * (i % 2), 8 * uint32_t(i / 2) + 2 * (threadIdx.x % 4),
                      pair.low, pair.high);
        }
    }

private:
    static __device__ int warp() { return int(threadIdx.x) / 32; }

    uint32_t q_[T::k_steps][4];
    float sums_[T::n_steps][2][4] = {};  // [n][b]: sums of columns 64 n + 16 warp + 8 b
};

}  // namespace smla::cuda_attend
