// Traits, shared memory and register budget of attend_few: 16 heads x 32 keys, 4 warps.
#pragma once

#include "engines/cuda/attend/epilogue.cuh"
#include "engines/cuda/attend/mma/config.h"
#include "engines/cuda/attend/mma/key_tiles.cuh"

namespace smla::cuda_attend {

template <int Width, KeyForm Form>
struct FewHeads : TileConfig<Width, Form, 32> {
    using Base = TileConfig<Width, Form, 32>;
    static constexpr int heads = kFewHeads, warps = 4, threads = 32 * warps;

    // Register budget: minimum number of blocks per multiprocessor for the compiler. On sm_89 and sm_120,
    // shared memory (100 KB) has space for only one block; on sm_80, decoding e4m3 takes extra registers.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
    static constexpr int resident = 1;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
    static constexpr int resident = kFewResident;
#else
    static constexpr int resident = Form == KeyForm::rows ? kFewResident : kFewCodedResident;
#endif

    static constexpr int stages = 2;     // stages of keys
    static constexpr int row_slots = 4;  // tiles in the ring of row numbers
    static constexpr int copy_lanes = 8, rows_per_thread = Base::keys * copy_lanes / threads;
    static constexpr int query_rows = heads / warps;          // queries that one warp loads
    static constexpr int k_steps = Width / 16 / warps;        // steps of Q K^T per warp
    static constexpr int n_steps = kValueWidth / 16 / warps;  // steps of P V per warp

    using TileList = TileListSmem<Base::keys, row_slots>;
    using Epilogue = EpilogueBuffer<kValueWidth / warps>;

    struct Smem {
        union {
            char keys[stages][Base::keys_bytes];  // stage 1 initially contains the queries
            char epilogue[warps][Epilogue::bytes];
        };
        float4 scores[warps][4][32];   // partial products of each warp; initially, max |q| of each head
        float factors[heads];          // factors of output rows
        float value_scales[warps][2];  // references of ValueScales
        TileList tile_list;
    };
    static constexpr int scores_at = offsetof(Smem, scores), factors_at = offsetof(Smem, factors),
                         value_scales_at = offsetof(Smem, value_scales),
                         tile_list_at = offsetof(Smem, tile_list), bytes = sizeof(Smem);

    static_assert(Width % (16 * warps) == 0 && 2 * Width * heads <= Base::keys_bytes);
    static_assert(scores_at == stages * Base::keys_bytes, "the epilogue fits into the keys");
    static_assert(bytes <= kSharedLimit);
};

}  // namespace smla::cuda_attend
