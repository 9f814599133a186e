// Consumer of 32 heads, which are columns of wgmma.
#pragma once

#include "engines/cuda/attend/sm90/raw/consumer.cuh"

namespace smla::cuda_attend::sm90::raw {

// Keys are the first operand, in registers: rows 16 w + lane / 4 and + 8 of warp w for scores, and columns 16
// w + 2 (lane / 4) and + 1 of each 64 for values. A lane's products thus belong to two keys, or two columns,
// and to heads 8 i + 2 (lane % 4) and + 1.
struct WgmmaLane {
    static constexpr int heads = 8;
    static constexpr int run = 2;                         // neighboring columns, and products of a head
    static constexpr int first_step = 4, last_step = 16;  // steps between lanes with the same heads
    static __device__ int first_head(int lane) { return 2 * (lane % 4); }
    static constexpr int head_step(int j) { return 8 * (j / 2) + j % 2; }
    static constexpr int head_of(int product) { return product / 4 * 2 + product % 2; }
    static __device__ int first_key(int lane) { return lane / 4; }
    static constexpr int key_step(int product) { return 8 * (product / 2 % 2); }
    static __device__ int first_column(int lane) { return 2 * (lane / 4); }
    // Returns the index of the lane's product c with head j or, among sums of values, of its column c.
    static constexpr int product(int j, int c) { return j / 2 * 4 + j % 2 + 2 * c; }
};

template <class Shape>
class WgmmaConsumer : public Consumer<Shape, WgmmaLane, WgmmaConsumer<Shape>> {
    using Base = Consumer<Shape, WgmmaLane, WgmmaConsumer>;
    friend Base;
    using Base::barrier_, Base::group_smem_, Base::queries_, Base::lane_, Base::warp_, Base::kPitch;
    using Base::kProducts;
    using typename Base::Group;
    static_assert(Shape::heads == 32);
    static constexpr int kPairs = Shape::pairs;

public:
    using Base::o;

    __device__ WgmmaConsumer(uint32_t base, uint32_t group) : Base(base, group) {}

private:
    __device__ float unit_of(int j) const { return cuda::load_shared_f32(this->unit_at(j)); }
    __device__ float peak_of(int j) const { return cuda::load_shared_f32(this->unit_at(j) + kPeakAfterUnit); }
    __device__ void set_peaks(const float (&peak)[WgmmaLane::heads]) {
        cuda::named_barrier<kWarpgroup>(barrier_);  // all threads have read the previous peaks
        this->publish_peaks(peak);
        cuda::named_barrier<kWarpgroup>(barrier_);
    }
    // Computes the products s of codes and queries: with one scale per cache, their sum; otherwise, rope plus
    // the sum over groups of 128 columns of scale * products. Two accumulators alternate: one is read while
    // the next group is multiplied.
    __device__ void score(const Tile& tile, float (&s)[kProducts]) {
        const uint32_t at = tile.at;
        const uint64_t queries = cuda::k_major(queries_);
        const uint32_t scales = first_scales(at);
        uint32_t codes[2][4], a[2][8];
        this->load_codes(at, 0, codes[0]);
        this->load_codes(at, 1, codes[1]);
        float group[2][kProducts];
#pragma unroll
        for (uint32_t b = 0; b != kRope; ++b) {
#pragma unroll
            for (uint32_t k = 0; k < 2; ++k) {
                uint32_t words[4];
                this->load_rope(at, b, k, words);
#pragma unroll
                for (int i = 0; i < 4; ++i) a[b][4 * k + i] = words[i];
            }
            multiply<cuda::Half::bf16>(s, a[b], cuda::advanced(queries, 8 * Shape::query_tile + 64 * b),
                                       b == 0);
        }
        if (kRope) cuda::wgmma_wait<1>();
#pragma unroll
        for (uint32_t b = 0; b < kBatches; ++b) {
            uint32_t(&operand)[8] = a[b % 2];
#pragma unroll
            for (uint32_t k = 0; k < 2; ++k) {
                cuda::e4m3_to_f16(codes[b % 2][2 * k], operand[4 * k], operand[4 * k + 2]);
                cuda::e4m3_to_f16(codes[b % 2][2 * k + 1], operand[4 * k + 1], operand[4 * k + 3]);
            }
            if (b + 2 < kBatches) this->load_codes(at, b + 2, codes[b % 2]);
            const uint64_t q = cuda::advanced(queries, b / 2 * Shape::query_tile + b % 2 * 64);
            if (Shape::scaled) multiply<cuda::Half::f16>(group[b / 4 % 2], operand, q, b % 4 == 0);
            else multiply<cuda::Half::f16>(s, operand, q, b == 0);
            if (b + 1 < kBatches) cuda::wgmma_wait<1>();
            if (Shape::scaled && b >= 4 && b % 4 == 0)
                add_group(scales, b / 4 - 1, group[(b / 4 - 1) % 2], s);
        }
        cuda::wgmma_wait<0>();
        if (Shape::scaled) add_group(scales, 3, group[1], s);
    }
    // Numbers of batches of 32 columns.
    static constexpr uint32_t kBatches = Shape::batches, kRope = Shape::rope_batches;

