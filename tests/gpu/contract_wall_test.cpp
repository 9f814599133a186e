// Lines 2d and 5c on a GPU: memory that ends where nothing is mapped. A kernel that reads behind it ends the
// process's use of the GPU, and every test after it fails, too.
#include "contract/attention.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <stdexcept>

namespace contract {
namespace {

constexpr size_t kAlignment = 16;  // what the fastest kernels ask for

// The driver's functions of virtual memory, which the runtime does not have.
template <class Function>
Function* driver(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    void* const found = library ? dlsym(library, name) : nullptr;
    if (!found) throw std::runtime_error(std::string("the driver has no ") + name);
    return reinterpret_cast<Function*>(found);
}
#define DRIVER(function) driver<decltype(function)>(#function)

void must(CUresult result, const char* call) {
    if (result != CUDA_SUCCESS)
        throw std::runtime_error(std::string(call) + " gave " + std::to_string(int(result)));
}
#define MUST(function, ...) must(DRIVER(function)(__VA_ARGS__), #function)

// `bytes` whose end, but for alignment, is that of the pages mapped; the addresses behind are kept free.
std::shared_ptr<void> before_a_wall(size_t bytes) {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    size_t page = 0;
    MUST(cuMemGetAllocationGranularity, &page, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    const size_t room = (bytes + kAlignment) / kAlignment * kAlignment,
                 mapped = (room + page - 1) / page * page;
    CUdeviceptr base = 0;
    CUmemGenericAllocationHandle memory{};
    MUST(cuMemAddressReserve, &base, mapped + page, 0, 0, 0);
    MUST(cuMemCreate, &memory, mapped, &kind, 0);
    MUST(cuMemMap, base, mapped, 0, memory, 0);
    CUmemAccessDesc access{};
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    MUST(cuMemSetAccess, base, mapped, &access, 1);
    const size_t used = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return {reinterpret_cast<void*>(base + mapped - used), [=](void*) {
                DRIVER(cuMemUnmap)(base, mapped);
                DRIVER(cuMemRelease)(memory);
                DRIVER(cuMemAddressFree)(base, mapped + page);
            }};
}

void run_before_walls(const Call& call, smla_context* context) {
    const Scratch scratch(context, call.workspace(context));
    const Placed placed(call, context, call.args(), before_a_wall);
    ASSERT_TRUE(succeeded(call.call(context, placed.args(), scratch.get())));
    placed.fetch();
}

TEST_F(ContractGpu, L2d_EntriesPastALengthMayBeMissingMemory) {
    constexpr int64_t rows = 100;
    const Engine& engine = engines().front();
    const Context context(engine);
    for (const int64_t length : {1, 64, 67, 96}) {
        Attention problem({.tokens = 1, .heads = 20, .rows = rows});
        problem.add_lengths();
        set_int(problem.with.primary.lengths, 0, 0, length);
        const smla_tensor whole = problem.with.primary.rows;
        smla_tensor list = problem.memory.tensor(SMLA_I32, {1, length});
        for (int64_t j = 0; j < length; ++j) set_int(list, 0, j, get_int(whole, 0, j));
        problem.fill_listed();
        const Truth truth = truth_of(problem.with);
        list.shape[1] = rows;
        problem.with.primary.rows = list;
        run_before_walls(problem, context);
        EXPECT_TRUE(agrees(engine, problem.with, truth)) << length;
    }
}

TEST_F(ContractGpu, L5c_NothingIsReadBehindTheMemoryOfAnyCall) {
    const Context context(engines().front());
    for (const NamedMaker& maker : all_calls())
        for (const int64_t tokens : {1, 9}) {
            const std::unique_ptr<Call> call = make(maker, tokens);
            run_exactly(*call, context);
            const std::vector<uint8_t> image = call->memory.image();
            call->memory.reset();
            run_before_walls(*call, context);
            EXPECT_TRUE(call->memory.image() == image) << maker.name << " of " << tokens;
        }
}

}  // namespace
}  // namespace contract
