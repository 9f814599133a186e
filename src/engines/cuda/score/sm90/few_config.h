// Shape and shared memory of cuda_sm90_few_score.
#pragma once

#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/shared.cuh"
#include "engines/cuda/common/tensor_map.h"
#include "engines/cuda/score/sm90/config.h"
#include "engines/cuda/score/sm90/few.h"

namespace smla::cuda::sm90 {

constexpr int kFewStages = 16, kSlots = 2;

template <int Heads, int Rows>
struct FewShape {
    static constexpr int heads = Heads, rows = Rows, columns = Heads * Rows;
};

struct FewTask {
    CUtensorMap key_map, query_map;
    KeyColumns place;
    const char* data;
    int64_t page_stride;
    Tensor w;
    Windows window;
    Logits logits;
    int tokens, heads, fill, fill_splits;
    int tiles_shift;  // tiles of a page, as a shift
    Divisor by_blocks;
};

// What the rows of a unit see.
struct Seen {
    int begin = INT32_MAX, end = 0, rows = 0;

    __device__ int tiles() const { return begin < end ? (end - 1) / kKeys + 1 - begin / kKeys : 0; }
};

// Consecutive rows of one request, scored together: those of a group of Shape::rows that have it.
struct FewUnit {
    int token, tile, count;  // its first; tiles [tile, tile + count) are this block's
    Window windows[4];
};

struct alignas(1024) FewStage {
    char keys[kKeys * kWidth];  // a tile of wgmma
    float scales[kKeys];
    uint64_t full, empty;
    int hole;  // the page does not exist
};

template <class Shape>
struct alignas(1024) FewShared {
    FewStage stages[kFewStages];
    char queries[kSlots][Shape::columns * kWidth];
    float weights[kSlots][Shape::columns];
    FewUnit units[kSlots];
    uint64_t unit_full[kSlots], unit_empty[kSlots];
    int sums[kConsumers / 32];
    Window windows[kMostFewTokens];
    int requests[kMostFewTokens], ends[kMostFewTokens];  // ends: tiles up to and with a token's

    __device__ void start() {
        for (FewStage& stage : stages) {
            mbarrier_init(shared_address(&stage.full), 1);
            mbarrier_init(shared_address(&stage.empty), 4);
        }
        for (int i = 0; i < kSlots; ++i) {
            mbarrier_init(shared_address(&unit_full[i]), 1);
            mbarrier_init(shared_address(&unit_empty[i]), kConsumers / 32);
        }
        fence_mbarrier_init();
    }
    __device__ bool leads(int token) const {
        return token % Shape::rows == 0 || requests[token] != requests[token - 1];
    }
    __device__ Seen seen(int token, int tokens) const {
        Seen out;
        do {
            const Window window = windows[token];
            ++out.rows, ++token;
            if (window.begin >= window.end) continue;
            out.begin = min(out.begin, window.begin);
            out.end = max(out.end, window.end);
        } while (token < tokens && !leads(token));
        return out;
    }
};

}  // namespace smla::cuda::sm90
