// Products of a few tokens on AMX tiles, bound by reading the weights. Weights are bf16, sums f32. x is bf16,
// or split into three bf16 that add up to it exactly, each a row of its own.
#pragma once

#include <cstdint>

namespace smla::cpu_project {

constexpr int kTileRows = 16;
constexpr int64_t kStep = 32;          // values of the inner dimension that a tile holds
constexpr int64_t kUnitOutputs = 128;  // at most, of one call

// out[r][n] = sum_k x[r][k] * w(n, k) for n in [0, outputs) and `tiles` times 16 rows, 1 or 2. Along k or
// along n the weights are dense, the other stride counts elements.
struct FewTiles {
    const uint16_t* w;
    int64_t w_stride;
    // Inputs: pairs of neighbors [inner / 2][rows][2] if weights are dense along k, else [rows][inner]. Zeros
    // pad the inner dimension to whole steps.
    const uint16_t* x;
    float* out;  // [rows][kUnitOutputs]
    int64_t inner, outputs;
    int tiles;
    bool along_inner;
};

void multiply_few_tiles(const FewTiles& args);

// A row of x as three rows of bf16, `part_stride` values apart, that add up to it, 8 bits each. Values that
// are not finite go to the first one alone.
void split_row(const float* x, int64_t inner, uint16_t* out, int64_t part_stride);
// [rows][width] as [width / 2][rows][2]; rows: 16 or 32, width: whole steps.
void pair_columns(const uint16_t* x, int64_t rows, int64_t width, uint16_t* out);

}  // namespace smla::cpu_project
