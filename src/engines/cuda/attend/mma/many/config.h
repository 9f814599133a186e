// Traits, shared memory, barriers and register budget of attend_many: 32 or 64 heads x 16 keys.
#pragma once

#include "engines/cuda/attend/epilogue.cuh"
#include "engines/cuda/attend/mma/config.h"
#include "engines/cuda/attend/mma/key_tiles.cuh"

namespace smla::cuda_attend {

// Named barriers; 0 is __syncthreads. kernel.cu lists who arrives and who waits.
enum class Barrier : int {
    factors_ready = 1,
    scores_sent = 2,  // and 3: one per pair of score warps
    scores_read = 4,  // and 5
    queries_loaded = 8,
    queries_taken = 9,
    score_warps = 10,
};
__device__ constexpr int id(Barrier barrier, uint32_t pair = 0) { return int(barrier) + int(pair); }

// mbarriers of a stage of keys, and of a stage of weights.
struct KeyBarriers {
    uint64_t full, empty;
};
struct WeightBarriers {
    uint64_t full, empty, scored;
};

template <int Width, KeyForm Form, int Heads>
struct ManyHeads : TileConfig<Width, Form, 16> {
    using Base = TileConfig<Width, Form, 16>;
    // A pair of score warps shares the width of 32 heads. Two value warps per score warp share the columns.
    static constexpr int heads = Heads, score_warps = Heads / 16, value_warps = Heads / 8;
    static constexpr int threads = 32 * (score_warps + value_warps);

    // Register budget: 65536 / (threads * resident) = 168 per thread for both roles. A score warp keeps up to
    // 112 registers of queries, a value warp 128 of accumulators.
    static constexpr int resident = kManyHeads / Heads;  // blocks per multiprocessor

    static constexpr int stages = Base::coded ? 5 : 4;  // stages of keys, as many as fit
    static constexpr int ahead = 3;                     // tiles that are loaded before they are multiplied
    static constexpr int weight_stages = 2;
    static constexpr int row_slots = 4;  // tiles in the ring of row numbers
    static constexpr int copy_lanes = Base::coded && Width == 512 ? 4 : 8;  // threads that copy a row

    static constexpr int k_steps = Width / 32;  // steps of Q K^T per score warp
    static constexpr int q_steps = !Base::coded ? 14 : Width == 512 ? 8 : 10;  // steps in registers
    static constexpr int q_spilled = k_steps - q_steps;                        // steps in shared memory
    static constexpr int columns = kValueWidth / value_warps;  // columns of P V per value warp
    static constexpr int m_values = Heads / 16, n_values = columns / 16;
    static constexpr int query_rows = Heads / value_warps;  // queries that one value warp loads

    static constexpr int spill_bytes = 1024 * q_spilled;  // bytes per score warp
    static constexpr int exchange_bytes =
        Base::coded ? 512 : 1024;  // bytes per score warp; 512: half of the sent products
    static constexpr int weights_bytes = Heads * Base::keys * 2;

    using TileList = TileListSmem<Base::keys, row_slots>;
    using Epilogue = EpilogueBuffer<columns>;

    struct Smem {
        struct MainLoop {
            char keys[stages][Base::keys_bytes];
            char queries[score_warps][spill_bytes];  // operands that do not fit in registers
            char exchange[score_warps][exchange_bytes];
            char weights[weight_stages][weights_bytes];
        };
        struct Prologue {
            char first_keys[Base::keys_bytes];  // keys that are loaded while queries are converted
            char queries[Heads][2 * Width];
        };
        union {
            MainLoop loop;
            Prologue prologue;
            char epilogue[value_warps][Epilogue::bytes];
        };
        // Rescaling factors of each weight stage. The last row: factors of output rows, and initially max
        // |q|.
        float factors[weight_stages + 1][Heads];
        uint8_t flags[weight_stages][4];  // kRescale and kAllHoles; a byte per score warp
        KeyBarriers key_barriers[stages];
        WeightBarriers weight_barriers[weight_stages];
        alignas(16) uint8_t masks[stages][Base::keys];  // 1 if the key is valid, else 0
        float value_scales[value_warps][2];             // references of ValueScales
        TileList tile_list;
    };
    static constexpr int spill_at = offsetof(Smem, loop.queries), exchange_at = offsetof(Smem, loop.exchange),
                         weights_at = offsetof(Smem, loop.weights),
                         query_tile_at = offsetof(Smem, prologue.queries),
                         factors_at = offsetof(Smem, factors), flags_at = offsetof(Smem, flags),
                         key_barriers_at = offsetof(Smem, key_barriers),
                         weight_barriers_at = offsetof(Smem, weight_barriers),
                         masks_at = offsetof(Smem, masks), value_scales_at = offsetof(Smem, value_scales),
                         tile_list_at = offsetof(Smem, tile_list), bytes = sizeof(Smem);

    static_assert(value_warps * Epilogue::bytes <= exchange_at, "the epilogue fits into keys and queries");
    static_assert(weights_at % 32 == 0 && masks_at % 16 == 0 && bytes <= kSharedLimit);
};

}  // namespace smla::cuda_attend
