#include "plan/split.h"

#include <gtest/gtest.h>

#include <vector>

namespace smla {
namespace {

struct Split {
    int64_t decodes, prefills, decode_tokens, prefill_tokens;
    bool operator==(const Split&) const = default;
};

Split split(const std::vector<int32_t>& query_lens, int64_t threshold, bool uniform) {
    std::vector<int32_t> starts{0};
    for (const int32_t n : query_lens) starts.push_back(starts.back() + n);
    const BatchSplit out =
        split_decodes_and_prefills(starts.data(), int64_t(query_lens.size()), threshold, uniform);
    return {out.decodes, out.prefills, out.decode_tokens, out.prefill_tokens};
}

TEST(BatchSplit, EverythingAfterTheFirstPrefillIsPrefill) {
    EXPECT_EQ(split({1, 1, 1}, 1, false), (Split{3, 0, 3, 0}));
    EXPECT_EQ(split({1, 1, 7, 1}, 1, false), (Split{2, 2, 2, 8}));
    EXPECT_EQ(split({5, 1}, 1, false), (Split{0, 2, 0, 6}));
    EXPECT_EQ(split({}, 1, false), (Split{0, 0, 0, 0}));
    EXPECT_EQ(split({1, 0, 0}, 1, false), (Split{3, 0, 1, 0}));
}

TEST(BatchSplit, ShortChunksAreDecodesWithSpeculation) {
    EXPECT_EQ(split({3, 2, 1, 4}, 3, false), (Split{3, 1, 6, 4}));
    EXPECT_EQ(split({3, 3, 2}, 3, false), (Split{3, 0, 8, 0}));
}

TEST(BatchSplit, UniformDecodes) {
    EXPECT_EQ(split({3, 3, 0, 0}, 3, true), (Split{4, 0, 6, 0}));  // padded graph
    EXPECT_EQ(split({3, 3, 2}, 3, true), (Split{2, 1, 6, 2}));
    EXPECT_EQ(split({2, 3, 3}, 3, true), (Split{1, 2, 2, 6}));
    EXPECT_EQ(split({4, 3}, 3, true), (Split{0, 2, 0, 7}));
    EXPECT_EQ(split({1, 0, 1}, 1, true), (Split{3, 0, 2, 0}));  // threshold 1: nothing to be uniform about
}

TEST(SplitCount, NumbersOfTheTritonBackend) {
    EXPECT_EQ(triton_split_count(1, 16, 2048, 132), 16);
    EXPECT_EQ(triton_split_count(8, 128, 2048, 132), 1);
    EXPECT_EQ(triton_split_count(0, 16, 2048, 132), 1);
    EXPECT_EQ(triton_split_count(1, 16, 2051, 132), 1);  // no power of two divides the width
    EXPECT_EQ(triton_split_count(4, 16, 2048, 132), 16);
    EXPECT_EQ(triton_split_count(16, 16, 2048, 132), 8);
    EXPECT_EQ(triton_split_count(32, 16, 2048, 132), 4);
    EXPECT_EQ(triton_split_count(33, 16, 2048, 132), 1);  // a quarter as many blocks as workers suffices
}

TEST(SplitSchedule, PartsAreWholeBlocksAndCoverTheList) {
    for (const int64_t tokens : {1, 2, 7, 64})
        for (const int64_t heads : {1, 16, 17, 128})
            for (const int64_t width : {1, 63, 64, 65, 640, 2048, 2051, 8320})
                for (const int64_t workers : {1, 2, 16, 132}) {
                    const SplitSchedule schedule = split_schedule(tokens, heads, width, workers);
                    EXPECT_EQ(schedule.rows % kSplitRows, 0);
                    EXPECT_GE(schedule.splits * schedule.rows, width);
                    EXPECT_LT((schedule.splits - 1) * schedule.rows,
                              width);  // no part is empty at full length
                }
    EXPECT_EQ(split_schedule(1, 16, 2051, 132).splits, 11);  // 16 wanted, parts of 192
    EXPECT_EQ(split_schedule(1, 16, 2051, 132).rows, 192);
    EXPECT_EQ(split_schedule(64, 128, 2048, 132).splits, 1);
    EXPECT_EQ(split_schedule(1, 16, 0, 132).splits, 1);
}

}  // namespace
}  // namespace smla
