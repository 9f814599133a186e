// Checks of CUDA calls, which throw the call's text and result.
#pragma once

#include "core/status.h"

#include <cuda_runtime.h>

namespace smla {

inline void check_cuda(cudaError_t result, const char* call) {
    if (result == cudaSuccess) return;
    cudaGetLastError();  // hides a non-sticky error from the next call
    fail(result == cudaErrorMemoryAllocation ? SMLA_OUT_OF_MEMORY : SMLA_DEVICE_ERROR, call,
         text(cudaGetErrorName(result), ": ", cudaGetErrorString(result)), "success");
}
#define SMLA_CUDA_CALL(call) ::smla::check_cuda((call), #call)

inline cudaStream_t stream_of(smla_stream stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace smla
