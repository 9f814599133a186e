// Tile and shared memory of cuda_sm90_score. The design is in docs/kernels/cuda_score.md.
#pragma once

#include "engines/cuda/common/ptx/wgmma.cuh"
#include "engines/cuda/score/key_tile.cuh"

namespace smla::cuda::sm90 {

// Which products: e4m3 as they are, or as f16, where every product and each sum of two is exact.
enum class Products { e4m3, f16 };

constexpr int kThreads = 128;                   // one warpgroup
constexpr int kKeys = 128;                      // of a tile: two banks of 64
constexpr int kColumns = 64;                    // of a bank: (query row, head) pairs
constexpr int kMostSteps = 8, kMostHeads = 64;  // a step: the query rows of one bank, 64 / heads
constexpr int kWidth = 128;

// Blocks per multiprocessor: f16 keys take twice the registers, and many rows per bank more of them.
constexpr int resident_blocks(Products products, int heads) {
    return products == Products::e4m3 && heads >= 32 ? 3 : 2;
}
// Bytes of the queries of a step, which is what one bank multiplies: 64 columns.
constexpr int step_bytes(Products products) {
    return kColumns * kWidth * (products == Products::e4m3 ? 1 : 2);
}

struct ScoreTask {
    Tensor q, w;
    KeySource keys;
    Windows window;
    float* logits;  // of column window.begin
    int64_t stride;
    int tokens, heads, rows, groups, splits, fill;
    uint32_t zero;  // 0, which the compiler does not know: end_block()
};

// Shared memory of a block, in this order.
struct Shared {
    char* queries;      // [steps] tiles of wgmma, 1024-byte aligned
    float4* weights;    // [steps][4][4]: of thread l%4, halved
    int64_t* requests;  // [rows]
    Window* windows;    // [rows]

    __device__ Shared(char* memory, Products products, int steps, int rows)
        : queries(memory),
          weights(reinterpret_cast<float4*>(memory + steps * step_bytes(products))),
          requests(reinterpret_cast<int64_t*>(weights + steps * kColumns / 4)),
          windows(reinterpret_cast<Window*>(requests + rows)) {}
};
constexpr size_t shared_bytes(Products products, int steps, int rows) {  // rows: steps * 64 / heads
    return size_t(steps) * (step_bytes(products) + kColumns * sizeof(float)) +
           size_t(rows) * (sizeof(int64_t) + sizeof(Window));
}

}  // namespace smla::cuda::sm90
