#include "core/huge_pages.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

TEST(AllocateBlock, SizesThatRoundingWouldWrapAreNoMemory) {
    // Below those sizes the allocator is asked, and one of a sanitizer ends the process.
    for (const size_t alignment : {size_t(64), size_t(4096), kHugePage, 2 * kHugePage})
        for (const size_t below : {size_t(0), size_t(1), alignment / 2, alignment - 2})
            EXPECT_EQ(allocate_block(SIZE_MAX - below, alignment), nullptr) << below << " of " << alignment;
}

TEST(AllocateBlock, IsAligned) {
    for (const size_t alignment : {size_t(64), size_t(4096), kHugePage})
        for (const size_t bytes : {size_t(1), size_t(4097), kHugePage / 2, kHugePage + 1}) {
            void* const memory = allocate_block(bytes, alignment);
            ASSERT_NE(memory, nullptr);
            EXPECT_EQ(uintptr_t(memory) % alignment, 0u);
            static_cast<char*>(memory)[bytes - 1] = 1;
            std::free(memory);
        }
}

}  // namespace
}  // namespace smla
