// Shape and shared memory of cuda_sm90_pages_score.
#pragma once

#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/shared.cuh"
#include "engines/cuda/common/tensor_map.h"
#include "engines/cuda/score/sm90/config.h"
#include "engines/cuda/score/sm90/pages/rows.h"

namespace smla::cuda::sm90::pages {

constexpr int kSlots = 2;      // of queries
constexpr int kCopyWarps = 3;  // of keys; one alone asks for a tile every 480 cycles
constexpr int kDraws = 4;      // drawn pieces whose numbers shared memory holds, in turn

// Few rows of a request: each warpgroup multiplies a tile with all of them. Many: units have kGroups times as
// many rows, and teams of warpgroups multiply a tile, each with rows of its own.
template <int Heads, int Rows, Products P, bool Many = false>
struct Shape {
    static constexpr bool many = Many;
    static constexpr int heads = Heads, rows = Rows, columns = Heads * Rows;  // of a warpgroup
    static constexpr int unit_rows = many ? kGroups * rows : rows, unit_columns = Heads * unit_rows;
    static constexpr int most_tokens = many ? kMostTokensOfMany : kMostTokens;
    // Windows and requests in shared memory: short units ask for them again soon.
    static constexpr bool keeps_tokens = !many;
    static constexpr Products products = P;
    static constexpr bool mxfp4 = P == Products::bf16;
    static constexpr bool converts = P != Products::e4m3;  // else both operands are multiplied as they lie
    // Memory bounds calls of few rows and is not as quick for all multiprocessors, so blocks draw the last
    // tiles (units.cuh). With mxfp4 conversions bound them: 109 us became 114.
    static constexpr bool draws = !many && !mxfp4;
    static constexpr int code_bytes = sm90::code_bytes(P);
    static constexpr int stages = many ? 6 : P == Products::f16 ? 12 : 16;
    static constexpr int stores = Rows > 2 ? Rows / 2 : 1;  // of a thread and tile

    // A unit costs a block its tiles, each as much as the warpgroups of its team, and its start, as much as
    // a tile of all: of a causal prompt the first block has most of the short units.
    static constexpr int start_cost = many ? kGroups : 0;
    // Log2 of the team of a unit of so many rows.
    static __device__ int team_log2(int unit_rows) {
        return !many || unit_rows <= rows ? 0 : unit_rows <= 2 * rows ? 1 : 2;
    }
};

struct Task {
    CUtensorMap key_map, query_map;  // not of mxfp4
    Tensor q, q_scales;              // of mxfp4
    KeyColumns place;
    const char* data;
    int64_t page_stride;
    Tensor w;
    Windows window;
    Logits logits;
    int64_t two_rows_bytes;  // of logits
    int tokens, heads, fill, fill_splits;
    int group, chunk;  // tokens of a group; of as many groups as 32 lanes have room for
    int requests;      // of the block table; without one: 1
    int tiles_shift;   // tiles of a page: 1 << tiles_shift; 31: all tiles are in the only page
    Divisor by_blocks;
    uint32_t* draws;  // pieces that were drawn; 0 between calls. Null: none are

    __device__ int request(int token) const {  // -1: none of the block table
        const int64_t request = place.request(token);
        return request >= 0 && request < requests ? int(request) : -1;
    }
};

// What rows see together.
struct Seen {
    int begin, end;  // the greatest int and 0: nothing

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

// Consecutive rows of one request within a group of tokens, and tiles [tile, tile + count) of its keys.
template <class Shape>
struct alignas(16) Unit {
    Window windows[Shape::unit_rows];  // empty where there is no row
    int token, rows, team_log2;        // token: the first row
    int tile, count;                   // no tiles: there are no more units
};

// Keys: e4m3 codes as a tile of wgmma; of mxfp4 as in the page, where scales lie behind them.
template <class Shape>
struct alignas(Shape::mxfp4 ? 128 : 1024) Stage {
    char keys[kKeys * Shape::code_bytes];
    char scales[kKeys * kScaleBytes];
    uint64_t full, empty;
    uint32_t scales_end;  // in the stage, of keys that exist; the others are holes

    __device__ void set_present(int keys) {
        scales_end = uint32_t(offsetof(Stage, scales)) + uint32_t(keys * kScaleBytes);
    }
};

template <class Shape>
struct alignas(1024) Shared {
    Stage<Shape> stages[Shape::stages];
    char queries[kSlots][Shape::mxfp4 ? 0 : Shape::unit_columns * kWidth];
    // Queries of 16 bits, of each warpgroup that multiplies, in the order of keys (Consumer::load_keys).
    char converted[Shape::converts ? kGroups : 0][2 * Shape::columns * kWidth];
    float weights[kSlots][Shape::unit_columns];
    Unit<Shape> units[kSlots];
    uint64_t unit_full[kSlots], unit_empty[kSlots];
    int sums[kConsumers / 32];
    Window windows[Shape::keeps_tokens ? Shape::most_tokens : 0];
    int requests[Shape::keeps_tokens ? Shape::most_tokens : 0];
    int ends[Shape::most_tokens];  // costs of all units up to that of a token
    // What the block has drawn, in turn: for warps that copy keys.
    uint64_t drawn_full[Shape::draws ? kDraws : 0];
    int drawn[Shape::draws ? kDraws : 0];

    // By one thread; a __syncthreads follows.
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
