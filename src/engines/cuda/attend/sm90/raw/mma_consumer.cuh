// Consumer of 16 heads, which are the rows of mma.sync m16n8k16.
#pragma once

#include "engines/cuda/attend/sm90/raw/consumer.cuh"
#include "engines/cuda/common/ptx/wgmma.cuh"

namespace smla::cuda_attend::sm90::raw {

// With g = lane / 4 and t = lane % 4, a lane's products belong to heads g and g + 8 (elements 0, 1 and 2, 3),
// and to keys 8 n + 2 t and + 1 of the warp's 16. Its values belong to columns 4 t to 4 t + 3: elements 0 to
// 3 to even columns, 4 to 7 to odd columns.
struct MmaLane {
    static constexpr int heads = 2;
    static constexpr int run = 4;                        // neighboring columns, and products of a head
    static constexpr int first_step = 1, last_step = 2;  // steps between lanes with the same heads
    static __device__ int first_head(int lane) { return lane / 4; }
    static constexpr int head_step(int j) { return 8 * j; }
    static constexpr int head_of(int product) { return product % 4 / 2; }
    static __device__ int first_key(int lane) { return 2 * (lane % 4); }
    static constexpr int key_step(int product) { return 8 * (product / 4) + product % 2; }
    static __device__ int first_column(int lane) { return 4 * (lane % 4); }
    // Returns the index of the lane's product c with head j or, among sums of values, of its column c.
    static constexpr int product(int j, int c) { return c % 2 * 4 + 2 * j + c / 2; }
};

template <class Shape>
class MmaConsumer : public Consumer<Shape, MmaLane, MmaConsumer<Shape>> {
    using Base = Consumer<Shape, MmaLane, MmaConsumer>;
    friend Base;
    using Base::queries_, Base::lane_, Base::warp_, Base::kProducts;
    static_assert(Shape::heads == 16);
    static constexpr uint32_t kBatches = Shape::batches;        // batches of 32 columns
    static constexpr uint32_t kScales = Shape::scaled ? 4 : 1;  // scales of a key

public:
    using Base::o;

    __device__ MmaConsumer(uint32_t base, uint32_t group) : Base(base, group) {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) fragment_[k] = chunk_at(lane_ % 16, 2 * k + lane_ / 16);
#pragma unroll
        for (int j = 0; j < MmaLane::heads; ++j)
            unit_[j] = cuda::load_shared_f32(this->unit_at(j)), peak_[j] = kNoPeak;
    }

private:
    __device__ float unit_of(int j) const { return unit_[j]; }
    __device__ float peak_of(int j) const { return peak_[j]; }
    __device__ void set_peaks(const float (&peak)[MmaLane::heads]) {
#pragma unroll
        for (int j = 0; j < MmaLane::heads; ++j) peak_[j] = peak[j];
        this->publish_peaks(peak);
    }
    // Loads the scales. The lane's key i is the warp's key 8 (i / 2) + 2 t + i % 2.
    __device__ void load_scales(uint32_t at) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t from = this->scales_of(at, 16 * warp_ + 8 * (i / 2) + 2 * (lane_ % 4) + i % 2);
#pragma unroll
            for (uint32_t g = 0; g < kScales; ++g) scales_[g][i] = cuda::load_shared_f32(from + 4 * g);
        }
    }
    static constexpr int key_of(int product) { return product / 4 * 2 + product % 2; }
    // Loads rows of 16 columns of the queries, or of 16 keys of the weights, from a tile of 64.
    __device__ void load_rows(uint32_t tile, uint32_t k, uint32_t (&a)[4]) const {
        cuda::ldmatrix_x4(a, tile + fragment_[k]);
    }

    // Computes the products s of codes and queries: with one scale per cache, their sum; otherwise, rope plus
    // the sum over groups of 128 columns of scale * products. Two accumulators alternate, because each
    // product waits for the previous one in its accumulator.
    __device__ void score(const Tile& tile, float (&s)[kProducts]) {
        const uint32_t at = tile.at;
        if (Shape::scaled) load_scales(at);
        uint32_t codes[2][4];
        this->load_codes(at, 0, codes[0]);
        this->load_codes(at, 1, codes[1]);
        float total[2][4] = {}, group[2][2][4] = {};
        add_rope(at, total);
#pragma unroll
        for (uint32_t b = 0; b < kBatches; ++b) {
#pragma unroll
            for (uint32_t k = 0; k < 2; ++k) {
                uint32_t q[4], keys[4];
                const uint32_t step = 2 * b + k;
                load_rows(queries_ + step / 4 * Shape::query_tile, step % 4, q);
                cuda::e4m3_to_f16(codes[b % 2][2 * k], keys[0], keys[1]);
                cuda::e4m3_to_f16(codes[b % 2][2 * k + 1], keys[2], keys[3]);
#pragma unroll
                for (uint32_t n = 0; n < 2; ++n) cuda::mma_f16(group[k][n], q, keys[2 * n], keys[2 * n + 1]);
            }
            if (b + 2 < kBatches) this->load_codes(at, b + 2, codes[b % 2]);
            if (Shape::scaled && b % 4 == 3) add_group(b / 4 % kScales, group, total);
        }
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
            s[i] = Shape::scaled ? total[i / 4][i % 4] : group[0][i / 4][i % 4] + group[1][i / 4][i % 4];
    }

    __device__ void add_rope(uint32_t at, float (&total)[2][4]) const {
#pragma unroll
        for (uint32_t b = 0; b != uint32_t(Shape::rope_batches); ++b)
#pragma unroll
            for (uint32_t k = 0; k < 2; ++k) {
                uint32_t q[4], keys[4];
                load_rows(queries_ + 8 * Shape::query_tile, 2 * b + k, q);
                this->load_rope(at, b, k, keys);
#pragma unroll
                for (uint32_t n = 0; n < 2; ++n) cuda::mma_bf16(total[n], q, keys[n], keys[n + 2]);
            }
    }
    __device__ void add_group(uint32_t g, float (&group)[2][2][4], float (&total)[2][4]) const {
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
            float &first = group[0][i / 4][i % 4], &second = group[1][i / 4][i % 4];
            total[i / 4][i % 4] += scales_[g][key_of(i)] * (first + second);
            first = second = 0;
        }
    }

    // Stores the weights. Returns true if any weight of the lane exceeded 2^15 or is NaN.
    template <cuda::Half Type>
    __device__ bool weigh(const Tile& tile, const float (&s)[kProducts],
                          float (&added)[MmaLane::heads]) const {
        float w[kProducts], most = 0;
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
            // The product is rounded first, so that the largest cancels the peak exactly.
            w[i] = cuda::exp2_fast(__fmul_rn(s[i], unit_[MmaLane::head_of(i)]) - peak_[MmaLane::head_of(i)]);
            most = cuda::max_nan(most, w[i]);
        }
