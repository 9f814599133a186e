// The tiles of attend's mma kernels: their sizes, their maps of shared memory.
#pragma once

#include "engines/cuda_mma/attend/schedule.h"

#include <cstdint>

namespace smla::cuda_attend {

// Bytes that an fp8 record takes in shared memory: the longest, an odd number of 16, so that the 8 rows of an
// ldmatrix meet 8 different banks.
constexpr int record_pitch(int width) { return width == 576 ? 656 : 592; }

constexpr int larger(int a, int b) { return a > b ? a : b; }

// Width: of keys. Coded: fp8 records. Keys: listed rows of a tile.
template <int Width, bool Coded, int Keys>
struct TileBase {
    static constexpr int width = Width, keys = Keys;
    static constexpr bool coded = Coded;
    static constexpr int pitch = Coded ? record_pitch(Width) : 2 * Width, keys_bytes = Keys * pitch;
    static constexpr int scaled = Width == 576 ? 128 : 64;  // values that have one scale in every format
    static constexpr int lift = Coded ? 7 : 0;              // weights are so many powers of two larger
};

// 16 heads, 4 warps that share the width, 32 keys. Two buffers of keys.
template <int Width, bool Coded>
struct FewHeads : TileBase<Width, Coded, 32> {
    using Base = TileBase<Width, Coded, 32>;
    static constexpr int heads = kFewHeads, warps = 4, threads = 32 * warps;
    // Blocks per multiprocessor that registers are to leave room for; where one has 100 KB of shared memory
    // only one block fits.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
    static constexpr int resident = 1;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
    static constexpr int resident = kFewResident;  // decoding without an instruction for it takes registers
#else
    static constexpr int resident = Coded ? kFewCodedResident : kFewResident;
#endif
    static constexpr int lanes = 8, rows_per_thread = Base::keys * lanes / threads;
    static constexpr int row_slots = 4;                       // for row numbers of tiles to come
    static constexpr int query_rows = heads / warps;          // that a warp brings, by way of a buffer
    static constexpr int k_steps = Width / 16 / warps;        // of the score product, per warp
    static constexpr int n_steps = kValueWidth / 16 / warps;  // of the value product, per warp
    static constexpr int buffers = 2;
    static constexpr int exchange_at = buffers * Base::keys_bytes;  // score products of each warp
    static constexpr int factors_at = exchange_at + 2048 * warps;
    static constexpr int scales_at = factors_at + heads * 4;  // of values: two for each warp
    static constexpr int board_at = scales_at + 8 * warps;
    static constexpr int bytes = board_at + 2 * 64 + 8 + row_slots * 4 * Base::keys;
    static_assert(Width % (16 * warps) == 0 && 2 * Width * heads <= Base::keys_bytes && bytes <= 99 * 1024);
};

// 32 or 64 heads, 16 keys. A pair of score warps for 32 heads, which share the width; two value warps for
// each score warp, which share the columns.
template <int Width, bool Coded, int Heads>
struct ManyHeads : TileBase<Width, Coded, 16> {
    using Base = TileBase<Width, Coded, 16>;
    static constexpr int heads = Heads, score_warps = Heads / 16, value_warps = Heads / 8;
    static constexpr int threads = 32 * (score_warps + value_warps);
    static constexpr int resident = kManyHeads / Heads;  // blocks that registers leave room for

    // Of keys: as many as fit. Of them, tiles under way before they are multiplied.
    static constexpr int buffers = Coded ? 5 : 4, ahead = 3;
    static constexpr int row_slots = 4;  // for row numbers of tiles to come
    // Value warps share a row between so many threads.
    static constexpr int copy_lanes = Coded && Width == 512 ? 4 : 8;

    static constexpr int k_steps = Width / 32;  // of a score warp's product
    // Of them those whose queries live in registers; the others' are in shared memory.
    static constexpr int q_steps = !Coded ? 14 : Width == 512 ? 8 : 10;
    static constexpr int q_rest = k_steps - q_steps;
    static constexpr int columns = kValueWidth / value_warps;  // of a value product, per warp
    static constexpr int m_values = Heads / 16, n_values = columns / 16;

    static constexpr int queries_at = buffers * Base::keys_bytes;
    static constexpr int queries_bytes = 1024 * q_rest;  // of a score warp: operands [lane][4]
    static constexpr int exchange_at = queries_at + score_warps * queries_bytes;
    static constexpr int exchange_bytes = Coded ? 512 : 1024;  // of a score warp
    static constexpr int weights = 2;                          // tiles whose weights have a place
    static constexpr int weights_bytes = Heads * Base::keys * 2;
    static constexpr int weights_at = exchange_at + score_warps * exchange_bytes;
    // Queries on their way to operands lie where nothing else does yet but the first tile.
    static constexpr int query_rows = Heads / value_warps, came_at = Base::keys_bytes,
                         came_bytes = 2 * Width * Heads;
    // For each place [heads]; one more for the end, and at first the heads' largest queries.
    static constexpr int factors_at = larger(weights_at + weights * weights_bytes, came_at + came_bytes);
    static constexpr int news_at = factors_at + (weights + 1) * Heads * 4;  // for each place a word
    static constexpr int barriers_at = news_at + 4 * weights;  // two for a buffer, three for a place
    // A byte per key.
    static constexpr int masks_at = (barriers_at + 16 * buffers + 24 * weights + 15) / 16 * 16;
    static constexpr int scales_at = masks_at + 16 * buffers;  // of values: two for each warp
    static constexpr int board_at = scales_at + 8 * value_warps;
    static constexpr int bytes = board_at + 2 * 64 + 8 + row_slots * 4 * Base::keys;
    static_assert(bytes <= 99 * 1024 && barriers_at % 8 == 0 && masks_at % 16 == 0 && board_at % 16 == 0);
};

}  // namespace smla::cuda_attend
