// Products of f32 activations and bf16 weights by mma.sync: arguments of both kernels.
#pragma once

#include "engines/candidate.h"

#include <cstdint>

namespace smla::cuda {

struct MmaProduct {
    smla_tensor out;  // [T,G,N]
    const float* x;   // [T,G,K], dense along k
    const uint16_t* w;
    int64_t x_token, x_group, w_group,
        w_step;                // elements between tokens, groups and rows along the dense dimension
    int outer, inner, tokens;  // N, K, T
    bool along_k;              // w is dense along k, otherwise along n
    bool whole_runs;           // outputs exist in aligned runs of eight
};

// Blocks that occupy an H200. The number is constant, because bits depend on it.
constexpr int64_t kEnoughBlocks = 100;
// Returns whether tiles have 64 outputs; otherwise they have 16.
inline bool enough_tiles(int64_t groups, int64_t outer) {
    return groups * ((outer + 63) / 64) >= kEnoughBlocks;
}

void run_mma_few(const MmaProduct& p, int64_t groups, const Env& env);
void run_mma_many(const MmaProduct& p, int64_t groups, const Env& env);

}  // namespace smla::cuda