#pragma unroll
        for (int j = 0; j < MmaLane::heads; ++j)
            added[j] = (w[2 * j] + w[2 * j + 1]) + (w[2 * j + 4] + w[2 * j + 5]);
        if (Shape::scaled && Type == cuda::Half::f16) {
#pragma unroll
            for (uint32_t g = 0; g < kScales; ++g) {
                float scaled[kProducts];
#pragma unroll
                for (int i = 0; i < kProducts; ++i) scaled[i] = w[i] * scales_[g][key_of(i)];
                store_weights<Type>(g, scaled);
            }
        } else {
            store_weights<Type>(Shape::scaled ? 0 : tile.turn & 1, w);
        }
        return !(most <= 0x1p15f);
    }
    template <cuda::Half Type>
    __device__ void store_weights(uint32_t place, const float (&w)[kProducts]) const {
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = cuda::pack_half<Type>(w[2 * i], w[2 * i + 1]);
        cuda::stmatrix_x4(this->weights(place) + chunk_at(lane_ % 16, 2 * warp_ + lane_ / 16), p);
    }

    // Computes O += P V.
    __device__ void add_values(const Tile& tile) {
        uint32_t codes[2][4], p[4][4];
        this->load_values(tile.at, 0, codes);
        if (!Shape::scaled) load_weights(tile.turn & 1, p);
#pragma unroll
        for (uint32_t m = 0; m < 8; ++m) {
            if (Shape::scaled && m % 2 == 0) load_weights(m / 2, p);
            uint32_t even[8], odd[8];
#pragma unroll
            for (uint32_t i = 0; i < 8; ++i) this->convert(codes[i / 4][i % 4], even[i], odd[i]);
            if (m < 7) this->load_values(tile.at, m + 1, codes);
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                cuda::mma_f16(o[m], p[k], even[2 * k], even[2 * k + 1]);
                cuda::mma_f16(o[m] + 4, p[k], odd[2 * k], odd[2 * k + 1]);
            }
        }
        this->release(tile.stage);  // after the products, because an arrival does not wait for loads
    }
    __device__ void load_weights(uint32_t place, uint32_t (&p)[4][4]) const {
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) load_rows(this->weights(place), k, p[k]);
    }

    // Adds the values of 16 keys in 16 of the warp's columns, each as the sum of high and low.
    __device__ void add_split_values(uint32_t m, uint32_t k, const uint32_t (&high)[4],
                                     const uint32_t (&low)[4]) {
        uint32_t p[4];
        load_rows(this->weights(0), k, p);
#pragma unroll
        for (const uint32_t* part : {high, low}) {
            cuda::mma_bf16(o[m], p, part[0], part[2]);
            cuda::mma_bf16(o[m] + 4, p, part[1], part[3]);
        }
    }

    uint32_t fragment_[4];  // offset of the lane's row of 16 columns in a tile of 64
    float unit_[MmaLane::heads], peak_[MmaLane::heads];  // unit_: factors of products that yield log2 logits
    float scales_[kScales][4];  // scales of the lane's key i for columns 128 g to 128 g + 127
};

}  // namespace smla::cuda_attend::sm90::raw
