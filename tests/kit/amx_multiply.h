// Arithmetic of tdpbf16ps, for amx_emulator.cpp.
#pragma once

#include <cstdint>

namespace smla::kit {

constexpr int kRows = 16, kRowBytes = 64;  // rows and bytes per row of a tile
using TileRows = uint8_t[kRows][kRowBytes];

// Adds a [rows][pairs] times b [pairs][row_bytes] to sum [rows][row_bytes] and zeroes the rest of sum. Tiles
// are aligned to a row.
void multiply_tiles(TileRows& sum, const TileRows& a, const TileRows& b, int rows, int pairs, int row_bytes);

}  // namespace smla::kit
