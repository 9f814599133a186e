// 16 heads against fp8 records: what a warp of attend_few multiplies. Its share is 128 of the first 512
// columns, of keys and of values, and 16 of the other 64.
#pragma once

#include "engines/cuda_mma/attend/codes.cuh"
#include "engines/cuda_mma/attend/few/weights.cuh"
#include "engines/cuda_mma/attend/queries.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

template <class T>
class FewRecords {
public:
    using Kind = RecordKind<T::width>;

    __device__ explicit FewRecords(const char* shared) : shared_(shared) {
        for (int g = 0; g < kGroups; ++g) value_scales(g).clear();
        __syncwarp();
    }
    // Left operands, in their heads' units, which the products' unit takes up. `largest`: of the 16 heads.
    __device__ void load_queries(const QueryRows<T::width, T::query_rows>& queries, uint32_t largest,
                                 float (&unit)[2]) {
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s)
            queries.operand(0, s < 8 ? 8 * part() + uint32_t(s) : 32 + part(), q_[s]);
#pragma unroll
        for (int r = 0; r < 2; ++r)
            unit[r] = QueryUnit(cuda::load_shared_f32(largest + 4 * (lane() / 4 + 8 * uint32_t(r))))
                          .of_products(unit[r]);
    }

    // This warp's share of the products of its 16 heads with 32 keys. What a product needs is on its way
    // during the one before.
    __device__ void score(uint32_t buffer, const Kind& kind, float (&s)[4][4]) const {
        const uint32_t row = key_row<T>(buffer, lane()), codes = row + 128 * part();
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
            score_rope<1>(row + layout::Fp8_656::rope_at + 32 * part(), T::k_steps - 1, s);
    }

    // Sums += weights V.
    __device__ void add(uint32_t buffer, const Kind& kind, float (&s)[4][4]) {
        add_group<0>(buffer, kind, s);
        if constexpr (kGroups == 2) {
            if (is_rope(kind.bf16_rope(), kSteps)) add_rope(buffer, s);
            else add_group<1>(buffer, kind, s);
        }
    }
    __device__ void shrink(const float (&by)[2]) {
#pragma unroll
        for (int i = 0; i < 8 * T::n_steps; ++i) sums_[i / 8][i / 4 % 2][i % 4] *= by[i / 2 % 2];
    }
    // Of the 512, column c of this warp's.
    static __device__ int column_of(int c) { return int(128 * part()) + c; }
    __device__ void put(const WayOut<128>& out, smla_format format) const {
        float units[kGroups];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) units[g] = value_scales(g).unit();
#pragma unroll
        for (int n = 0; n < T::n_steps; ++n)
            put_codes_or_rope(out, lane(), 16 * uint32_t(n), is_rope(has_bf16_rope(format), n), sums_[n],
                              units[n / kSteps]);
    }

private:
    static constexpr int kGroups = 128 / T::scaled,
                         kSteps = T::scaled / 16;     // of columns with one scale each
    static constexpr uint32_t kHalf = 16 * T::pitch;  // the tile's other 16 keys

    static __device__ uint32_t part() { return threadIdx.x / 32; }
    static __device__ uint32_t lane() { return threadIdx.x % 32; }
    __device__ ValueScales value_scales(int g) const {
        return {cuda::shared_address(shared_) + T::scales_at + 4 * (2 * part() + uint32_t(g))};
    }
    static __device__ uint32_t group(int g) { return 2 * part() + uint32_t(g); }
    // Whether 16 columns of values from 16 s on of this warp are bf16.
    static __device__ bool is_rope(bool bf16_rope, int s) {
        if (T::width == 576) return s == 8 && bf16_rope;
        return s >= 4 && part() == 3 && bf16_rope;
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
    // fp8_576: 16 columns of all keys.
    __device__ void score_rope_codes(uint32_t buffer, float (&s)[4][4]) const {
        uint32_t raw[4];
        cuda::ldmatrix_x4(raw, buffer + lane() * T::pitch + layout::Fp8_576::rope_at + 16 * part());
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
        const uint32_t codes = 128 * part() + uint32_t(16 * kFirst);
        if (value_scales(G).relate(scales)) add_far<kFirst>(buffer + codes, s, scales);
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
    // Keys whose scale is out of the window, one by one; their scales become 0. What a lane has of its eight
    // keys turns by one place each time: to choose among registers would put them into memory.
    template <int First>
    __device__ void add_far(uint32_t codes, float (&s)[4][4], float (&scales)[8]) {
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
#pragma unroll 1
            for (int t = 0; t < 4; ++t) {
                const float scale = __shfl_sync(~0u, scales[0], t);
                const int from = int(lane() & ~3u) + t;
                const float weights[2] = {__shfl_sync(~0u, s[0][0], from) * scale,
                                          __shfl_sync(~0u, s[0][2], from) * scale};
                const uint32_t key = uint32_t(8 * (i / 2) + 2 * t + i % 2);
                if (ValueScales::is_far(scale))
                    add_far_key(sums_, weights, First, kSteps, codes + key * T::pitch + 4 * (lane() % 4));
            }
            if (ValueScales::is_far(scales[0])) scales[0] = 0;
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
    // Columns 128 part + 16 n: even ones and odd ones, or, of bf16, the first 8 and the last.
    float sums_[T::n_steps][2][4] = {};
};

}  // namespace smla::cuda_attend
