// Shape and shared memory of cuda_sm90_pages_score.
#pragma once

#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/shared.cuh"
#include "engines/cuda/common/tensor_map.h"
#include "engines/cuda/score/sm90/config.h"
#include "engines/cuda/score/sm90/pages/rows.h"

namespace smla::cuda::sm90::pages {

constexpr int kSlots = 2;      // slots for queries
constexpr int kCopyWarps = 3;  // for keys; a single warp copies a tile every 480 cycles
constexpr int kDraws = 4;      // ring of drawn pieces in shared memory

// With few rows per request, each warpgroup multiplies a tile by all rows. With many rows, units have kGroups
// times as many, and teams of warpgroups multiply a tile, each by different rows.
template <int Heads, int Rows, Products P, bool Many = false>
struct Shape {
    static constexpr bool many = Many;
    static constexpr int heads = Heads, rows = Rows, columns = Heads * Rows;  // per warpgroup
    static constexpr int unit_rows = many ? kGroups * rows : rows, unit_columns = Heads * unit_rows;
    static constexpr int most_tokens = many ? kMostTokensOfMany : kMostTokens;
    // Whether shared memory has windows and requests; short units soon read them again.
    static constexpr bool keeps_tokens = !many;
    static constexpr Products products = P;
    static constexpr bool mxfp4 = P == Products::bf16;
    static constexpr bool converts = P != Products::e4m3;  // otherwise the operands need no conversion
    // Whether blocks draw the last tiles (units.cuh), because memory bounds calls of few rows and its speed
    // differs between multiprocessors. Conversions bound mxfp4: drawing takes 114 us instead of 109.
    static constexpr bool draws = !many && !mxfp4;
    static constexpr int code_bytes = sm90::code_bytes(P);
    static constexpr int stages = many ? 6 : P == Products::f16 ? 12 : 16;
    static constexpr int stores = Rows > 2 ? Rows / 2 : 1;  // per thread and tile

    // Cost of a unit's start, equal to a tile of all warpgroups. A tile costs one per warpgroup of its team.
    // In a causal prompt the first block has most of the short units.
    static constexpr int start_cost = many ? kGroups : 0;
    // Returns log2 of the team size of a unit of `unit_rows` rows.
    static __device__ int team_log2(int unit_rows) {
        return !many || unit_rows <= rows ? 0 : unit_rows <= 2 * rows ? 1 : 2;
    }
};

struct Task {
    CUtensorMap key_map, query_map;  // unused for mxfp4
    Tensor q, q_scales;              // used for mxfp4
    KeyColumns place;
    const char* data;
    int64_t page_stride;
    Tensor w;
    Windows window;
    Logits logits;
    int64_t two_rows_bytes;  // stride of two rows of logits
    int tokens, heads, fill, fill_splits;
    int group, chunk;  // tokens of a group; tokens of as many groups as fit in 32 lanes
    int requests;      // requests in the block table, or 1
    int tiles_shift;   // log2 of tiles per page; 31: all tiles are in the only page
    Divisor by_blocks;
    uint32_t* draws;  // number of drawn pieces, 0 between calls; null: no drawing

    __device__ int request(int token) const {  // -1: not in the block table
        const int64_t request = place.request(token);
        return request >= 0 && request < requests ? int(request) : -1;
    }
};

// Columns that at least one of several rows sees.
struct Seen {
    int begin, end;  // empty: INT32_MAX and 0

    __device__ explicit Seen(const Window& window)
        : begin(window.begin < window.end ? window.begin : INT32_MAX),
          end(window.begin < window.end ? window.end : 0) {}
    __device__ Seen of_lane(int lane) const {
        Seen out = *this;
        out.begin = __shfl_sync(~0u, begin, lane);
        out.end = __shfl_sync(~0u, end, lane);
        return out;
    }
    __device__ void add(const Seen& other) {
        begin = min(begin, other.begin);
        end = max(end, other.end);
    }
    __device__ int tiles() const { return begin < end ? (end - 1) / kKeys + 1 - begin / kKeys : 0; }
};

// Consecutive rows of one request in a group of tokens, with tiles [tile, tile + count) of its keys.
template <class Shape>
struct alignas(16) Unit {
    Window windows[Shape::unit_rows];  // empty for missing rows
    int token, rows, team_log2;        // token: first row
    int tile, count;                   // count 0: end of the units
};

// Keys: e4m3 codes as a tile of wgmma; mxfp4 as in the page, where the scales follow the keys.
template <class Shape>
struct alignas(Shape::mxfp4 ? 128 : 1024) Stage {
    char keys[kKeys * Shape::code_bytes];
    char scales[kKeys * kScaleBytes];
    uint64_t full, empty;
    uint32_t scales_end;  // end of the scales of existing keys in the stage; other keys are masked

    __device__ void set_present(int keys) {
        scales_end = uint32_t(offsetof(Stage, scales)) + uint32_t(keys * kScaleBytes);
    }
};

template <class Shape>
struct alignas(1024) Shared {
    Stage<Shape> stages[Shape::stages];
    char queries[kSlots][Shape::mxfp4 ? 0 : Shape::unit_columns * kWidth];
    // 16-bit queries of each multiplying warpgroup, in the order of keys (Consumer::load_keys).
    char converted[Shape::converts ? kGroups : 0][2 * Shape::columns * kWidth];
    float weights[kSlots][Shape::unit_columns];
    Unit<Shape> units[kSlots];
    uint64_t unit_full[kSlots], unit_empty[kSlots];
    int sums[kConsumers / 32];
    Window windows[Shape::keeps_tokens ? Shape::most_tokens : 0];
    int requests[Shape::keeps_tokens ? Shape::most_tokens : 0];
    int ends[Shape::most_tokens];  // cumulative costs of all units up to a token
    // Ring of the block's drawn pieces, for warps that copy keys.
    uint64_t drawn_full[Shape::draws ? kDraws : 0];
    int drawn[Shape::draws ? kDraws : 0];

    // Called by one thread; a __syncthreads follows.
    __device__ void start() {
        for (Stage<Shape>& stage : stages) {
            mbarrier_init(shared_address(&stage.full), 1);
            mbarrier_init(shared_address(&stage.empty), Shape::many ? 4 * kGroups : 4);
        }
        for (int i = 0; i < kSlots; ++i) {
            mbarrier_init(shared_address(&unit_full[i]), 32);
            mbarrier_init(shared_address(&unit_empty[i]), kConsumers / 32);
        }
        if constexpr (Shape::draws)
            for (uint64_t& full : drawn_full) mbarrier_init(shared_address(&full), 1);
        fence_mbarrier_init();
    }
    __device__ int request(const Task& task, int token) const {
        if constexpr (Shape::keeps_tokens) return requests[token];
        else return task.request(token);
    }
    __device__ Window window(const Task& task, int token) const {
        if constexpr (Shape::keeps_tokens) return windows[token];
        else return task.window(token);
    }
};

}  // namespace smla::cuda::sm90::pages
