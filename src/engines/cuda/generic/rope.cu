// rope and inverse_rope: rotates pairs of channels by position * frequency.
//
// A block processes a token and some of its groups (heads). It computes the token's cosines and sines once,
// in shared memory; then its threads rotate pairs. A thread reads both channels of a pair before it writes
// them, so out may be x. With few tokens, blocks process fewer groups, until the GPU has four blocks per
// multiprocessor. Limit: memory.
//
// If nothing is rotated, rows are copied 16 bytes at a time; backends join the two parts of queries this way.
//
// Shared  Cosine [pairs] | sine [pairs], f32.
#include "core/tensor.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/rotation.cuh"
#include "engines/cuda/generic/generic.h"

#include <algorithm>

namespace smla::cuda {

namespace {

constexpr int kThreads = 128;

struct RopeParams {
    Tensor x, positions, frequencies, out;  // out is x for rotation in place
    int64_t pairs, first;
    int64_t skip;   // channel of x that is channel 0 of out
    int64_t count;  // channels of out that are written
    int64_t block_groups;
    unsigned parts;  // blocks per token
    bool half, inverse;
};

__device__ void fill_angles(const RopeParams& p, int64_t token, float* cosine, float* sine) {
    const auto position = double(load_int(p.positions, token));
    for (int64_t i = threadIdx.x; i < p.pairs; i += kThreads) {
        const float2 turn = turn_of(position * frequency_of(p.frequencies, i));
        cosine[i] = turn.x;
        sine[i] = p.inverse ? -turn.y : turn.y;
    }
}

__global__ void __launch_bounds__(kThreads)
    rope_kernel(const GridOrder order, const __grid_constant__ RopeParams p) {
    extern __shared__ float angles[];
    if (!order.start()) return;
    float* const cosine = angles;
    float* const sine = angles + p.pairs;
    const int64_t token = blockIdx.x / p.parts, begin = blockIdx.x % p.parts * p.block_groups;
    fill_angles(p, token, cosine, sine);
    __syncthreads();

    // a warp processes a group: first its pairs, then the channels that are only copied
    const int64_t end = min(begin + p.block_groups, p.x.shape[1]);
    const int64_t first = p.first - p.skip;  // first rotated channel of out
    for (int64_t group = begin + threadIdx.x / 32; group < end; group += kThreads / 32) {
        const int64_t in = element(p.x, token, group) + p.skip, to = element(p.out, token, group);
        for (int64_t item = threadIdx.x % 32; item < p.count - p.pairs; item += 32) {
            if (item >= p.pairs) {
                const int64_t rest = item - p.pairs, channel = rest < first ? rest : rest + 2 * p.pairs;
                store_value(p.out, to + channel, load_value(p.x, in + channel));
                continue;
            }
            const int64_t a = first + (p.half ? item : 2 * item), b = p.half ? a + p.pairs : a + 1;
            float pair[2];
            load_values(p.x, in + a, b - a, 2, pair);
            rotate_pair({cosine[item], sine[item]}, pair[0], pair[1]);
            store_value(p.out, to + a, pair[0]);
            store_value(p.out, to + b, pair[1]);
        }
    }
}

// Address and byte strides of a tensor [T,G,row].
struct CopyPlace {
    char* data;
    int64_t token_bytes, group_bytes;

    explicit CopyPlace(const Tensor& tensor)
        : data(static_cast<char*>(tensor.data)),
          token_bytes(tensor.stride_elems[0] * dtype_bits(tensor.dtype) / 8),
          group_bytes(tensor.stride_elems[1] * dtype_bits(tensor.dtype) / 8) {}
    bool aligned() const {
        return (reinterpret_cast<uintptr_t>(data) | uint64_t(token_bytes) | uint64_t(group_bytes)) % 16 == 0;
    }
};
constexpr int kCopies = 4;  // 16-byte copies of a thread in flight

__global__ void __launch_bounds__(kThreads) copy_kernel(const GridOrder order, CopyPlace from, CopyPlace to,
                                                        uint32_t groups, uint32_t row_16, uint32_t count) {
    if (!order.start()) return;
    uint4 value[kCopies];
    char* place[kCopies];
    const uint32_t first = blockIdx.x * uint32_t(kThreads * kCopies) + threadIdx.x;
#pragma unroll
    for (uint32_t i = 0; i < kCopies; ++i) {
        const uint32_t at = min(first + i * kThreads, count - 1);
        const uint32_t row = at / row_16, token = row / groups, group = row - token * groups;
        const int64_t piece = 16 * int64_t(at - row * row_16);
        value[i] = *reinterpret_cast<const uint4*>(from.data + token * from.token_bytes +
                                                   group * from.group_bytes + piece);
        place[i] = to.data + token * to.token_bytes + group * to.group_bytes + piece;
    }
#pragma unroll
    for (uint32_t i = 0; i < kCopies; ++i)
        if (first + i * kThreads < count) *reinterpret_cast<uint4*>(place[i]) = value[i];
}

// Copies rows and returns true, if nothing is rotated and the layouts allow it.
bool copy_rows(const smla_rope_args& args, const Env& env) {
    if (args.frequencies.shape[0] != 0 || !smla::present(args.out) || args.out.shape[2] != args.x.shape[2])
        return false;
    const CopyPlace from(args.x), to(args.out);
    const int64_t row_bytes = args.x.shape[2] * dtype_bits(args.x.dtype) / 8,
                  count = args.x.shape[0] * args.x.shape[1] * (row_bytes / 16);
    const bool dense = args.x.stride_elems[2] == 1 && args.out.stride_elems[2] == 1;
    if (args.x.dtype != args.out.dtype || !dense || row_bytes % 16 != 0 || !from.aligned() || !to.aligned() ||
        count == 0 || count > INT32_MAX)
        return false;
    launch_ordered(copy_kernel, ceil_div(count, kThreads * kCopies), kThreads, 0, env, from, to,
                   uint32_t(args.x.shape[1]), uint32_t(row_bytes / 16), uint32_t(count));
    return true;
}

}  // namespace

void run_cuda_rope(const smla_rope_args& args, const Env& env) {
    if (copy_rows(args, env)) return;
    const int64_t tokens = args.x.shape[0], groups = args.x.shape[1], width = args.x.shape[2];
    const int64_t pairs = args.frequencies.shape[0];
    if (tokens * groups == 0) return;
    const bool elsewhere = smla::present(args.out), whole = elsewhere && args.out.shape[2] == width;
    RopeParams p{};
    p.x = args.x;
    p.positions = args.positions;
    p.frequencies = args.frequencies;
    p.out = args.out;
    p.pairs = pairs;
    p.first = args.first;
    p.skip = whole ? 0 : args.first;
    p.count = whole ? width : 2 * pairs;
    if (!elsewhere) {  // in place: only the rotated channels of x
        p.out = args.x;
        p.out.data = address(args.x, 0) + args.first * dtype_bits(args.x.dtype) / 8;
    }
    constexpr int64_t warps = kThreads / 32;
    const int64_t blocks = 4 * std::max(env.device->facts().multiprocessors, 1);
    p.block_groups = std::clamp(tokens * groups / blocks, std::min(warps, groups), groups);
    p.half = args.style == SMLA_ROPE_HALF;
    p.inverse = args.inverse != 0;
    p.parts = grid_of(ceil_div(groups, p.block_groups));
    launch_ordered(rope_kernel, tokens * p.parts, kThreads, size_t(2 * pairs) * sizeof(float), env, p);
}

}  // namespace smla::cuda
