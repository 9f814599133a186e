// Builds and forward calls allocate nothing; metadata take their memory from the caller's allocator.
#include "counting_new.h"
#include "serving.h"

#include <cstdlib>

namespace smla::test {
namespace {

using counting::allocations;

TEST(BackendMemory, BuildsAllocateNothing) {
    for (const Backend* backend : all_backends())
        for (const int32_t ratio : ratios(*backend)) {
            BackendArgs args = backend_args(backend->family, ratio);
            args.kv_cache_dtype = backend->family == SMLA_FAMILY_DSA ? "fp8_ds_mla" : "auto";
            if (reads_selection(resolve_config(args).kind())) args.plan_groups = SMLA_GROUP_INDEX;
            const BackendInstance on = instance(*backend, args);
            const auto metadata = on.metadata();
            Random random(9);
            for (int step = 0; step < 20; ++step) {
                Batch batch = random_step(random, args);
                if (args.plan_groups && args.family != SMLA_FAMILY_DSA)
                    set_table(batch, kIndex, args.max_seq_len, 64);
                const PlanBatch view = batch.view();
                const int64_t before = allocations.load();
                metadata->build(view);
                ASSERT_EQ(allocations.load(), before) << backend->name << " ratio " << ratio;
            }
        }
}

TEST(BackendMemory, TheCallersAllocatorHoldsTheBuffers) {
    struct Counter {
        int64_t live = 0;
        size_t bytes = 0;
        static void* alloc(void* user, size_t bytes, size_t alignment) {
            auto* self = static_cast<Counter*>(user);
            self->live += 1;
            self->bytes += bytes;
            return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
        }
        static void free(void* user, void* memory) {
            static_cast<Counter*>(user)->live -= 1;
            std::free(memory);
        }
    } counter;
    BackendArgs args = backend_args(SMLA_FAMILY_HYBRID, 128);
    args.allocator = {Counter::alloc, Counter::free, &counter};
    const BackendInstance on = instance(kFlashMlaSparseDsv4, args);
    {
        const auto metadata = on.metadata();
        EXPECT_EQ(counter.live, 2);                                      // the plan's and its own
        EXPECT_GE(counter.bytes, size_t(24 * (2 * 128 + 2 * 128) * 4));  // two lists each, of both kinds
    }
    EXPECT_EQ(counter.live, 0);
    args.allocator = {[](void*, size_t, size_t) -> void* { return nullptr; }, Counter::free, &counter};
    const BackendInstance poor = instance(kFlashMlaSparseDsv4, args);
    try {
        poor.metadata();
        FAIL() << "made without memory";
    } catch (const Error& error) {
        EXPECT_EQ(error.status, SMLA_OUT_OF_MEMORY);
    }
}

}  // namespace
}  // namespace smla::test
