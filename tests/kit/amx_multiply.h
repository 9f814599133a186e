// The arithmetic of tdpbf16ps, for amx_emulator.cpp.
#pragma once

#include <cstdint>

namespace smla::kit {

constexpr int kRows = 16, kRowBytes = 64;  // of a tile
using TileRows = uint8_t[kRows][kRowBytes];

// sum [rows][row_bytes] += a [rows][pairs] times b [pairs][row_bytes]; what lies beyond becomes zero. Tiles
// are aligned to a row.
void multiply_tiles(TileRows& sum, const TileRows& a, const TileRows& b, int rows, int pairs, int row_bytes);

}  // namespace smla::kit