    // Multiplies 32 columns; `first`: whether they are the first in the sum.
    template <cuda::Half Type>
    static __device__ void multiply(float (&sums)[kProducts], const uint32_t (&keys)[8], uint64_t queries,
                                    bool first) {
        cuda::wgmma_fence();
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k)
            cuda::wgmma_few<Type>(sums, keys + 4 * k, cuda::advanced(queries, 32 * k), !first || k != 0);
        cuda::wgmma_commit();
    }
    __device__ void add_group(uint32_t scales, uint32_t g, const float (&products)[kProducts],
                              float (&s)[kProducts]) const {
        float scale[2];
#pragma unroll
        for (uint32_t r = 0; r < 2; ++r) scale[r] = cuda::load_shared_f32(scales + 8 * r * kPitch + 4 * g);
#pragma unroll
        for (int i = 0; i < kProducts; ++i) {
            const float product = scale[i / 2 % 2] * products[i];
            s[i] = g == 0 && !Shape::rope ? product : s[i] + product;
        }
    }
    // Returns the address of the scales of the lane's first key. Its second key is 8 records further.
    __device__ uint32_t first_scales(uint32_t at) const {
        return this->scales_of(at, 16 * warp_ + lane_ / 4);
    }

    // Stores the weights. Returns true if any weight of the lane exceeded 2^15 or is NaN.
    template <cuda::Half Type>
    __device__ bool weigh(const Tile& tile, const float (&s)[kProducts],
                          float (&added)[WgmmaLane::heads]) const {
        const uint32_t heads = group_smem_ + offsetof(Group, heads) + 16 * (lane_ % 4);
        float w[kPairs][4], most = 0;
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            const uint4 of = cuda::load_shared_4(heads + 64 * n);
            const float unit[2] = {__uint_as_float(of.x), __uint_as_float(of.y)},
                        peak[2] = {__uint_as_float(of.z), __uint_as_float(of.w)};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                // The product is rounded first, so that the largest cancels the peak exactly.
                w[n][e] = cuda::exp2_fast(__fmul_rn(s[4 * n + e], unit[e % 2]) - peak[e % 2]);
                most = cuda::max_nan(most, w[n][e]);
            }
            added[2 * n] = w[n][0] + w[n][2], added[2 * n + 1] = w[n][1] + w[n][3];
        }
        if (Shape::scaled && Type == cuda::Half::f16) {
            const uint32_t scales = first_scales(tile.at);
#pragma unroll
            for (uint32_t g = 0; g < 4; ++g)
                store_weights<Type>(g, w, cuda::load_shared_f32(scales + 4 * g),
                                    cuda::load_shared_f32(scales + 8 * kPitch + 4 * g));
        } else {
            store_weights<Type>(Shape::scaled ? 0 : tile.turn & 1, w, 1, 1);
        }
        cuda::fence_async_proxy();
        return !(most <= 0x1p15f);
    }
    // Stores weights multiplied by the scales of the lane's two keys.
    template <cuda::Half Type>
    __device__ void store_weights(uint32_t place, const float (&w)[kPairs][4], float first,
                                  float second) const {
        uint32_t p[2 * kPairs];
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            p[2 * n] = cuda::pack_half<Type>(w[n][0] * first, w[n][1] * first);
            p[2 * n + 1] = cuda::pack_half<Type>(w[n][2] * second, w[n][3] * second);
        }
        const uint32_t to = this->weights(place);
#pragma unroll
        for (uint32_t n = 0; n < kPairs; n += 2)
            cuda::stmatrix_x4_trans(
                to + chunk_at(8 * n + lane_ / 16 * 8 + lane_ % 8, 2 * warp_ + lane_ / 8 % 2), p + 2 * n);
    }

    // Computes O += V^T P. ldmatrix.trans delivers the codes of columns 2 g and 2 g + 1 of keys 2 t and 2 t +
    // 1 to a lane.
    __device__ void add_values(const Tile& tile) {
        const uint64_t weights = cuda::k_major(this->weights(Shape::scaled ? 0 : tile.turn & 1));
        uint32_t codes[2][4], a[2][16];
        this->load_values(tile.at, 0, codes);
#pragma unroll
        for (uint32_t m = 0; m < 8; ++m) {
            const uint64_t of_columns =
                cuda::advanced(weights, Shape::scaled ? m / 2 * Shape::query_tile : 0);
            uint32_t(&operand)[16] = a[m % 2];
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                this->convert(codes[k / 2][k % 2 * 2], operand[4 * k], operand[4 * k + 1]);
                this->convert(codes[k / 2][k % 2 * 2 + 1], operand[4 * k + 2], operand[4 * k + 3]);
            }
            if (m < 7) this->load_values(tile.at, m + 1, codes);
            cuda::wgmma_fence();
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k)
                cuda::wgmma_few<cuda::Half::f16>(o[m], operand + 4 * k, cuda::advanced(of_columns, 32 * k),
                                                 true);
            cuda::wgmma_commit();
            if (m < 7) cuda::wgmma_wait<1>();
        }
        this->release(tile.stage);  // after the products, because an arrival does not wait for loads
        cuda::wgmma_wait<0>();
    }
    // Adds the values of 16 keys in 16 of the warp's columns, each as the sum of high and low.
    __device__ void add_split_values(uint32_t m, uint32_t k, const uint32_t (&high)[4],
                                     const uint32_t (&low)[4]) {
        const uint64_t weights = cuda::k_major(this->weights(0));
        cuda::wgmma_fence();
        for (const uint32_t* part : {high, low})
            cuda::wgmma_few<cuda::Half::bf16>(o[m], part, cuda::advanced(weights, 32 * k), true);
        cuda::wgmma_commit();
        cuda::wgmma_wait<0>();
    }
};

}  // namespace smla::cuda_attend::sm90::raw
