// Builds allocate nothing, never move a field, and take their memory from the caller's allocator.
#include "batch.h"
#include "counting_new.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace smla::test {
namespace {

using counting::allocations;

struct Counter {
    int64_t live = 0, calls = 0, bytes = 0;
    bool refuse = false;
    static void* alloc(void* user, size_t bytes, size_t alignment) {
        auto* self = static_cast<Counter*>(user);
        if (self->refuse) return nullptr;
        self->live += 1;
        self->calls += 1;
        self->bytes += int64_t(bytes);
        return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    }
    static void free(void* user, void* memory) {
        static_cast<Counter*>(user)->live -= 1;
        std::free(memory);
    }
};

PlanMaxima everything() {
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = kPlanGroups;
    maxima.max_tokens = 12;
    maxima.max_requests = 4;
    maxima.max_seq_len = 64;
    maxima.window = 8;
    maxima.ratio = 4;
    maxima.list_entries = 1;
    maxima.heads = 16;
    maxima.workers = 2;
    return maxima;
}

Batch step(int32_t requests, int32_t query, int32_t length) {
    Batch batch;
    for (int32_t r = 0; r < requests; ++r) add_request(batch, query, length);
    for (int g = 0; g < 6; ++g) set_table(batch, g, 64, 4, 10 * g);
    return batch;
}

TEST(PlanMemory, BuildsAllocateNothingAndAddressesStay) {
    Counter counter;
    PlanMaxima maxima = everything();
    maxima.allocator = {Counter::alloc, Counter::free, &counter};
    {
        Plan plan(maxima);
        std::vector<const void*> addresses;
        for (const char* name : plan.names()) addresses.push_back(plan.find(name)->data);
        EXPECT_EQ(addresses.size(), size_t(kPlanFieldCount));
        for (const Batch& batch : {step(4, 3, 64), step(0, 0, 0), step(1, 1, 1), step(2, 5, 17)}) {
            const PlanBatch view = batch.view();
            const int64_t before = allocations.load();
            plan.build(view);
            EXPECT_EQ(allocations.load(), before);
            size_t i = 0;
            for (const char* name : plan.names()) EXPECT_EQ(plan.find(name)->data, addresses[i++]) << name;
        }
        EXPECT_EQ(counter.calls, 1);
        EXPECT_GE(counter.bytes, 12 * 128 * 4);
    }
    EXPECT_EQ(counter.live, 0);
}

TEST(PlanMemory, TheCounterCounts) {
    const int64_t before = allocations.load();
    const std::vector<int> something(10);
    EXPECT_EQ(allocations.load(), before + 1);
}

TEST(PlanMemory, NoMemory) {
    Counter counter;
    counter.refuse = true;
    PlanMaxima maxima = everything();
    maxima.allocator = {Counter::alloc, Counter::free, &counter};
    try {
        Plan plan(maxima);
        FAIL() << "created without memory";
    } catch (const Error& error) {
        EXPECT_EQ(error.status, SMLA_OUT_OF_MEMORY);
        EXPECT_EQ(error.field, "args.allocator");
    }
    EXPECT_EQ(counter.live, 0);
}

// Fields do not overlap: writing one full of ones leaves the others alone.
TEST(PlanMemory, FieldsLieApart) {
    Plan plan(everything());
    for (const FieldSpec& written : kPlanFieldSpecs) {
        Tensor field = largest_field(written, plan.maxima());
        field.data = (plan.fields().*written.member).data;
        std::vector<std::vector<int64_t>> before;
        for (const FieldSpec& other : kPlanFieldSpecs) before.push_back(all_values_of(plan, other.name));
        const size_t bytes = size_t(element_count(field)) * size_t(dtype_bits(field.dtype)) / 8;
        const std::vector<char> saved(static_cast<char*>(field.data), static_cast<char*>(field.data) + bytes);
        std::fill(static_cast<char*>(field.data), static_cast<char*>(field.data) + bytes, char(0x5a));
        size_t i = 0;
        for (const FieldSpec& other : kPlanFieldSpecs) {
            EXPECT_TRUE(&other == &written || all_values_of(plan, other.name) == before[i]) << written.name;
            ++i;
        }
        std::copy(saved.begin(), saved.end(), static_cast<char*>(field.data));
    }
}

}  // namespace
}  // namespace smla::test
