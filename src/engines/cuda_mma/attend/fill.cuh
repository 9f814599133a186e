// bf16 rows of keys on their way into shared memory, by cp.async. In a buffer, the 16-byte piece c of row r
// lies at c ^ (r & 7) within its 128 bytes, so that the 8 rows of an ldmatrix meet 8 different banks; padded
// rows do so too, but their copies straddle lines (5 % slower).
#pragma once

#include "engines/cuda_mma/attend/keys.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

// Where piece `piece`, below 8, of a row's first 128 bytes lies. Piece + 2 j, while below 8 too, lies at this
// address ^ 32 j; the next 128 bytes, 128 on.
__device__ inline uint32_t piece_at(uint32_t buffer, uint32_t pitch, uint32_t row, uint32_t piece) {
    return buffer + row * pitch + ((piece ^ (row & 7)) << 4);
}

// What products need to know of a tile's source besides: nothing.
struct RowKind {
    RowKind() = default;
    __device__ explicit RowKind(const Reader&) {}
};

// An eighth of a row, 16 bytes at a time: `to` is where its first piece lies. A hole's address is not used:
// zeros.
template <int Width>
__device__ inline void copy_row(uint32_t to, const char* from, bool valid, uint32_t piece) {
#pragma unroll
    for (int c = 0; c < 2 * Width; c += 128)
        cuda::cp_async_16(to + uint32_t(c), from + c + 16 * piece, valid);
}

}  // namespace smla::cuda_attend
