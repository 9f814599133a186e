// Products of a few tokens on AMX tiles, bound by reading the weights. Weights are bf16, sums f32. x is bf16,
// or split into three bf16, each a separate row, whose sum is exact.
#pragma once

#include <cstdint>

namespace smla::cpu_project {

constexpr int kTileRows = 16;
constexpr int64_t kStep = 32;          // values of the inner dimension that a tile holds
constexpr int64_t kUnitOutputs = 128;  // maximum outputs of one call

// out[r][n] = sum_k x[r][k] * w(n, k) for n in [0, outputs) and 1 or 2 tiles of 16 rows. The weights are
// dense along k or n; the other stride is in elements.
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

// Splits a row of x into three rows of bf16, `part_stride` values apart, of 8 bits each, whose sum is exact.
// Values that are not finite go only to the first row.
void split_row(const float* x, int64_t inner, uint16_t* out, int64_t part_stride);
// Packs [rows][width] to [width / 2][rows][2], with 16 or 32 rows and a width of whole steps.
void pair_columns(const uint16_t* x, int64_t rows, int64_t width, uint16_t* out);

}  // namespace smla::cpu_project
