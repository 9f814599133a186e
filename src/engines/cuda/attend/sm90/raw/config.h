// Traits and shared memory of attend on Hopper over raw records. kernel.cu describes the kernel.
#pragma once

#include "engines/cuda/attend/sm90/tasks.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "formats/layouts.h"

#include <cstddef>

namespace smla::cuda_attend::sm90::raw {

constexpr int kProducerWarps = 4;
// Named barriers; 0 is __syncthreads. kConsumerBarrier: one per warpgroup, 1 and 4. kStartBarrier: mbarriers
// are initialized, and queries are in shared memory. kJoinBarrier: both warpgroups have finished their tiles.
constexpr int kConsumerBarrier = 1, kProducerBarrier = 2, kStartBarrier = 3, kJoinBarrier = 5;

// Traits of a block. Records have 512 codes with an f32 scale for every 128 (fp8_656, whose 64 values of rope
// are bf16, and fp8_528, without rope), or 576 or 512 codes and one scale for the cache. Heads: heads per
// block, of which each of two warpgroups processes half if there are 64. TileGroups: warpgroups that process
// alternate tiles of all heads.
template <smla_format Format, int Heads, int TileGroups>
struct Shape {
    static constexpr int head_parts = Heads == 64 ? 2 : 1, tile_groups = TileGroups;
    static constexpr int groups = head_parts * tile_groups;  // consumer warpgroups
    static constexpr int block_heads = Heads, heads = Heads / head_parts;
    static constexpr int consumers = kWarpgroup * groups, threads = consumers + 32 * kProducerWarps;
    static constexpr int resident = groups == 1 ? 2 : 1;
    static constexpr int stages = tile_groups == 1 ? 2 : heads == 16 ? 4 : 3;  // as many as fit
    // mbarriers that signal the arrival of records. A waiter sees only the parity of a phase, so each
    // mbarrier belongs to one consumer warpgroup, which waits for every phase.
    static constexpr int fulls = stages % tile_groups == 0 ? stages : stages * tile_groups;
    static_assert(fulls % tile_groups == 0 && fulls % stages == 0);
    // Registers per consumer and producer thread; both start with 128 or, with two warpgroups, 168.
    static constexpr int consumer_registers = heads == 16 ? 216 : 240;
    static constexpr int producer_registers = heads == 16 ? 40 : 24;
    static constexpr bool largest_in_shared = heads == 32;  // does not fit in registers
    static constexpr bool rope = Format == SMLA_FP8_656, scaled = rope || Format == SMLA_FP8_528;
    static constexpr int codes = Format == SMLA_FP8_576 ? 576 : 512;
    static constexpr int record = rope ? layout::Fp8_656::record : scaled ? layout::Fp8_528::record : codes;
    // Bytes of a record in shared memory: an odd number of 16-byte chunks, so that the rows of an ldmatrix
    // have no bank conflicts.
    static constexpr int pitch = record / 16 % 2 ? record : record + 16;
    static constexpr int scales_at = layout::Fp8_656::scales_at, rope_at = layout::Fp8_656::rope_at;
    static_assert(layout::Fp8_528::scales_at == scales_at);
    static constexpr int query_tile = heads * 128;  // bytes of 64 columns
    static constexpr int query_tiles = rope || codes == 576 ? 9 : 8;
    static constexpr int batches = codes / 32, rope_batches = rope ? 2 : 0;  // 32 columns of scores each
    static constexpr int pairs = heads / 8;  // pairs of heads per lane: its share of 16 columns
};

// log2 of the weight of the peak. As f16 represents 2^-24, weights down to 2^-31 of the peak are nonzero.
constexpr float kPeakWeightLog2 = 7;
// Range of nonzero scales that f16 weights can be multiplied by. Weights are below 2^15, and the weight of
// the peak (at least 2^7) keeps 14 bits.
constexpr float kLeastScale = 0x1p-17f, kMostScale = 1;
constexpr float kNoPeak = -0x1p100f;  // peak before the first key: any logit raises it

// Shared memory of a consumer warpgroup.
template <class Shape>
struct alignas(1024) GroupSmem {
    // Weights [heads, 64 keys]. If scaled: one array per 128 columns, multiplied by their scales; else: one
    // per parity of the tile.
    char weights[Shape::scaled ? 4 : 2][Shape::query_tile];
    float most[4][Shape::heads], sums[4][Shape::heads];  // maximum and sum per warp
    float4 heads[Shape::heads / 2];  // of two heads: factors from products to log2 logits x, y; peaks z, w
    float factors[Shape::heads];     // factors of output rows
    uint32_t out_of_range_tile[2];   // 1 + the last tile with a scale out of range, by parity
};
template <class Shape>
struct Smem {
    alignas(1024) char queries[Shape::head_parts][Shape::query_tiles][Shape::query_tile];
    GroupSmem<Shape> groups[Shape::groups];
    char records[Shape::stages][kKeys * Shape::pitch];
    uint16_t valid[Shape::stages][4];  // bit k: key k of this quarter of a tile is valid
    uint64_t full[Shape::fulls], empty[Shape::stages];
    // Largest products of each thread.
    float largest[Shape::largest_in_shared ? 2 * Shape::pairs : 1]
                 [Shape::largest_in_shared ? Shape::consumers : 1];
};

// Offsets in GroupSmem::heads: unit of a head, and distance from the unit to the peak.
constexpr uint32_t offset_of_head(uint32_t head) { return head / 2 * 16 + head % 2 * 4; }
constexpr uint32_t kPeakAfterUnit = 8;
template <class Shape>
__device__ uint32_t unit_at(uint32_t group, uint32_t head) {
    return group + uint32_t(offsetof(GroupSmem<Shape>, heads)) + offset_of_head(head);
}
// Return the shared address of consumer warpgroup `group`, and of the queries that it multiplies.
template <class Shape>
__device__ uint32_t group_at(uint32_t base, uint32_t group) {
    return base + uint32_t(offsetof(Smem<Shape>, groups)) + group * uint32_t(sizeof(GroupSmem<Shape>));
}
template <class Shape>
__device__ uint32_t queries_at(uint32_t base, uint32_t group) {
    const uint32_t first = base + uint32_t(offsetof(Smem<Shape>, queries));
    return Shape::head_parts == 1 ? first : first + group * (Shape::query_tiles * Shape::query_tile);
}

}  // namespace smla::cuda_attend::sm90::raw
