// Tile and shared memory of cuda_sm90_score. The design is in docs/kernels/cuda_score.md.
#pragma once

#include "engines/cuda/common/ptx/wgmma.cuh"
#include "engines/cuda/score/key_tile.cuh"

namespace smla::cuda::sm90 {

// Which products: e4m3 as they are, or as f16, where every product is exact.
enum class Products { e4m3, f16 };

constexpr int kGroups = 2, kThreads = kGroups * 128;  // warpgroups of a block
constexpr int kKeys = 64;                             // of a tile: one warpgroup's
constexpr int kWidth = 128;
constexpr int kMostHeads = 64, kMostRows = 128, kWideHeads = 32;  // from kWideHeads on steps of 128 columns

// Compile-time shape of a kernel. Columns: (query row, head) pairs of a step. Stages: of the pipeline of
// keys.
template <int Heads, Products P, int Columns, int Stages>
struct Shape {
    static constexpr int heads = Heads, columns = Columns, stages = Stages, rows = Columns / Heads;
    static constexpr Products products = P;
    static constexpr int step_bytes = Columns * kWidth * (P == Products::e4m3 ? 1 : 2);
};

struct ScoreTask {
    Tensor q, w;
    KeySource keys;
    Windows window;
    float* logits;                              // of column window.begin
    int64_t stride, stride_bytes, two_strides;  // of logits; two_strides: in bytes too
    int tokens, heads, rows, groups, splits, fill;
    int page_shift;  // column >> page_shift is its page; below 0: divide
};

// Block table and window by which a warpgroup finds its keys.
struct KeyPlaces {
    KeyColumns::Pages pages;
    Window window;
};

// Shared memory of a block: queries, in tiles of wgmma; stages of keys (keys.cuh); weights; requests;
// windows.
constexpr int kStageBytes = kKeys * (kWidth + int(sizeof(float))) + 32;
struct Shared {
    char* queries;      // [steps], 1024-byte aligned
    char* keys;         // [kGroups][stages][kStageBytes]
    float4* weights;    // [steps][columns/16][4]: of thread l%4, halved
    int64_t* requests;  // [rows]
    KeyPlaces* places;  // [kGroups]
    Window* windows;    // [rows]

    template <class Shape>
    static __device__ Shared of(char* memory, Shape, int steps) {
        Shared out;
        out.queries = memory;
        out.keys = memory + steps * Shape::step_bytes;
        out.weights = reinterpret_cast<float4*>(out.keys + kGroups * Shape::stages * kStageBytes);
        out.requests = reinterpret_cast<int64_t*>(out.weights + steps * Shape::columns / 4);
        out.places = reinterpret_cast<KeyPlaces*>(out.requests + steps * Shape::rows);
        out.windows = reinterpret_cast<Window*>(out.places + kGroups);
        return out;
    }
};
// bytes: of a value of a query.
constexpr size_t shared_bytes(int bytes, int columns, int heads, int stages, int steps) {
    return size_t(kGroups) * (stages * kStageBytes + sizeof(KeyPlaces)) +
           size_t(steps) * (size_t(columns) * (kWidth * bytes + sizeof(float)) +
                            size_t(columns / heads) * (sizeof(int64_t) + sizeof(Window)));
}

}  // namespace smla::cuda::sm90
