// What the kernel behind check_indices finds, computed by the same code on a processor: every thread of its
// grid in turn.
#include "engines/cuda/common/index_parts.h"
#include "cuda/index_lists.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

constexpr int kThreads = 64;

// The first bad item that any thread of the grid meets, as list and item.
std::pair<int, int64_t> first_of(const IndexScan& scan, const cuda::ListParts& parts) {
    std::pair<int, int64_t> first{IndexScan::kMost, -1};
    for (unsigned block = 0; block < parts.blocks; ++block) {
        int l = 0;
        while (block >= parts.of[l].end) ++l;
        const cuda::ListPart& part = parts.of[l];
        for (int thread = 0; thread < kThreads; ++thread) {
            const int64_t item =
                cuda::scan_part(part, scan.lists[l], int64_t(block - part.begin) * kThreads + thread,
                                int64_t(part.end - part.begin) * kThreads);
            if (item < 0) continue;
            if (l < first.first || (l == first.first && item < first.second)) first = {l, item};
        }
    }
    return first;
}

void expect_same(const IndexScan& scan, int64_t most_blocks) {
    const auto [list, item] = first_of(scan, cuda::parts_of(scan, kThreads, most_blocks));
    const FoundValue wanted = find_bad_value(scan);
    ASSERT_EQ(item >= 0, wanted.has_value());
    if (!wanted) return;
    const Finding found = examine(scan.lists[list], item);
    EXPECT_EQ(found.kind, wanted->kind);
    EXPECT_EQ(found.token, wanted->token);
    EXPECT_EQ(found.column, wanted->column);
    EXPECT_EQ(found.value, wanted->value);
}

TEST(CudaIndexParts, ThreadsFindWhatTheReferenceFinds) {
    std::mt19937 random(51);
    int vectors = 0, others = 0, found = 0;
    for (int round = 0; round < 120; ++round) {
        SCOPED_TRACE(round);
        const IndexLists lists(random, round % 4);
        const IndexScan scan = index_scan(lists.args);
        for (int l = 0; l < scan.count; ++l) {
            if (scan.lists[l].rule != IndexRule::listed_rows) continue;
            ++(cuda::index_parts::part_of(scan.lists[l]).filter == cuda::ListFilter::vectors ? vectors
                                                                                             : others);
        }
        expect_same(scan, 1 + round % 5);
        found += find_bad_value(scan).has_value();
    }
    EXPECT_GT(vectors, 60);
    EXPECT_GT(others, 60);
    EXPECT_GT(found, 40);
    EXPECT_LT(found, 100);
}

// Lists in order, as a decode step has them, go 16 bytes at a time and never through the rules.
TEST(CudaIndexParts, GoodListsPassTheFilter) {
    std::vector<int32_t> rows(8 * 256), lengths(8, 256);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = i % 3 == 1 ? -1 : int32_t(3 * (i % 300) + i % 2);
    smla_attend_args args{};
    args.primary.cache.format = SMLA_ROW_BF16;
    args.primary.cache.width = 576;
    args.primary.cache.page_tokens = 2, args.primary.cache.page_rows = 3, args.primary.cache.pages = 300;
    args.primary.rows = make_tensor(rows.data(), SMLA_I32, {8, 256});
    args.primary.lengths = make_tensor(lengths.data(), SMLA_I32, {8});
    const IndexScan scan = index_scan(args);
    const cuda::ListParts parts = cuda::parts_of(scan, kThreads, 100);
    ASSERT_EQ(parts.of[0].filter, cuda::ListFilter::values);
    ASSERT_EQ(parts.of[1].filter, cuda::ListFilter::vectors);
    EXPECT_EQ(parts.of[0].end, 1u);
    EXPECT_EQ(parts.blocks, 1 + unsigned(rows.size()) / 4 / kThreads);
    for (const int32_t row : rows) ASSERT_FALSE(cuda::index_parts::doubts(parts.of[1], row)) << row;
    for (const int32_t row : {-2, 2, 5, 899, 900, INT32_MIN, INT32_MAX})
        EXPECT_TRUE(cuda::index_parts::doubts(parts.of[1], row)) << row;
    for (const int32_t length : {-1, 257}) EXPECT_TRUE(cuda::index_parts::doubts(parts.of[0], length));
}

// A GPU reads 16 bytes from multiples of 16 alone.
TEST(CudaIndexParts, OnlyAlignedLinesAreReadInVectors) {
    const auto filter_of = [&](int64_t shift, int64_t stride, int64_t columns) {
        IndexList list;
        list.rule = IndexRule::listed_rows;
        list.tokens = 8, list.per_token = columns;
        list.values = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {8, columns});
        list.values.data = reinterpret_cast<void*>(uintptr_t(4096 + 4 * shift));
        list.values.stride_elems[0] = stride;
        return cuda::index_parts::part_of(list).filter;
    };
    EXPECT_EQ(filter_of(0, 256, 256), cuda::ListFilter::vectors);
    EXPECT_EQ(filter_of(4, 260, 256), cuda::ListFilter::vectors);
    EXPECT_EQ(filter_of(1, 256, 256), cuda::ListFilter::none);
    EXPECT_EQ(filter_of(0, 257, 256), cuda::ListFilter::none);
    EXPECT_EQ(filter_of(0, 258, 256), cuda::ListFilter::none);
    EXPECT_EQ(filter_of(0, 256, 254), cuda::ListFilter::none);
}

// Slots are rows of 64 bits.
TEST(CudaIndexParts, SlotsOfAnySize) {
    std::mt19937_64 random(4);
    constexpr int64_t kAny[] = {INT64_MIN, -2, -1, 0, 127, 128, INT32_MAX, int64_t(1) << 32, INT64_MAX};
    for (const int64_t pages : {int64_t(2), int64_t(1) << 40})
        for (int round = 0; round < 200; ++round) {
            SCOPED_TRACE(round);
            std::vector<int64_t> slots(300);
            const int64_t gap = pages > 2 ? round % 3 : 0, page_rows = 64 + gap;
            const int64_t first = pages > 2 ? int64_t(random() % 7) << 31 : 0;
            for (int64_t& slot : slots) {
                slot = first + int64_t(random() % 120);
                if (slot % page_rows >= 64) slot -= gap;
            }
            int64_t& one = slots[random() % slots.size()];
            if (round % 4 == 1) one = kAny[random() % std::size(kAny)];
            if (round % 4 == 3) one = (first / page_rows + 1) * page_rows - 1;  // in the gap, if there is one
            smla_write_args args{};
            args.slots = make_tensor(slots.data(), SMLA_I64, {std::ssize(slots)});
            args.cache.format = SMLA_ROW_BF16;
            args.cache.width = 576;
            args.cache.page_tokens = 64;
            args.cache.pages = pages;
            args.cache.page_rows = page_rows;
            expect_same(index_scan(args), 2);
        }
}

}  // namespace
}  // namespace smla
