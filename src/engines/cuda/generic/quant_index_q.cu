// quant_index_q: rotates (by position, Hadamard) and quantizes rows of index queries, and multiplies their
// scale into the head's weight. The rules are scale_rule::e8m0 and scale_rule::mxfp4, as in
// ops/quant_index_q/reference.cpp.
//
// A block processes four heads of a token, a warp each: the warp loads the row to shared memory as f32,
// rotates it, finds its maximum and encodes it. If rows are rotated by position, a fifth warp computes
// cosines and sines meanwhile. Limit: latency for one token (64 rows), memory for thousands.
//
// Shared  Cosines and sines [pairs] float2 | one f32 row per warp.
#include "core/tensor.h"
#include "engines/cuda/common/hadamard.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/records.cuh"
#include "engines/cuda/common/rotation.cuh"
#include "engines/cuda/generic/generic.h"
#include "ops/quant_index_q/quant_index_q.h"

#include <algorithm>

namespace smla::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kBatch = 4;  // values of a lane in flight
constexpr int kGroup = int(kQueryScaleGroup);
static_assert(kGroup == 32, "a group has a lane for each value");

struct QuantParams {
    Tensor q, w, q_out, scales, w_out, rotated;
    RowRotation rotation;
    float floor, factor;
    bool hadamard;
    unsigned parts;  // blocks per token
};

// Encodes a group of 32. Returns its scale's code, NaN if any value is NaN, because e2m1 has no NaN.
__device__ uint8_t encode_e2m1_group(const float* values, uint8_t* bytes) {
    const int lane = int(threadIdx.x % 32);
    const uint8_t code = scale_rule::mxfp4(warp_amax(values, kGroup));
    const float scale = e8m0_to_f32(code);
    if (lane < kGroup / 2)
        bytes[lane] = uint8_t(f32_to_e2m1(scaled(values[2 * lane], scale)) |
                              f32_to_e2m1(scaled(values[2 * lane + 1], scale)) << 4);
    return __any_sync(~0u, isnan(values[lane])) ? uint8_t(255) : code;
}

// Writes the row. Returns the scale that multiplies the weight.
__device__ float encode_row(const QuantParams& p, int64_t token, int64_t head, const float* row, int width) {
    const int lane = int(threadIdx.x % 32);
    const int64_t to = element(p.q_out, token, head);
    if (p.q_out.dtype == SMLA_E4M3) {
        const float scale = e8m0_to_f32(scale_rule::e8m0(warp_amax(row, width), p.floor));
        encode_e4m3({}, row, width, scale, static_cast<char*>(p.q_out.data) + to);
        return scale;
    }
    if (p.q_out.dtype == SMLA_E2M1) {
        auto* const bytes = static_cast<uint8_t*>(p.q_out.data) + to / 2;
        auto* const scales = static_cast<uint8_t*>(p.scales.data) + element(p.scales, token, head);
        for (int g = 0; g < width / kGroup; ++g) {
            const uint8_t code = encode_e2m1_group(row + g * kGroup, bytes + g * kGroup / 2);
            if (lane == 0) scales[g] = code;
        }
        return 1;
    }
    for (int d = lane; d < width; d += 32) store_value(p.q_out, to + d, row[d]);
    return 1;
}

// Loads a row to shared memory. Returns the bits of its weight, in the first lane.
__device__ uint32_t load_row(const QuantParams& p, int64_t token, int64_t head, float* row) {
    const int width = int(p.q.shape[2]), lane = int(threadIdx.x % 32);
    const int64_t in = element(p.q, token, head);
    uint32_t weight[1];
    load_bits(p.w, element(p.w, token, head), 0, lane == 0, weight);
    for (int first = lane; first < width; first += kBatch * 32) {
        uint32_t bits[kBatch];
        const int count = min(kBatch, count_below(width, first, 32));
        load_bits(p.q, in + first, 32, count, bits);
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
            if (i < count) row[first + 32 * i] = value_of(p.q.dtype, bits[i]);
    }
    return weight[0];
}

// Rotates and encodes a row that load_row() has loaded, and writes its weight.
__device__ void finish_row(const QuantParams& p, int64_t token, int64_t head, const float2* turns,
                           float weight, float* row) {
    const int lane = int(threadIdx.x % 32), width = int(p.q.shape[2]);
    __syncwarp();
    if (p.rotation.pairs > 0) {
        p.rotation.rotate(turns, row, lane, 32);
        __syncwarp();
    }
    if (present(p.rotated)) {
        for (int d = lane; d < width; d += 32)
            store_value(p.rotated, element(p.rotated, token, head, d), row[d]);
        __syncwarp();
    }
    if (p.hadamard) warp_hadamard(row, width);
    const float scale = encode_row(p, token, head, row, width);
    if (lane == 0) store_value(p.w_out, element(p.w_out, token, head), weight * p.factor * scale);
}

__global__ void __launch_bounds__(32 * kWarps + 32)
    quant_index_q_kernel(const GridOrder order, const __grid_constant__ QuantParams p) {
    extern __shared__ float2 turns[];
    if (!order.start()) return;
    const int warp = int(threadIdx.x) / 32;
    float* const row = reinterpret_cast<float*>(turns + p.rotation.pairs) + int64_t(warp) * int(p.q.shape[2]);
    const int64_t token = blockIdx.x / p.parts, head = blockIdx.x % p.parts * kWarps + warp;
    const bool works = warp < kWarps && head < p.q.shape[1];
    uint32_t weight = 0;
    if (works) weight = load_row(p, token, head, row);
    else if (warp == kWarps) p.rotation.find_turns(token, turns);
    if (p.rotation.pairs > 0) __syncthreads();
    if (works) finish_row(p, token, head, turns, value_of(p.w.dtype, weight), row);
}

}  // namespace

void run_cuda_quant_index_q(const smla_quant_index_q_args& args, const Env& env) {
    QuantParams p{};
    p.q = args.q;
    p.w = args.w;
    p.q_out = args.q_out;
    p.scales = args.scales;
    p.w_out = args.w_out;
    p.floor = float(args.amax_floor > 0 ? args.amax_floor : scale_rule::kFloor);
    p.factor = float(args.factor);
    p.hadamard = args.hadamard != 0;
    p.rotated = args.rotated;
    p.rotation = {args.positions, args.frequencies, args.rope_first, args.rope_style};
    const int64_t pairs = p.rotation.pairs;
    p.parts = grid_of(std::max<int64_t>(ceil_div(args.q.shape[1], int64_t(kWarps)), 1));
    launch_ordered(quant_index_q_kernel, args.q.shape[0] * p.parts, 32 * (kWarps + (pairs > 0 ? 1 : 0)),
                   size_t(2 * pairs + kWarps * args.q.shape[2]) * sizeof(float), env, p);
}

}  // namespace smla::cuda
