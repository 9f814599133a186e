// One logit by a warp, for any heads, width, key format, query dtype and strides.
#pragma once

#include "engines/cuda/common/records.cuh"
#include "ops/quant_index_q/quant_index_q.h"

namespace smla::cuda {

struct ScoreInputs {
    Tensor q, q_scales, w;
    DeviceCache keys;
};

// Loads a key and returns the scale of its logit.
__device__ inline float load_key(const DeviceCache& keys, int64_t row, float* key) {
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

__device__ inline float query_value(const ScoreInputs& in, int64_t token, int head, int d) {
    const float code = load_value(in.q, element(in.q, token, head, d));
    if (in.q.dtype != SMLA_E2M1) return code;
    return code * load_value(in.q_scales, element(in.q_scales, token, head, d / kQueryScaleGroup));
}

__device__ inline float logit(const ScoreInputs& in, int64_t token, const float* key, float scale) {
    const int lane = int(threadIdx.x % 32), heads = int(in.q.shape[1]);
    float sum = 0;
    for (int h = 0; h < heads; ++h) {
        float dot = 0;
        for (int d = lane; d < in.keys.width; d += 32) dot += query_value(in, token, h, d) * key[d];
        dot = warp_sum(dot);
        sum += load_value(in.w, element(in.w, token, h)) * (dot <= 0 ? 0.f : dot);  // NaN stays NaN
    }
    return sum * scale;
}

}  // namespace smla::cuda
