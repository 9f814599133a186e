// write_kv and write_index: optionally normalizes and rotates [head | tail] of a token, and encodes it into
// the row of its slot.
//
// A block processes a token: four warps load the row to shared memory as f32, with all values in flight. If
// the row is rotated, a fifth warp computes cosines and sines meanwhile. Every warp sums the whole head for
// the norm, in the order of norm's kernel, so that no barrier waits for partial sums and the bits equal norm,
// rope and a plain write (for heads of up to 1024 values). Then the row is encoded, tile by tile. The bytes
// equal the results of the host's encoders. Limit: memory for thousands of tokens (4 B read and about 1 B
// written per value), latency for a few.
//
// Shared  Cosines and sines [pairs] float2 | the row | weights and biases of the norm, all f32.
#include "core/tensor.h"
#include "engines/cuda/common/hadamard.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/records.cuh"
#include "engines/cuda/common/rotation.cuh"
#include "engines/cuda/generic/generic.h"

namespace smla::cuda {

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;  // loading warps and threads
constexpr int kBatch = 4;                          // values of a thread in flight, from global memory
constexpr int kAhead = 16;                         // values of a lane in flight, from shared memory

struct RowChange {
    Tensor weight, bias, values;
    RowRotation rotation;
    float eps;
    bool centre, hadamard;

    explicit RowChange(const smla_write_args& args)
        : weight(args.norm_weight),
          bias(args.norm_bias),
          values(args.values),
          rotation(args.positions, args.frequencies, args.rope_first, args.rope_style),
          eps(float(args.eps)),
          centre(args.norm_kind == SMLA_NORM_LAYER),
          hadamard(args.hadamard != 0) {}
};

// A block's input: the token's row of a tensor, or a vector.
struct Part {
    const Tensor& tensor;
    int64_t at, stride;
    int width;  // 0: absent
    float* to;

    __device__ static Part row(const Tensor& tensor, int64_t token, float* to) {
        return {tensor, element(tensor, token), tensor.stride_elems[1],
                present(tensor) ? int(tensor.shape[1]) : 0, to};
    }
    __device__ static Part vector(const Tensor& tensor, float* to) {
        return {tensor, 0, tensor.stride_elems[0], present(tensor) ? int(tensor.shape[0]) : 0, to};
    }
};

// Loads all parts. All loads are in flight before the first wait.
template <int kParts>
__device__ void load_parts(const Part (&parts)[kParts], int longest) {
    for (int first = int(threadIdx.x); first < longest; first += kBatch * kThreads) {
        uint32_t bits[kParts][kBatch];
#pragma unroll
        for (int p = 0; p < kParts; ++p)
            load_bits(parts[p].tensor, parts[p].at + first * parts[p].stride, kThreads * parts[p].stride,
                      count_below(parts[p].width, first, kThreads), bits[p]);
#pragma unroll
        for (int p = 0; p < kParts; ++p)
#pragma unroll
            for (int i = 0; i < kBatch; ++i)
                if (first + i * kThreads < parts[p].width)
                    parts[p].to[first + i * kThreads] = value_of(parts[p].tensor.dtype, bits[p][i]);
    }
}

// Calls use(v) for the lane's values of the row, in order, with many loads in flight.
template <class Use>
__device__ void each_value(const float* row, int width, Use use) {
    for (int first = int(threadIdx.x % 32); first < width; first += kAhead * 32) {
        float values[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) values[i] = first + 32 * i < width ? row[first + 32 * i] : 0.f;
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (first + 32 * i < width) use(values[i]);
    }
}

// Normalizes the head. `weight` is in shared memory, followed by the optional bias.
__device__ void norm_head(const RowChange& change, int width, const float* weight, float* row) {
    float mean = 0, square = 0;
    if (change.centre) {
        each_value(row, width, [&](float v) { mean += v; });
        mean = warp_sum(mean) / float(width);
    }
    each_value(row, width, [&](float v) { square += (v - mean) * (v - mean); });
    const float factor = 1.f / sqrtf(warp_sum(square) / float(width) + change.eps);
    __syncthreads();  // all warps have read the row
    for (int d = int(threadIdx.x); d < width; d += int(blockDim.x)) {
        float v = (row[d] - mean) * factor;
        v *= weight[d];
        if (present(change.bias)) v += weight[width + d];
        row[d] = v;
    }
    __syncthreads();
}

__global__ void __launch_bounds__(kThreads + 32)
    write_kernel(const GridOrder order, const __grid_constant__ DeviceCache cache,
                 const __grid_constant__ Tensor head, const __grid_constant__ Tensor tail,
                 const __grid_constant__ Tensor slots, const __grid_constant__ RowChange change) {
    extern __shared__ float2 turns[];
    float* const row = reinterpret_cast<float*>(turns + change.rotation.pairs);
    float* const weight = row + cache.width;
    if (!order.start()) return;
    const int64_t token = blockIdx.x, slot = load_int(slots, token);
    if (threadIdx.x >= kThreads) {
        change.rotation.find_turns(token, turns);
    } else {
        const int of_head = int(head.shape[1]);
        const Part parts[] = {Part::row(head, token, row), Part::row(tail, token, row + of_head),
                              Part::vector(change.weight, weight),
                              Part::vector(change.bias, weight + of_head)};
        load_parts(parts, cache.width);
    }
    const bool hole = cache.hole(slot);
    if (hole && !present(change.values)) return;
    __syncthreads();
    if (present(change.weight)) norm_head(change, int(head.shape[1]), weight, row);
    if (change.rotation.pairs > 0) {
        change.rotation.rotate(turns, row, int(threadIdx.x), int(blockDim.x));
        __syncthreads();
    }
    for (int d = int(threadIdx.x); present(change.values) && d < cache.width; d += int(blockDim.x))
        store_value(change.values, element(change.values, token, d), row[d]);
    if (hole) return;
    const Warps all{int(threadIdx.x) / 32, int(blockDim.x) / 32};
    if (change.hadamard) {
        __syncthreads();  // values have been stored
        if (all.index == 0) warp_hadamard(row, cache.width);
        __syncthreads();
    }
    encode(all, cache, slot, row);
}

}  // namespace

void run_cuda_write(const smla_write_args& args, const Env& env) {
    const DeviceCache cache(args.cache);
    const RowChange change(args);
    const int64_t tokens = args.slots.shape[0], head = args.head.shape[1];
    const int threads = kThreads + (change.rotation.pairs > 0 ? 32 : 0);
    const int64_t vectors =
        (smla::present(args.norm_weight) ? head : 0) + (smla::present(args.norm_bias) ? head : 0);
    launch_ordered(write_kernel, tokens, threads,
                   size_t(2 * change.rotation.pairs + cache.width + vectors) * sizeof(float), env, cache,
                   args.head, args.tail, args.slots, change);
}

}  // namespace smla::cuda
