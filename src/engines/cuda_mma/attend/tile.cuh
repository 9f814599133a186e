// The tiles of attend's mma kernels: their sizes, their maps of shared memory.
#pragma once

#include "engines/cuda_mma/attend/schedule.h"

#include <cstdint>

namespace smla::cuda_attend {

constexpr int kRawRow = 656;   // bytes that the longest fp8 record takes in shared memory
constexpr int kParts = 4;      // warps that share the width of a product
constexpr int kCopiers = 128;  // threads that copy a tile, 8 to a row

// What is derived from the value is computed here, not once before a loop: registers are dearer than the
// instructions.
__device__ inline int derive_here(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

// Width: of keys. Coded: fp8 records. Keys: listed rows of a tile. M: groups of 16 heads that a warp serves.
template <int Width, bool Coded, int Keys, int M>
struct TileBase {
    static constexpr int width = Width, keys = Keys, m_tiles = M;
    static constexpr bool coded = Coded;
    static constexpr int row = 2 * Width;                          // bytes of a key in shared memory
    static constexpr int keys_bytes = Keys * row;                  // a buffer
    static constexpr int raw_bytes = Coded ? Keys * kRawRow : 0;   // records of a tile, as they come
    static constexpr int k_steps = Width / 16 / kParts;            // of the score product, per warp
    static constexpr int n_steps = kValueWidth / 16 / kParts;      // of the value product, per warp
    static constexpr int rows_per_thread = Keys / (kCopiers / 8);  // that a thread copies an eighth of
    static constexpr int board_bytes = 2 * 64 + 4 * 4 * Keys;      // Board<Keys>, keys.cuh
    static_assert(Width % (16 * kParts) == 0 && Keys % 16 == 0);
};

// 16 heads, 4 warps, 32 keys. Two buffers of keys, one where three blocks fit a multiprocessor that way.
template <int Width, bool Coded>
struct FewHeads : TileBase<Width, Coded, 32, 1> {
    using Base = TileBase<Width, Coded, 32, 1>;
    static constexpr int heads = kFewHeads, warps = 4, threads = 32 * warps;
    // Blocks per multiprocessor that registers are to leave room for; where one has 100 KB of shared memory
    // only one block fits.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
    static constexpr int resident = 1;
#else
    static constexpr int resident = Coded ? kFewCodedResident : kFewResident;
#endif
    static constexpr int buffers = Coded ? 1 : 2;
    static constexpr int raw_at = buffers * Base::keys_bytes;
    static constexpr int exchange_at = raw_at + Base::raw_bytes;  // score products of each warp
    static constexpr int factors_at = exchange_at + 2048 * warps;
    static constexpr int board_at = factors_at + heads * 4;
    static constexpr int peaks_at = board_at + Base::board_bytes;  // Peaks<2> for every 4 lanes
    static constexpr int bytes = peaks_at + 4 * threads;
    static_assert(bytes <= 99 * 1024);
};

// Teams of 4 warps with 32 heads each, 16 keys: two teams that share the keys, or one.
template <int Width, bool Coded, int Teams>
struct TeamHeads : TileBase<Width, Coded, 16, 2> {
    using Base = TileBase<Width, Coded, 16, 2>;
    static constexpr int teams = Teams, team_heads = 32, heads = teams * team_heads;
    static constexpr int warps = teams * kParts, threads = 32 * warps;
    // Blocks per multiprocessor that registers leave room for.
    static constexpr int resident = teams == 1 ? kSomeResident : 1;
    // Tiles that are made before they are multiplied, and the buffers that this takes.
    static constexpr int ahead = Coded ? teams : 2, buffers = ahead + (Coded || teams == 1 ? 1 : 2);
    // A team has row numbers of so many of its tiles under way. One team's copies of bf16 rows overlap.
    static constexpr int rows_ahead = Coded || teams > 1 ? 1 : 2;
    static constexpr int fillers = kCopiers + (Coded ? 0 : Base::keys);   // arrivals that fill a buffer
    static constexpr int raw_at = buffers * Base::keys_bytes;             // one per team
    static constexpr int exchange_at = raw_at + teams * Base::raw_bytes;  // per team: from 4 warps to 4
    static constexpr int exchange_bytes = kParts * kParts * 512;
    static constexpr int weights_at = exchange_at + teams * exchange_bytes;
    static constexpr int weights_bytes = team_heads * Base::keys * 2;
    static constexpr int factors_at = weights_at + teams * weights_bytes;
    static constexpr int barriers_at = factors_at + heads * 4;   // full and empty of each buffer
    static constexpr int masks_at = barriers_at + 16 * buffers;  // a byte per key, of 4 tiles
    static constexpr int board_at = masks_at + 16 * 4;
    static constexpr int peaks_at = board_at + Base::board_bytes;  // Peaks<1> for every 4 lanes
    static constexpr int bytes = peaks_at + 2 * threads;
    static_assert(bytes <= 99 * 1024 && barriers_at % 8 == 0 && ahead % teams == 0);
};
template <int Width, bool Coded>
using SomeHeads = TeamHeads<Width, Coded, 1>;
template <int Width, bool Coded>
using ManyHeads = TeamHeads<Width, Coded, 2>;

}  // namespace smla::cuda_attend
