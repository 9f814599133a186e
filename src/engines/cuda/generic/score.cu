// score for any heads, width up to 1024, key format, query dtype and strides. Correctness only.
//
// A warp takes a column: the key's values in shared memory, the dot product of a head over the lanes, one
// head after another, the key's scale last. 8 warps per block; the grid is tokens x groups of 64 columns.
// About 2 loads and a conversion per product limit it to 10 to 50 GFLOP/s per multiprocessor.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/score/columns.cuh"
#include "ops/quant_index_q/quant_index_q.h"

namespace smla::cuda {

namespace {

constexpr int kWarps = 8, kColumns = 64;  // per block

struct GenericScore {
    Tensor q, q_scales, w;
    DeviceCache keys;
    KeyColumns place;
    Windows window;
    float* logits;
    int64_t stride;
    int fill;
};

// Loads a key; returns the scale of its logit.
__device__ float load_key(const DeviceCache& keys, int64_t row, float* key) {
    const int lane = int(threadIdx.x % 32);
    const bool fp8 = keys.format == SMLA_INDEX_FP8_132;
    using Layout = layout::IndexFp8_132;
    const char* const page = keys.page(row);
    const int64_t token = row % keys.page_rows;
    for (int d = lane; d < keys.width; d += 32)
        key[d] = fp8 ? e4m3_at(page + Layout::row_at(token) + d) : keys.value(row, d);
    __syncwarp();
    return fp8 ? f32_at(page + Layout::scale_at(keys.page_tokens, token)) : 1.f;
}

__device__ float query_value(const GenericScore& task, int64_t token, int head, int d) {
    const float code = load_value(task.q, element(task.q, token, head, d));
    if (task.q.dtype != SMLA_E2M1) return code;
    return code * load_value(task.q_scales, element(task.q_scales, token, head, d / kQueryScaleGroup));
}

__device__ float logit(const GenericScore& task, int64_t token, const float* key, float scale) {
    const int lane = int(threadIdx.x % 32), heads = int(task.q.shape[1]);
    float sum = 0;
    for (int h = 0; h < heads; ++h) {
        float dot = 0;
        for (int d = lane; d < task.keys.width; d += 32) dot += query_value(task, token, h, d) * key[d];
        dot = warp_sum(dot);
        sum += load_value(task.w, element(task.w, token, h)) * (dot <= 0 ? 0.f : dot);  // NaN stays NaN
    }
    return sum * scale;
}

__global__ void __launch_bounds__(kWarps * 32) score_generic(const __grid_constant__ GenericScore task) {
    extern __shared__ float shared[];
    const unsigned columns = unsigned(task.window.end - task.window.begin);
    const unsigned groups = (columns + kColumns - 1) / kColumns;
    const int64_t token = blockIdx.x / groups;
    const int first = task.window.begin + int(blockIdx.x % groups * kColumns), warp = int(threadIdx.x / 32);
    const int count = min(kColumns, task.window.end - first);
    float* const key = shared + warp * task.keys.width;
    const Window window = task.window(token);
    const KeyColumns::Pages pages = task.place.pages_of(task.place.request(token));
    float* const logits = task.logits + token * task.stride - task.window.begin;
    for (int i = warp; i < count; i += kWarps) {
        const int j = first + i;
        float value = -INFINITY;
        if (window.has(j)) {
            const KeyColumns::Place at = task.place.find(pages, j);
            if (at.page >= 0) {
                const float scale = load_key(task.keys, at.page * task.keys.page_rows + at.offset, key);
                value = logit(task, token, key, scale);
                __syncwarp();  // before the next key
            }
        } else if (!task.fill) {
            continue;
        }
        if (threadIdx.x % 32 == 0) logits[j] = value;
    }
}

}  // namespace

void run_score_generic(const smla_score_args& args, const ScorePart& part, const Env& env) {
    const CacheView keys(args.keys);
    const GenericScore task{.q = args.q,
                            .q_scales = args.q_scales,
                            .w = args.w,
                            .keys = DeviceCache(args.keys),
                            .place = KeyColumns(args, keys),
                            .window = Windows(args.starts, args.ends, part.columns, part.begin, part.end),
                            .logits = part.logits,
                            .stride = part.stride,
                            .fill = args.fill};
    const int64_t blocks = args.q.shape[0] * ceil_div(part.end - part.begin, kColumns);
    launch(score_generic, blocks, kWarps * 32, kWarps * size_t(keys.width) * sizeof(float), env, task);
}

}  // namespace smla::cuda
