// attend on Hopper with few heads: traits and shared memory. kernel.cu tells the whole.
#pragma once

#include "engines/cuda/attend/sm90/config.h"

namespace smla::cuda_attend::sm90::few {

constexpr int kProducerWarps = 4, kStages = 2;
// Named barriers; 0 is __syncthreads. Consumer: of each warpgroup, 1 and 4. Start: mbarriers are initialised,
// and queries are in shared memory.
constexpr int kConsumerBarrier = 1, kProducerBarrier = 2, kStartBarrier = 3;

// Records: 512 codes with an f32 scale for every 128 (fp8_656, whose 64 values of rope are bf16, and fp8_528,
// which has none), or 576 or 512 codes and one scale for the cache. Heads: of a block; of 64 each of two
// warpgroups takes half.
template <smla_format Format, int Heads>
struct Shape {
    static constexpr int block_heads = Heads, groups = Heads == 64 ? 2 : 1, heads = Heads / groups;
    static constexpr int consumers = kWarpgroup * groups, threads = consumers + 32 * kProducerWarps;
    static constexpr int resident = Heads == 16 ? 2 : 1;
    // Of a consumer and a producer, of the 128 or, with 64 heads, 168 with which a thread starts; 0: as the
    // compiler gives them.
    static constexpr int consumer_registers = Heads == 16 ? 216 : Heads == 64 ? 240 : 0;
    static constexpr int producer_registers = Heads == 64 ? 24 : 40;
    static constexpr bool rope = Format == SMLA_FP8_656, scaled = rope || Format == SMLA_FP8_528;
    static constexpr int codes = Format == SMLA_FP8_576 ? 576 : 512;
    static constexpr int record = rope ? layout::Fp8_656::record : scaled ? layout::Fp8_528::record : codes;
    // In shared memory: an odd number of 16-byte chunks, so that the rows of an ldmatrix meet no bank twice.
    static constexpr int pitch = record / 16 % 2 ? record : record + 16;
    static constexpr int scales_at = layout::Fp8_656::scales_at, rope_at = layout::Fp8_656::rope_at;
    static_assert(layout::Fp8_528::scales_at == scales_at);
    static constexpr int query_tile = heads * 128;  // bytes of 64 columns
    static constexpr int query_tiles = rope || codes == 576 ? 9 : 8;
    // Of neighbouring heads that a lane has: 8 i + 2 (lane % 4) and + 1.
    static constexpr int pairs = heads / 8;
};

// log2 of the weight of the peak: sm90/config.h says why.
constexpr float kPeakWeightLog2 = Latents<cuda::Half::f16>::peak_weight_log2;
// Scales that f16 weights are multiplied with, and 0. Weights are below 2^15, and that of the peak, 2^7 and
// more, keeps 14 bits.
constexpr float kLeastScale = 0x1p-17f, kMostScale = 1;
constexpr float kNoPeak = -0x1p100f;  // before the first key: any logit raises it

// Of a consumer warpgroup and its heads.
template <class Shape>
struct alignas(1024) GroupSmem {
    char queries[Shape::query_tiles][Shape::query_tile];
    // [heads, 64 keys]. If scaled: weights times the scales of 128 columns each; else by the tile's parity
    char weights[Shape::scaled ? 4 : 2][Shape::query_tile];
    float most[4][Shape::heads], sums[4][Shape::heads];  // of a warp's keys
    float4 heads[Shape::heads / 2];  // of two heads: log2 logits are products times x, y; peaks z, w
    float factors[Shape::heads];     // of output rows
    uint32_t out_of_range_tile[2];   // by parity: 1 + the last tile with a scale out of range
};
template <class Shape>
struct Smem {
    GroupSmem<Shape> groups[Shape::groups];
    char records[kStages][kKeys * Shape::pitch];
    uint16_t valid[kStages][4];  // bit k: key k of this quarter of a tile is no hole
    uint64_t full[kStages], empty[kStages];
    // With 64 heads: the largest products of each thread, for which registers have no room.
    float largest[Shape::groups > 1 ? 2 * Shape::pairs : 1][Shape::groups > 1 ? Shape::consumers : 1];
};

}  // namespace smla::cuda_attend::sm90::few
