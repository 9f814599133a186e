// save_state: a token's row of the state cache = kv | score + ape[position % ratio], in f32.
//
// A block processes a token; neighboring threads process neighboring channels. Limit: memory, 8 bytes read
// and 8 written per channel of f32 inputs; ape is cached.
#include "core/tensor.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/records.cuh"
#include "engines/cuda/generic/generic.h"

namespace smla::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 4;  // channels of a thread with loads in flight

__global__ void __launch_bounds__(kThreads)
    save_state_kernel(const GridOrder order, const __grid_constant__ DeviceCache state,
                      const __grid_constant__ Tensor kv, const __grid_constant__ Tensor score,
                      const __grid_constant__ Tensor ape, const __grid_constant__ Tensor positions,
                      const __grid_constant__ Tensor slots) {
    if (!order.start()) return;
    const int64_t token = blockIdx.x;
    const int64_t slot = load_int(slots, token), position = load_int(positions, token);
    const int width = int(kv.shape[1]);
    for (int first = int(threadIdx.x); first < width; first += kBatch * kThreads) {
        const int count = min(kBatch, count_below(width, first, kThreads));
        float kvs[kBatch], scores[kBatch], apes[kBatch] = {-0.f, -0.f, -0.f, -0.f};  // x + -0 is x
        load_values(kv, element(kv, token, first), kThreads * kv.stride_elems[1], count, kvs);
        load_values(score, element(score, token, first), kThreads * score.stride_elems[1], count, scores);
        if (state.hole(slot) || position < 0) return;  // tested after all loads are issued
        auto* const row = reinterpret_cast<float*>(state.row_packed(slot));
        const int64_t phase = present(ape) ? position % ape.shape[0] : 0;
        if (present(ape))
            load_values(ape, element(ape, phase, first), kThreads * ape.stride_elems[1], count, apes);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int d = first + i * kThreads;
            if (i >= count) break;
            row[d] = kvs[i];
            row[layout::state_score_at(state.width) + d] = scores[i] + apes[i];
        }
    }
}

}  // namespace

void run_cuda_save_state(const smla_save_state_args& args, const Env& env) {
    const int64_t tokens = args.slots.shape[0];
    launch_ordered(save_state_kernel, tokens, kThreads, 0, env, DeviceCache(args.state), args.kv, args.score,
                   args.ape, args.positions, args.slots);
}

}  // namespace smla::cuda
