// Tile and shared memory of cuda_sm90_score. The design is in docs/kernels/cuda_score.md.
#pragma once

#include "engines/cuda/common/ptx/wgmma.cuh"
#include "engines/cuda/score/key_tile.cuh"
#include "engines/cuda/score/sm90/products.h"

namespace smla::cuda::sm90 {

constexpr int kWidth = 128;

// Bytes of a query or key in memory, bytes of a query or key as an operand, and bytes of a key's scales.
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

// Returns relu(x) / kReluFactor. Products of e4m3 are finite or valid NaN, so x + |x| avoids the low-rate
// FMNMX. Products of bf16 may be -inf.
template <Products P>
__device__ inline float relu(float x) {
    return P == Products::bf16 ? max_nan(x, 0.f) : x + fabsf(x);
}
template <Products P>
constexpr float kReluFactor = P == Products::bf16 ? 1.f : 0.5f;

constexpr int kConsumers = kGroups * 128;   // threads of a block that multiply
constexpr int kThreads = kConsumers + 128;  // plus the copying warpgroup
constexpr int kConsumerRegisters = 112, kProducerRegisters = 32;
constexpr int kKeys = 64;                        // per tile of a warpgroup
constexpr int kMostHeads = 64, kWideHeads = 32;  // kWideHeads or more allow steps of 128 columns
constexpr int kMostColumns = 128, kMostSteps = 8, kMostRows = 64;

// Divides i < 2^64 / n by n with a product, because with one token two divisions take as long as the window.
struct Divisor {
    uint64_t inverse = 0;

    explicit Divisor(uint64_t n) : inverse(n > 1 ? UINT64_MAX / n + 1 : 0) {}
    __device__ uint64_t divide(uint64_t i) const { return inverse ? __umul64hi(i, inverse) : i; }
};

struct ScoreTask {
    Tensor q, q_scales, w;
    KeySource keys;
    Windows window;
    Logits logits;                      // starting at column window.begin
    int64_t stride_bytes, two_strides;  // strides of logits, both in bytes
    int tokens, heads, rows, groups, splits, fill;
    Divisor by_splits;
    int page_shift;  // column >> page_shift is the page; if < 0, divide
};

// Block table and window of a run, with which a warp finds keys.
struct KeyPlaces {
    KeyColumns::Pages pages;
    Window window;
};

// Shared memory of a block. Queries are last, because their size is known only at run time and addresses at
// constant offsets need no registers.
constexpr int stage_bytes(int key) { return kKeys * (key + kScaleBytes) + 32; }
template <int KeyBytes, int Stages>
struct alignas(1024) Shared {
    char keys[kGroups * Stages][stage_bytes(KeyBytes)];  // keys.cuh
    float4 weights[kMostSteps * kMostColumns / 4];       // [steps][columns/16][4]: weights of thread l%4
    int64_t requests[kMostRows];
    Window windows[kMostRows];
    KeyPlaces places[kGroups];       // per producer warp, to save registers
    Window inside[kConsumers / 32];  // per consumer warp: tiles that all rows see

    // [steps], in tiles of wgmma
    __device__ char* queries() { return reinterpret_cast<char*>(this + 1); }
};
constexpr size_t shared_bytes(Products products, int columns, int stages, int steps) {
    const size_t fixed = products == Products::bf16 ? sizeof(Shared<kWidth / 2, 4>)
                         : stages == 4              ? sizeof(Shared<kWidth, 4>)
                                                    : sizeof(Shared<kWidth, 2>);
    return fixed + size_t(steps) * size_t(columns * operand_bytes(products));
}

// Compile-time shape of a kernel. Columns: (query row, head) pairs of a step. Stages: per warpgroup.
template <int Heads, Products P, int Columns, int Stages>
struct Shape {
    static constexpr int heads = Heads, columns = Columns, stages = Stages, rows = Columns / Heads;
    static constexpr Products products = P;
    static constexpr int code_bytes = sm90::code_bytes(P), step_bytes = Columns * operand_bytes(P);
    using Memory = Shared<code_bytes, Stages>;
};

}  // namespace smla::cuda::sm90
