// Memory of a GPU that ends where nothing is mapped. A kernel that reads behind it ends the process's use of
// the GPU, and every test after it fails, too.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace gpu {

constexpr size_t kWallAlignment = 16;  // what the fastest kernels ask for

// The driver's functions of virtual memory, which the runtime does not have.
template <class Function>
Function* driver(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    void* const found = library ? dlsym(library, name) : nullptr;
    if (!found) throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Function*>(found);
}
#define SMLA_DRIVER(function) driver<decltype(function)>(#function)

inline void must(CUresult result, const char* call) {
    if (result != CUDA_SUCCESS)
        throw std::runtime_error(std::string(call) + " gave " + std::to_string(int(result)));
}
#define SMLA_MUST(function, ...) must(SMLA_DRIVER(function)(__VA_ARGS__), #function)

// `bytes` whose end, but for alignment, is that of the pages mapped; the addresses behind are kept free.
inline std::shared_ptr<void> before_a_wall(size_t bytes) {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    size_t page = 0;
    SMLA_MUST(cuMemGetAllocationGranularity, &page, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    const size_t room = (bytes + kWallAlignment) / kWallAlignment * kWallAlignment,
                 mapped = (room + page - 1) / page * page;
    CUdeviceptr base = 0;
    CUmemGenericAllocationHandle memory{};
    SMLA_MUST(cuMemAddressReserve, &base, mapped + page, 0, 0, 0);
    SMLA_MUST(cuMemCreate, &memory, mapped, &kind, 0);
    SMLA_MUST(cuMemMap, base, mapped, 0, memory, 0);
    CUmemAccessDesc access{};
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    SMLA_MUST(cuMemSetAccess, base, mapped, &access, 1);
    const size_t used = (bytes + kWallAlignment - 1) / kWallAlignment * kWallAlignment;
    return {reinterpret_cast<void*>(base + mapped - used), [=](void*) {
                SMLA_DRIVER(cuMemUnmap)(base, mapped);
                SMLA_DRIVER(cuMemRelease)(memory);
                SMLA_DRIVER(cuMemAddressFree)(base, mapped + page);
            }};
}

#undef SMLA_MUST
#undef SMLA_DRIVER

}  // namespace gpu
