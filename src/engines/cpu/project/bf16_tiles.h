// Products of bf16 with bf16, exact, summed in f32 by vdpbf16ps, for one block of tokens and outputs. Weights
// are packed once per block; the rows of x are read in place.
#pragma once

#include <cstdint>

namespace smla::cpu_project {

// Lanes are outputs: a panel of packed weights has 4 registers of outputs, for consecutive pairs of the inner
// dimension. With 6 tokens this makes 24 sums, enough to hide the latency of a product (6 cycles at 2 per
// cycle), and 10 loads for 24 products.
constexpr int kPanel = 64, kTileTokens = 6;
// A panel of 1024 of the inner dimension is 128 KiB, so that 4 stay in a core's L2. The 6 rows of x that a
// panel multiplies occupy 12 KiB of L1. Longer inner dimensions are summed in parts, in memory.
constexpr int64_t kInnerBlock = 1024, kOuterBlock = 256, kTokenBlock = 512;

struct Bf16Block {
    const uint16_t* x;  // [tokens][inner]
    const uint16_t* w;  // (n, k) at w_outer * n + w_inner * k; one factor is 1
    void* out;          // [tokens][outer] f32 or bf16
    uint32_t* packed;   // room for outer, in whole panels, times kInnerBlock / 2
    float* sums;        // [tokens][sums_stride] if inner exceeds kInnerBlock
    int64_t x_stride, w_outer, w_inner, out_stride, sums_stride;
    int64_t tokens, outer, inner;  // inner is even
    bool out_bf16;
};

void multiply_bf16_block(const Bf16Block& block);

}  // namespace smla::cpu_project
