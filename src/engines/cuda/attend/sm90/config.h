// Traits, shared memory, barriers and register budget of attend on Hopper. kernel.cu describes the kernel.
#pragma once

#include "engines/cuda/attend/sm90/tasks.cuh"
#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/common/ptx/half.cuh"
#include "engines/cuda/common/ptx/wgmma.cuh"

#include <cstddef>
#include <type_traits>

namespace smla::cuda_attend::sm90 {

using cuda::kTileBytes;

constexpr int kConsumers = 2 * kWarpgroup, kThreads = 3 * kWarpgroup;
// Registers per thread, summed over two consumer warpgroups and the producer. A consumer has 128 for O, 32
// for S and 16 for P; a producer keeps the records between load and store.
constexpr int kRegisters = 504;

// Named barriers; 0 is __syncthreads.
enum class Barrier : int {
    weights = 1,  // and 2, selected by the parity of the tile
    queries_read = 3,
    statistics = 4,
};

struct Smem {
    // 64 heads x 64 columns each, in order of columns
    char queries[9][kTileBytes];
    // two stages of 64 keys x 512 columns; tiles 0 to 3 are the left half of the columns
    char keys[2][8][kTileBytes];
    // columns 512 to 575 of a tile's keys; later, the weights of these keys
    char ring[3][kTileBytes];
    float peaks[2][kHeads];  // softmax peaks after a tile, by parity of the tile
    // softmax sums and largest products of a task, by parity of the task and by warpgroup
    float sums[2][2][kHeads], largest[2][2][kHeads];
    uint16_t valid[2][4];  // bit k: key k of the producer warp is valid; by stage and warp
    uint64_t keys_full[2][2], keys_empty[2][2];  // mbarriers of the halves of a stage
    uint64_t rope_full[3], queries_copied, queries_full, pass_done;
    float query_factor[kHeads];  // factor of products that yields logits of f16 queries
    uint32_t out_of_range;       // first tile with a scale outside of f16's range; ~0: none
};
constexpr uint32_t kQueriesAt = offsetof(Smem, queries), kKeysAt = offsetof(Smem, keys),
                   kRingAt = offsetof(Smem, ring), kPeaksAt = offsetof(Smem, peaks),
                   kSumsAt = offsetof(Smem, sums), kLargestAt = offsetof(Smem, largest),
                   kValidAt = offsetof(Smem, valid), kQueriesCopiedAt = offsetof(Smem, queries_copied),
                   kQueriesFullAt = offsetof(Smem, queries_full), kPassDoneAt = offsetof(Smem, pass_done),
                   kQueryFactorAt = offsetof(Smem, query_factor),
                   kOutOfRangeAt = offsetof(Smem, out_of_range);
// Addresses of the mbarriers for one half of a stage of keys, and for the rope columns of tile `tile`.
__device__ inline uint32_t keys_full(uint32_t base, uint32_t stage, uint32_t half) {
    return base + uint32_t(offsetof(Smem, keys_full)) + 16 * stage + 8 * half;
}
__device__ inline uint32_t keys_empty(uint32_t base, uint32_t stage, uint32_t half) {
    return base + uint32_t(offsetof(Smem, keys_empty)) + 16 * stage + 8 * half;
}
__device__ inline uint32_t rope_full(uint32_t base, uint32_t tile) {
    return base + uint32_t(offsetof(Smem, rope_full)) + 8 * (tile % 3);
}
constexpr uint32_t kStageBytes = 8 * kTileBytes, kHalfBytes = 4 * kTileBytes;
static_assert(sizeof(Smem) <= 232448, "what a block of sm_90 may have");

// Traits of fp8 records with keys of type `Type`.
template <cuda::Half Type>
struct Latents {
    static constexpr bool records = true;
    // type of queries, keys and weights; columns of rope are always bf16
    static constexpr cuda::Half half = Type;
    static constexpr bool f16 = Type == cuda::Half::f16;
    // Factor of the keys' columns except rope, and of the queries' columns of rope, so that all products have
    // it. f16: scales of 2^-23 to 1 (for maxima of 0.00005 to 448) become 2^-16 to 2^7. A scale of 2^-16 has
    // 8 bits, like bf16, and 448 * 2^7 is finite. bf16: a code times any scale from 2^-76 to 2^47 stays
    // finite during the conversion (conversion.cuh).
    static constexpr float key_factor = f16 ? 0x1p7f : 0x1p-40f;
    // log2 of the weight of the peak; other weights are at most 2^8 times this weight. f16 represents values
    // down to 2^-24, so with 2^7, weights down to 2^-31 of the peak are nonzero.
    static constexpr float peak_weight_log2 = f16 ? 7.f : 0.f;
};
// Traits of fp8_656 and, without rope, of fp8_528: an f32 scale for every 128 codes.
template <cuda::Half Type, bool Rope>
struct LatentsF32 : Latents<Type> {
    using Bf16 = LatentsF32<cuda::Half::bf16, Rope>;
    using Layout = std::conditional_t<Rope, layout::Fp8_656, layout::Fp8_528>;
    static constexpr int consumer_registers = 208;
    static constexpr bool rope = Rope;        // columns 512 to 575, which are not in values
    static constexpr bool early_rope = Rope;  // rope is copied a tile ahead, with separate barriers
    static constexpr int row_bytes = Layout::record;
    // Whether columns are permuted. In every 128 columns, columns 16p to 16p + 7 (16 bytes) are chunk p of
    // the first of two tiles, and columns 16p + 8 to 16p + 15 are chunk p of the second. The 16 codes of a
    // producer lane thus become one chunk in each of two tiles, and its stores have no bank conflicts.
    // Queries have the same order; the epilogue restores the original order.
    static constexpr bool permuted = true;
    static constexpr int natural_from = 512;  // first column that is not permuted
    static constexpr int codes = 512;
    static constexpr int sources = 1;
    static constexpr uint32_t rope_tile = 8;
};
// Traits of fp8_584, whose last 64 columns are rope and also values. All keys become bf16, the type of the
// rope, because values of two types would require two products and weights of two types.
struct Latents584 : Latents<cuda::Half::bf16> {
    static constexpr int consumer_registers = 192;
    static constexpr bool rope = false, early_rope = false, permuted = true;
    static constexpr int natural_from = 384, codes = 448, sources = 2, row_bytes = layout::Fp8_584::row;
    static constexpr uint32_t rope_tile = 7;
};
template <int Width>
struct Rows {  // traits of bf16 rows
    static constexpr cuda::Half half = cuda::Half::bf16;
    static constexpr bool f16 = false;
    static constexpr int consumer_registers = 208;
    static constexpr bool records = false, rope = Width == 576, early_rope = false, permuted = false;
    static constexpr int natural_from = 0, codes = 0, sources = 2;
    static constexpr float key_factor = 1, peak_weight_log2 = 0;
    static constexpr uint32_t rope_tile = 8;
};

}  // namespace smla::cuda_attend::sm90
