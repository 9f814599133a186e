// save_state: a token's row of the state cache = kv | score + ape[position % ratio], in f32.
//
// A block takes a token; neighbouring threads take neighbouring channels. Limit: memory, 8 bytes read and 8
// written per channel of f32 inputs; ape is cached.
#include "core/tensor.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/records.cuh"
#include "engines/cuda/generic/generic.h"

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) save_state_kernel(DeviceCache state, Tensor kv, Tensor score,
                                                              Tensor ape, Tensor positions, Tensor slots) {
    const int64_t token = blockIdx.x;
    const int64_t slot = load_int(slots, token), position = load_int(positions, token);
    if (state.hole(slot) || position < 0) return;
    const int64_t phase = present(ape) ? position % ape.shape[0] : 0;
    const int width = int(kv.shape[1]);
    auto* const row = reinterpret_cast<float*>(state.row_packed(slot));
    for (int d = int(threadIdx.x); d < width; d += kThreads) {
        row[d] = load_value(kv, element(kv, token, d));
        row[layout::state_score_at(state.width) + d] =
            load_value(score, element(score, token, d)) +
            (present(ape) ? load_value(ape, element(ape, phase, d)) : -0.f);  // x + -0 is x
    }
}

}  // namespace

}  // namespace cuda

void run_cuda_save_state(const smla_save_state_args& args, const Env& env) {
    cuda::launch(cuda::save_state_kernel, args.slots.shape[0], cuda::kThreads, 0, env,
                 cuda::DeviceCache(args.state), args.kv, args.score, args.ape, args.positions, args.slots);
}

}  // namespace smla
