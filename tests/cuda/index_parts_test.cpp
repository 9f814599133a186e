// What the kernel behind check_indices finds, computed by the same code on a processor: every thread of its
// grid in turn.
#include "engines/cuda/common/index_parts.h"
#include "cuda/index_lists.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

namespace smla {
namespace {

// The first bad item that any thread of so many warps meets.
cuda::BadItem first_of(const IndexScan& scan, int64_t warps) {
    const cuda::ListParts parts = cuda::parts_of(scan);
    cuda::BadItem first;
    for (int64_t warp = 0; warp < warps; ++warp)
        for (int lane = 0; lane < cuda::kPiece; ++lane) {
            const cuda::BadItem bad = cuda::scan_lists(parts, scan, warp, warps, lane);
            if (bad.list < first.list || (bad.list == first.list && bad.item < first.item)) first = bad;
        }
    return first;
}

void expect_same(const IndexScan& scan, int64_t warps) {
    const auto [list, item] = first_of(scan, warps);
    const FoundValue wanted = find_bad_value(scan);
    ASSERT_EQ(list != IndexScan::kMost, wanted.has_value());
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
    const cuda::ListParts parts = cuda::parts_of(scan);
    ASSERT_EQ(parts.of[0].filter, cuda::ListFilter::values);
    ASSERT_EQ(parts.of[1].filter, cuda::ListFilter::vectors);
    EXPECT_EQ(parts.of[0].end, 1);
    EXPECT_EQ(parts.pieces, 1 + int64_t(rows.size()) / 4 / cuda::kPiece);
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
            std::vector<int64_t> slots(round % 8 < 4 ? 300 : 1 + random() % 32);
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
            const IndexScan scan = index_scan(args);
            expect_same(scan, 2);
        }
}

// Values for calls whose lists name blocks of a table, most of them good.
class TableLists {
public:
    explicit TableLists(unsigned seed) : random_(seed) {}

    int64_t any(int64_t low, int64_t high) { return low + int64_t(random_() % uint64_t(high - low + 1)); }
    // One in `rarity` is no value of [low, high]; 0: none is.
    Tensor take(smla_dtype dtype, std::initializer_list<int64_t> shape, int64_t low, int64_t high,
                int64_t rarity) {
        std::vector<int64_t>& values = memory_.emplace_back();
        Tensor out = make_tensor(static_cast<void*>(nullptr), dtype, shape);
        values.resize(size_t(element_count(out)));
        for (int64_t& value : values) {
            const int64_t bad[] = {low - 1, high + 1, INT32_MIN, INT32_MAX};
            value = rarity > 0 && any(1, rarity) == 1 ? bad[any(0, 3)] : any(low, high);
        }
        out.data = values.data();
        if (dtype == SMLA_I32)
            for (size_t i = 0; i < values.size(); ++i) {
                const auto value = int32_t(values[i]);
                std::memcpy(static_cast<char*>(out.data) + i * sizeof value, &value, sizeof value);
            }
        return out;
    }

private:
    std::mt19937 random_;
    std::deque<std::vector<int64_t>> memory_;
};

// Calls of 300 rounds, scan_of(lists, round): a filter by a table in each, and something wrong in some.
template <class ScanOf>
void expect_same_in_rounds(const ScanOf& scan_of) {
    constexpr unsigned kRounds = 300;
    unsigned tables = 0, found = 0;
    for (unsigned round = 0; round < kRounds; ++round) {
        SCOPED_TRACE(round);
        TableLists lists(round);
        const IndexScan scan = scan_of(lists, round);
        expect_same(scan, lists.any(1, 60));
        for (int l = 0; l < scan.count; ++l)
            tables += cuda::index_parts::part_of(scan.lists[l]).filter == cuda::ListFilter::table;
        found += find_bad_value(scan).has_value();
    }
    EXPECT_EQ(tables, kRounds);
    EXPECT_GT(found, kRounds / 10);
    EXPECT_LT(found, kRounds * 4 / 5);
}

TEST(CudaIndexParts, BlocksThatScoreReads) {
    expect_same_in_rounds([](TableLists& lists, unsigned round) {
        const int64_t tokens = lists.any(1, 40), requests = lists.any(1, 5), page = lists.any(1, 70),
                      columns = lists.any(1, 900), rarity = round % 3 ? 400 : 0,
                      width = ceil_div(columns, page) - (round % 7 == 0);
        smla_score_args args{};
        args.q = make_tensor(static_cast<void*>(nullptr), SMLA_E4M3, {tokens, 1, 128});
        args.logits = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {tokens, columns});
        args.ends = lists.take(SMLA_I32, {tokens}, 0, columns, rarity);
        args.request_of_token = lists.take(SMLA_I32, {tokens}, 0, requests - 1, rarity);
        args.keys.format = SMLA_INDEX_FP8_132;
        args.keys.page_tokens = page, args.keys.pages = 9;
        args.block_table = lists.take(SMLA_I32, {requests, width}, 0, 8, rarity);
        return index_scan(args);
    });
}

TEST(CudaIndexParts, BlocksThatCompressPoolsFrom) {
    expect_same_in_rounds([](TableLists& lists, unsigned round) {
        const int64_t tokens = lists.any(1, 60), requests = lists.any(1, 5), page = lists.any(1, 9),
                      width = lists.any(3, 40), rarity = round % 3 ? 300 : 0;
        smla_compress_args args{};
        args.ratio = int32_t(round % 2 ? 4 : lists.any(1, 20));
        args.positions = lists.take(round % 5 ? SMLA_I64 : SMLA_I32, {tokens}, 0, width * page - 1, rarity);
        args.slots = lists.take(SMLA_I64, {tokens}, -1, 63, 0);
        args.request_of_token = lists.take(SMLA_I32, {tokens}, 0, requests - 1, rarity);
        args.state_table = lists.take(SMLA_I32, {requests, width}, -1, 8, rarity);
        args.state.format = SMLA_STATE_F32;
        args.state.width = args.cache.width = 64;
        args.state.page_tokens = page, args.state.pages = 9;
        args.cache.format = SMLA_ROW_BF16;
        args.cache.page_tokens = 64, args.cache.pages = 1;
        return index_scan(args);
    });
}

TEST(CudaIndexParts, PositionsThatMapLooksUp) {
    expect_same_in_rounds([](TableLists& lists, unsigned round) {
        const int64_t tokens = lists.any(1, 20), requests = lists.any(1, 5), page = lists.any(1, 70),
                      columns = lists.any(1, 90), width = lists.any(1, 40),
                      pool = round % 2 ? 1 : lists.any(2, 5), rarity = round % 3 ? 900 : 0;
        smla_map_args args{};
        args.page_tokens = int32_t(page), args.pool_tokens = int32_t(pool);
        args.request_of_token = lists.take(SMLA_I32, {tokens}, 0, requests - 1, rarity);
        args.block_table = lists.take(SMLA_I32, {requests, width}, -1, 900, rarity);
        args.positions = lists.take(SMLA_I32, {tokens, columns}, -1,
                                    std::max<int64_t>(width * page / pool - 1, -1), rarity);
        if (round % 5) args.limits = lists.take(SMLA_I32, {tokens}, 0, columns, 0);
        if (pool > 1) args.visible_tokens = lists.take(SMLA_I32, {tokens}, 0, width * page, rarity);
        return index_scan(args);
    });
}

}  // namespace
}  // namespace smla
