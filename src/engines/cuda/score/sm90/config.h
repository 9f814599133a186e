// Tile and shared memory of cuda_sm90_score. The design is in docs/kernels/cuda_score.md.
#pragma once

#include "engines/cuda/common/ptx/wgmma.cuh"
#include "engines/cuda/score/key_tile.cuh"

namespace smla::cuda::sm90 {

// Which products: e4m3 as they are, or as f16, where every product is exact.
enum class Products { e4m3, f16 };

constexpr int kGroups = 4, kConsumers = kGroups * 128;  // warpgroups of a block that multiply, their threads
constexpr int kThreads = kConsumers + 128;              // and those of the warpgroup that copies
constexpr int kConsumerRegisters = 112, kProducerRegisters = 32;
constexpr int kKeys = 64;  // of a tile: one warpgroup's
constexpr int kWidth = 128;
constexpr int kMostHeads = 64, kWideHeads = 32;  // from kWideHeads on steps of 128 columns
constexpr int kMostColumns = 128, kMostSteps = 8, kMostRows = 64;

struct ScoreTask {
    Tensor q, w;
    KeySource keys;
    Windows window;
    float* logits;                              // of column window.begin
    int64_t stride, stride_bytes, two_strides;  // of logits; two_strides: in bytes too
    int tokens, heads, rows, groups, splits, fill;
    int page_shift;  // column >> page_shift is its page; below 0: divide
};

// Block table and window by which a warp finds the keys of a run.
struct KeyPlaces {
    KeyColumns::Pages pages;
    Window window;
};

// Shared memory of a block. Queries come last, as their size is known at run time only: what lies at constant
// places takes no registers.
constexpr int kStageBytes = kKeys * (kWidth + int(sizeof(float))) + 32;
template <int Stages>
struct alignas(1024) Shared {
    char keys[kGroups * Stages][kStageBytes];       // keys.cuh
    float4 weights[kMostSteps * kMostColumns / 4];  // [steps][columns/16][4]: of thread l%4, halved
    int64_t requests[kMostRows];
    Window windows[kMostRows];
    KeyPlaces places[kGroups];       // of a producer warp, whose registers are short
    Window inside[kConsumers / 32];  // of a consumer warp: tiles that all rows see

    // [steps], in tiles of wgmma
    __device__ char* queries() { return reinterpret_cast<char*>(this + 1); }
};
constexpr size_t shared_bytes(int step_bytes, int stages, int steps) {
    return (stages == 4 ? sizeof(Shared<4>) : sizeof(Shared<2>)) + size_t(steps) * size_t(step_bytes);
}

constexpr int query_bytes(Products products) { return kWidth * (products == Products::e4m3 ? 1 : 2); }

// Compile-time shape of a kernel. Columns: (query row, head) pairs of a step. Stages: of keys, per warpgroup.
template <int Heads, Products P, int Columns, int Stages>
struct Shape {
    static constexpr int heads = Heads, columns = Columns, stages = Stages, rows = Columns / Heads;
    static constexpr Products products = P;
    static constexpr int step_bytes = Columns * query_bytes(P);
    using Memory = Shared<Stages>;
};

}  // namespace smla::cuda::sm90
