// Shape and shared memory of cuda_sm90_few_score.
#pragma once

#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/shared.cuh"
#include "engines/cuda/common/tensor_map.h"
#include "engines/cuda/score/sm90/config.h"
#include "engines/cuda/score/sm90/few/rows.h"

namespace smla::cuda::sm90::few {

constexpr int kSlots = 2;      // of queries
constexpr int kCopyWarps = 3;  // of keys; one alone asks for a tile every 480 cycles

template <int Heads, int Rows, Products P>
struct Shape {
    static constexpr int heads = Heads, rows = Rows, columns = Heads * Rows;
    static constexpr Products products = P;
    static constexpr bool mxfp4 = P == Products::bf16;
    static constexpr bool converts = P != Products::e4m3;  // else both operands are multiplied as they lie
    static constexpr int code_bytes = sm90::code_bytes(P), stages = P == Products::f16 ? 12 : 16;
    static constexpr int stores = Rows > 2 ? Rows / 2 : 1;  // of a thread and tile
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
    int tiles_shift;  // tiles of a page: 1 << tiles_shift
    Divisor by_blocks;
};

// What consecutive rows see together.
struct Seen {
    int begin = INT32_MAX, end = 0, rows = 0;

    __device__ void add(const Window& window) {
        ++rows;
        if (window.begin >= window.end) return;
        begin = min(begin, window.begin);
        end = max(end, window.end);
    }
    __device__ int tiles() const { return begin < end ? (end - 1) / kKeys + 1 - begin / kKeys : 0; }
};

// Consecutive rows of one request within a group of Shape::rows, and tiles [tile, tile + count) of its keys.
struct alignas(16) Unit {
    Window windows[4];       // of rows; empty where there is none
    int token, tile, count;  // token: the first row
};

// Keys: e4m3 codes as a tile of wgmma; of mxfp4 as in the page, where scales lie behind them.
template <class Shape>
struct alignas(Shape::mxfp4 ? 128 : 1024) Stage {
    char keys[kKeys * Shape::code_bytes];
    char scales[kKeys * kScaleBytes];
    uint64_t full, empty;
    int hole;  // the page does not exist
};

template <class Shape>
struct alignas(1024) Shared {
    Stage<Shape> stages[Shape::stages];
    char queries[kSlots][Shape::mxfp4 ? 0 : Shape::columns * kWidth];
    // Queries of 16 bits, of each warpgroup that multiplies, in the order of keys (Consumer::load_keys).
    char converted[Shape::converts ? kGroups : 0][2 * Shape::columns * kWidth];
    float weights[kSlots][Shape::columns];
    Unit units[kSlots];
    uint64_t unit_full[kSlots], unit_empty[kSlots];
    int sums[kConsumers / 32];
    Window windows[kMostTokens];
    int requests[kMostTokens];  // -1: none of the block table
    int ends[kMostTokens];      // tiles of all tokens up to this one

    // By one thread; a __syncthreads follows.
    __device__ void start() {
        for (Stage<Shape>& stage : stages) {
            mbarrier_init(shared_address(&stage.full), 1);
            mbarrier_init(shared_address(&stage.empty), 4);
        }
        for (int i = 0; i < kSlots; ++i) {
            mbarrier_init(shared_address(&unit_full[i]), 1);
            mbarrier_init(shared_address(&unit_empty[i]), kConsumers / 32);
        }
        fence_mbarrier_init();
    }
    __device__ bool leads(int token) const {  // is the first row of a unit
        return token % Shape::rows == 0 || requests[token] != requests[token - 1];
    }
    __device__ Seen seen(int token, int tokens) const {  // by the unit that begins there
        Seen out;
        do out.add(windows[token]);
        while (++token < tokens && !leads(token));
        return out;
    }
};

}  // namespace smla::cuda::sm90::few
