// Tile and shared memory of cuda_sm90_score. The design is in docs/kernels/cuda_score.md.
#pragma once

#include "engines/cuda/common/ptx/wgmma.cuh"
#include "engines/cuda/score/key_tile.cuh"
#include "engines/cuda/score/sm90/products.h"

namespace smla::cuda::sm90 {

constexpr int kWidth = 128;

// What products multiply: bytes of a query or a key; of the same as an operand; of a key's scales.
constexpr int code_bytes(Products products) { return products == Products::bf16 ? kWidth / 2 : kWidth; }
constexpr int operand_bytes(Products products) { return products == Products::e4m3 ? kWidth : 2 * kWidth; }
constexpr int kScaleBytes = 4;
template <Products P>
struct KeyRecord : layout::IndexFp8_132 {};
template <>
struct KeyRecord<Products::bf16> : layout::IndexMxfp4_68 {
    static constexpr int64_t scale_at(int64_t page_tokens, int64_t token) {
        return scales_at(page_tokens, token);
    }
};

// A relu, but for a factor that the weights contain. Products of e4m3 are finite, or NaN for a reason: x +
// |x| avoids the low-rate FMNMX. Those of bf16 may be -inf.
template <Products P>
__device__ inline float relu(float x) {
    return P == Products::bf16 ? max_nan(x, 0.f) : x + fabsf(x);
}
template <Products P>
constexpr float kReluFactor = P == Products::bf16 ? 1.f : 0.5f;

constexpr int kConsumers = kGroups * 128;   // threads of a block that multiply
constexpr int kThreads = kConsumers + 128;  // and those of the warpgroup that copies
constexpr int kConsumerRegisters = 112, kProducerRegisters = 32;
constexpr int kKeys = 64;                        // of a tile: one warpgroup's
constexpr int kMostHeads = 64, kWideHeads = 32;  // from kWideHeads on steps of 128 columns
constexpr int kMostColumns = 128, kMostSteps = 8, kMostRows = 64;

// i / n for i < 2^64 / n by a product: one token would wait as long for two divisions as for its window.
struct Divisor {
    uint64_t inverse = 0;

    explicit Divisor(uint64_t n) : inverse(n > 1 ? UINT64_MAX / n + 1 : 0) {}
    __device__ uint64_t divide(uint64_t i) const { return inverse ? __umul64hi(i, inverse) : i; }
};

struct ScoreTask {
    Tensor q, q_scales, w;
    KeySource keys;
    Windows window;
    Logits logits;                      // from column window.begin on
    int64_t stride_bytes, two_strides;  // of logits, both in bytes
    int tokens, heads, rows, groups, splits, fill;
    Divisor by_splits;
    int page_shift;  // column >> page_shift is its page; below 0: divide
};

// Block table and window by which a warp finds the keys of a run.
struct KeyPlaces {
    KeyColumns::Pages pages;
    Window window;
};

// Shared memory of a block. Queries come last, as their size is known at run time only: what lies at constant
// places takes no registers.
constexpr int stage_bytes(int key) { return kKeys * (key + kScaleBytes) + 32; }
template <int KeyBytes, int Stages>
struct alignas(1024) Shared {
    char keys[kGroups * Stages][stage_bytes(KeyBytes)];  // keys.cuh
    float4 weights[kMostSteps * kMostColumns / 4];       // [steps][columns/16][4]: of thread l%4
    int64_t requests[kMostRows];
    Window windows[kMostRows];
    KeyPlaces places[kGroups];       // of a producer warp, whose registers are short
    Window inside[kConsumers / 32];  // of a consumer warp: tiles that all rows see

    // [steps], in tiles of wgmma
    __device__ char* queries() { return reinterpret_cast<char*>(this + 1); }
};
constexpr size_t shared_bytes(Products products, int columns, int stages, int steps) {
    const size_t fixed = products == Products::bf16 ? sizeof(Shared<kWidth / 2, 4>)
                         : stages == 4              ? sizeof(Shared<kWidth, 4>)
                                                    : sizeof(Shared<kWidth, 2>);
    return fixed + size_t(steps) * size_t(columns * operand_bytes(products));
}

// Compile-time shape of a kernel. Columns: (query row, head) pairs of a step. Stages: of keys, per warpgroup.
template <int Heads, Products P, int Columns, int Stages>
struct Shape {
    static constexpr int heads = Heads, columns = Columns, stages = Stages, rows = Columns / Heads;
    static constexpr Products products = P;
    static constexpr int code_bytes = sm90::code_bytes(P), step_bytes = Columns * operand_bytes(P);
    using Memory = Shared<code_bytes, Stages>;
};

}  // namespace smla::cuda::sm90
