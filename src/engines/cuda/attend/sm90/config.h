// attend on Hopper: traits, shared memory, barriers and register budget. kernel.cu tells the whole.
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
// Registers per thread, summed over two consumer warpgroups and the producer. A consumer holds 128 of O, 32
// of S and 16 of P; a producer holds the records between load and store.
constexpr int kRegisters = 504;

// Named barriers; 0 is __syncthreads.
enum class Barrier : int {
    weights = 1,  // and 2, by the parity of the tile
    queries_read = 3,
    statistics = 4,
};

struct Smem {
    // 64 heads x 64 columns each; columns 512 to 575 last
    char queries[9][kTileBytes];
    // two stages of 64 keys x 512 columns; the left half of the columns is tiles 0 to 3
    char keys[2][8][kTileBytes];
    // columns 512 to 575 of a tile's keys; then, in the same slot, the weights of these keys
    char ring[3][kTileBytes];
    float peaks[2][kHeads];  // softmax peaks after a tile, by the tile's parity
    // a task's softmax sums and largest products, by the task's parity and by warpgroup
    float sums[2][2][kHeads], largest[2][2][kHeads];
    uint16_t valid[2][4];                        // by stage and producer warp: bit k, its key k is no hole
    uint64_t keys_full[2][2], keys_empty[2][2];  // of a stage's halves
    uint64_t rope_full[3], queries_copied, queries_full, pass_done;
    float query_factor[kHeads];  // logits of f16 queries are products times this
    uint32_t out_of_range;       // the first tile with a scale that f16 does not hold; ~0: none
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

// Kinds of keys.
template <cuda::Half Type>
struct Latents {
    static constexpr bool records = true;
    // of queries, keys and weights; columns of rope are bf16 always
    static constexpr cuda::Half half = Type;
    static constexpr bool f16 = Type == cuda::Half::f16;
    // Factor of the keys' columns that are not rope, and of the queries' columns of rope: all products have
    // it. f16: scales of 2^-23 to 1, those of maxima from 0.00005 to 448, become 2^-16 to 2^7. A scale of
    // 2^-16 has 8 bits, like bf16; 448 * 2^7 is still finite. bf16: a code times any scale from 2^-76 to 2^47
    // stays finite during the conversion (conversion.cuh).
    static constexpr float key_factor = f16 ? 0x1p7f : 0x1p-40f;
    // The weight of the peak; others are up to 2^8 times that. f16 has nothing below 2^-24, so there the
    // peak's is 2^7: weights down to 2^-31 of it count.
    static constexpr float peak_weight_log2 = f16 ? 7.f : 0.f;
};
// fp8_656 and, without rope, fp8_528: an f32 scale for every 128 codes.
template <cuda::Half Type, bool Rope>
struct LatentsF32 : Latents<Type> {
    using Bf16 = LatentsF32<cuda::Half::bf16, Rope>;
    using Layout = std::conditional_t<Rope, layout::Fp8_656, layout::Fp8_528>;
    static constexpr int consumer_registers = 208;
    static constexpr bool rope = Rope;        // columns 512 to 575, which are in no value
    static constexpr bool early_rope = Rope;  // copied a tile ahead, with barriers of its own
    static constexpr int row_bytes = Layout::record;
    // Whether columns are permuted: in every 128, columns 16p to 16p + 7 (16 bytes) are chunk p of the first
    // of two tiles, and columns 16p + 8 to 16p + 15 are chunk p of the second. So 16 codes, which a producer
    // lane holds, become one chunk in each of two tiles, and its stores have no bank conflicts. Queries have
    // the same order; the epilogue undoes it.
    static constexpr bool permuted = true;
    static constexpr int natural_from = 512;  // the first column that is not permuted
    static constexpr int codes = 512;
    static constexpr int sources = 1;
    static constexpr uint32_t rope_tile = 8;
};
// fp8_584: the last 64 columns are rope, and values too. All keys become bf16, the type of the rope: values
// of two types would take two products, and weights of two types.
struct Latents584 : Latents<cuda::Half::bf16> {
    static constexpr int consumer_registers = 192;
    static constexpr bool rope = false, early_rope = false, permuted = true;
    static constexpr int natural_from = 384, codes = 448, sources = 2, row_bytes = layout::Fp8_584::row;
    static constexpr uint32_t rope_tile = 7;
};
template <int Width>
struct Rows {  // bf16
    static constexpr cuda::Half half = cuda::Half::bf16;
    static constexpr bool f16 = false;
    static constexpr int consumer_registers = 208;
    static constexpr bool records = false, rope = Width == 576, early_rope = false, permuted = false;
    static constexpr int natural_from = 0, codes = 0, sources = 2;
    static constexpr float key_factor = 1, peak_weight_log2 = 0;
    static constexpr uint32_t rope_tile = 8;
};

}  // namespace smla::cuda_attend::sm90
