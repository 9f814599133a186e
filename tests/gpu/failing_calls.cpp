#include "failing_calls.h"

#include <cuda_runtime.h>

#include <map>
#include <mutex>

namespace gpu {

namespace {

struct State {
    std::mutex mutex;
    Failing kind = Failing::memory;
    int64_t made = 0, first = 0, last = 0;  // first 0: none fails
    std::string failed;
    std::map<const void*, size_t> blocks;
    int64_t pinned = 0, events = 0;
};
State& state() {
    static State& all = *new State;
    return all;
}

bool fails(const char* name, bool takes_memory) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.first == 0 || (s.kind == Failing::memory && !takes_memory)) return false;
    ++s.made;
    if (s.made < s.first || s.made > s.last) return false;
    s.failed = name;
    return true;
}
cudaError_t failure() {
    return state().kind == Failing::memory ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure;
}

// What was taken is counted, unless the call failed.
template <class Count>
cudaError_t counted(cudaError_t result, const Count& count) {
    if (result != cudaSuccess) return result;
    const std::lock_guard lock(state().mutex);
    count(state());
    return result;
}

}  // namespace

void fail_calls(Failing kind, int64_t nth, int64_t more) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.kind = kind;
    s.made = 0;
    s.first = nth;
    s.last = nth + more;
    s.failed.clear();
}

int64_t stop_failing() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.first = 0;
    return s.made;
}

std::string last_failed() {
    const std::lock_guard lock(state().mutex);
    return state().failed;
}

Held held() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    Held out{int64_t(s.blocks.size()), 0, s.pinned, s.events};
    for (const auto& [block, bytes] : s.blocks) out.bytes += int64_t(bytes);
    return out;
}

std::string Held::text() const {
    return std::to_string(blocks) + " blocks of " + std::to_string(bytes) + " bytes, " +
           std::to_string(pinned) + " of pinned memory, " + std::to_string(events) + " events";
}

}  // namespace gpu

// The linker calls f of the library __real_f, and sends calls of f to __wrap_f.
#define SMLA_WRAPPED(name, takes_memory, parameters, arguments)     \
    extern "C" cudaError_t __real_##name parameters;                \
    extern "C" cudaError_t __wrap_##name parameters {               \
        if (gpu::fails(#name, takes_memory)) return gpu::failure(); \
        return __real_##name arguments;                             \
    }
#define SMLA_COUNTED(name, may_fail, parameters, arguments, count)                                    \
    extern "C" cudaError_t __real_##name parameters;                                                  \
    extern "C" cudaError_t __wrap_##name parameters {                                                 \
        if (may_fail && gpu::fails(#name, true)) return gpu::failure();                               \
        return gpu::counted(__real_##name arguments, [&]([[maybe_unused]] gpu::State& s) { count; }); \
    }

SMLA_COUNTED(cudaMalloc, true, (void** memory, size_t bytes), (memory, bytes), s.blocks[*memory] = bytes)
SMLA_COUNTED(cudaFree, false, (void* memory), (memory), s.blocks.erase(memory))
SMLA_COUNTED(cudaHostAlloc, true, (void** memory, size_t bytes, unsigned flags), (memory, bytes, flags),
             ++s.pinned)
SMLA_COUNTED(cudaFreeHost, false, (void* memory), (memory), --s.pinned)
SMLA_COUNTED(cudaEventCreateWithFlags, true, (cudaEvent_t * event, unsigned flags), (event, flags),
             ++s.events)
SMLA_COUNTED(cudaEventDestroy, false, (cudaEvent_t event), (event), --s.events)

SMLA_WRAPPED(cudaMemcpyAsync, false,
             (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
             (to, from, bytes, kind, stream))
SMLA_WRAPPED(cudaMemsetAsync, false, (void* to, int byte, size_t bytes, cudaStream_t stream),
             (to, byte, bytes, stream))
SMLA_WRAPPED(cudaMemset2DAsync, false,
             (void* to, size_t pitch, int byte, size_t width, size_t height, cudaStream_t stream),
             (to, pitch, byte, width, height, stream))
SMLA_WRAPPED(cudaLaunchKernelExC, false,
             (const cudaLaunchConfig_t* config, const void* kernel, void** arguments),
             (config, kernel, arguments))
SMLA_WRAPPED(cudaFuncSetAttribute, false, (const void* kernel, cudaFuncAttribute attribute, int value),
             (kernel, attribute, value))
SMLA_WRAPPED(cudaStreamSynchronize, false, (cudaStream_t stream), (stream))
SMLA_WRAPPED(cudaEventRecord, false, (cudaEvent_t event, cudaStream_t stream), (event, stream))
SMLA_WRAPPED(cudaEventSynchronize, false, (cudaEvent_t event), (event))
SMLA_WRAPPED(cudaGetDevice, false, (int* device), (device))
SMLA_WRAPPED(cudaGetDeviceProperties, false, (cudaDeviceProp * properties, int device), (properties, device))
SMLA_WRAPPED(cudaDeviceGetAttribute, false, (int* value, cudaDeviceAttr attribute, int device),
             (value, attribute, device))
SMLA_WRAPPED(cudaPointerGetAttributes, false, (cudaPointerAttributes * attributes, const void* memory),
             (attributes, memory))
