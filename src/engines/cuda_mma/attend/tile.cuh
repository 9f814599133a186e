// The tile of attend's mma kernel: its sizes, its map of shared memory, where a lane finds its operands.
#pragma once

#include "engines/cuda_mma/attend/schedule.h"

#include <cstdint>

namespace smla::cuda_attend {

constexpr int kRawRow = 656;      // bytes that the longest fp8 record takes in shared memory
constexpr int kBoardBytes = 560;  // keys.cuh

// What is derived from the value is computed here, not once before a loop: registers are dearer than the
// instructions.
__device__ inline int derive_here(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

// Width: of keys. Groups: of 16 heads. Parts: warps that share a group. Coded: fp8 records.
template <int Width, int Groups, int Parts, bool Coded>
struct Tile {
    static constexpr int width = Width, groups = Groups, parts = Parts;
    static constexpr bool coded = Coded, many = Groups > 1;
    static constexpr int heads = 16 * Groups, warps = Groups * Parts, threads = 32 * warps;
    static constexpr int row = 2 * Width;                  // bytes of a key in shared memory
    static constexpr int k_steps = Width / 16 / Parts;     // of the score product, per warp
    static constexpr int m_tiles = many ? heads / 16 : 1;  // of the value product, per warp
    static constexpr int n_steps = kValueWidth / 16 / warps;
    static constexpr int rows_per_thread = 8 * kKeys / threads;  // 8 lanes copy a row

    // Blocks per multiprocessor that registers are to leave room for; where one has 100 KB of shared memory
    // only one block fits.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
    static constexpr int resident = 1;
#else
    static constexpr int resident = many ? 1 : Coded ? kFewCodedResident : kFewResident;
#endif

    // Shared memory. Two buffers of keys, one where three blocks of few heads fit a multiprocessor that way.
    static constexpr int buffers = Coded && !many ? 1 : 2;
    static constexpr int keys_bytes = kKeys * row;
    static constexpr int raw_at = buffers * keys_bytes;
    static constexpr int raw_bytes = Coded ? kKeys * kRawRow : 0;
    // Score products of each warp. Many heads and codes: they lie in the buffer that is being filled next.
    static constexpr bool exchange_in_buffer = Coded && many;
    static constexpr int exchange_at = raw_at + raw_bytes;
    static constexpr int exchange_bytes = 2048 * warps;
    static constexpr int weights_at = exchange_at + (exchange_in_buffer ? 0 : exchange_bytes);
    static constexpr int factors_at = weights_at + (many ? heads * kKeys * 2 : 0);
    static constexpr int board_at = factors_at + heads * 4;
    static constexpr int pairs_at = board_at + kBoardBytes;  // a HeadPair for every 4 lanes
    static constexpr int bytes = pairs_at + 4 * threads;
    static_assert(bytes <= 99 * 1024);
    static_assert(!exchange_in_buffer || exchange_bytes <= keys_bytes);
    static_assert(Width % (16 * Parts) == 0 && Parts % 2 == 0 && kValueWidth % (16 * warps) == 0);
};

template <int Width, bool Coded>
using FewHeads = Tile<Width, 1, 4, Coded>;
template <int Width, bool Coded>
using ManyHeads = Tile<Width, 4, 2, Coded>;

}  // namespace smla::cuda_attend
