// Windows, pages and partitions of score: what is read, what is written, and that cutting the work changes
// nothing.
#include "index/cases.h"
#include "index/expected.h"

#include <cmath>
#include <limits>

namespace smla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Columns of a window are what they are in the whole row; the others are -inf or untouched, and their keys,
// block ids and scales are garbage that must not be read.
TEST(ScoreWindows, WindowsAreClampedAndNothingOutsideIsRead) {
    ScoreShape shape;
    shape.tokens = 12;
    shape.columns = 330;
    shape.heads = 64;
    shape.page_tokens = 16;
    const ScoreCase whole(shape);
    ScoreCase test(shape);
    test.starts = {0, 5, 47, 48, 100, 200, -9, 330, 320, 7, 0, 290};
    test.ends = {330, 5, 50, 49, 90, 250, 3, 400, 2147483647, 8, -4, 301};
    for (const bool fill : {true, false})
        for (const smla_isa isa : isas_here()) {
            Runner runner(isa);
            const std::vector<float> all = run_score(whole, runner.env),
                                     got = run_score(test, runner.env, fill);
            for (int64_t t = 0; t < shape.tokens; ++t)
                for (int64_t j = 0; j < shape.columns; ++j) {
                    const size_t at = size_t(t * shape.columns + j);
                    const bool inside = j >= test.starts[size_t(t)] && j < test.ends[size_t(t)];
                    ASSERT_EQ(got[at], inside ? all[at]
                                       : fill ? -kInfinity
                                              : kCanary)
                        << isa_name(isa) << " " << t << " " << j;
                }
        }
}

TEST(ScoreWindows, GarbagePastTheEndsIsNotRead) {
    for (const smla_format format : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68, SMLA_ROW_BF16}) {
        ScoreShape shape;
        shape.tokens = 4;
        shape.requests = 2;
        shape.columns = 100;
        shape.page_tokens = 8;
        shape.format = format;
        ScoreCase test(shape);
        test.ends = {37, 40, 3, 17};
        Runner runner;
        const std::vector<float> want = run_score(test, runner.env);
        const CacheView view = test.keys();
        const std::vector<float> nan(size_t(shape.width), std::nanf(""));
        for (int64_t r = 0; r < shape.requests;
             ++r)  // the longest window of request 0 is 40, of request 1 is 17
            for (int64_t j = r == 0 ? 40 : 17; j < shape.columns; ++j)
                view.encode(test.row(r, j), nan.data());
        const int64_t blocks = int64_t(test.table.size()) / 2;
        for (int64_t b = 5; b < blocks; ++b) test.table[size_t(b)] = b % 2 ? -1 : 1 << 30;
        for (int64_t b = 3; b < blocks; ++b) test.table[size_t(blocks + b)] = -2147483647;
        EXPECT_TRUE(same_bits(run_score(test, runner.env), want));
    }
}

TEST(ScoreWindows, HolesScoreMinusInfinity) {
    ScoreShape shape;
    shape.tokens = 3;
    shape.columns = 90;
    shape.page_tokens = 16;
    ScoreCase test(shape);
    const std::vector<int32_t> table = test.table;
    test.table[1] = -1;                          // columns 16..31
    test.table[3] = int32_t(test.keys().pages);  // 48..63
    test.requests = {0, -1, 1};                  // only request 0 exists
    for (const smla_isa isa : isas_here()) {
        Runner runner(isa);
        const std::vector<float> got = run_score(test, runner.env), want = reference_score(test);
        for (int64_t j = 0; j < shape.columns; ++j) {
            const bool hole = (j >= 16 && j < 32) || (j >= 48 && j < 64);
            EXPECT_EQ(got[size_t(j)] == -kInfinity, hole) << j;
            EXPECT_EQ(want[size_t(j)] == -kInfinity, hole) << j;
            EXPECT_EQ(got[size_t(shape.columns + j)], -kInfinity);
            EXPECT_EQ(got[size_t(2 * shape.columns + j)], -kInfinity);
        }
    }
}

TEST(ScoreWindows, RaggedColumnsAreRowsOfTheCache) {
    for (const int64_t page_rows :
         {0, 24}) {  // 24: every page of 16 is followed by 8 rows that are not there
        ScoreShape shape;
        shape.paged = false;
        shape.page_tokens = 16;
        shape.page_rows = page_rows;
        shape.columns = 100;
        ScoreCase test(shape);
        smla_score_args args = test.args();
        EXPECT_FALSE(present(args.block_table));
        const CacheView view = test.keys();
        for (const smla_isa isa : isas_here()) {
            Runner runner(isa);
            const std::vector<float> got = run_score(test, runner.env);
            for (int64_t j = 0; j < shape.columns; ++j) {
                if (test.row(0, j) < 0) {
                    EXPECT_TRUE(j >= view.capacity || j % 24 >= 16) << j;
                    EXPECT_EQ(got[size_t(j)], -kInfinity) << j;
                } else {
                    const Want want = logit_of(test, 0, j);
                    EXPECT_LE(std::fabs(double(got[size_t(j)]) - want.logit), want.bound) << j;
                }
            }
        }
    }
}

// A row's bits depend on the row alone.
TEST(ScoreWindows, BitsDoNotDependOnThreadsBatchPagesOrScratch) {
    ScoreShape shape;
    shape.tokens = 21;
    shape.requests = 3;
    shape.columns = 1700;  // several tasks
    shape.heads = 24;
    shape.odd_scales = true;
    ScoreCase test(shape);
    std::mt19937 random(4);
    for (size_t t = 0; t < test.ends.size(); ++t) {
        test.starts[t] = int32_t(random() % 400);
        test.ends[t] = int32_t(random() % 1700);
    }
    for (const smla_isa isa : isas_here()) {
        Runner one(isa);
        const std::vector<float> want = run_score(test, one.env);
        for (const int threads : {2, 5})
            EXPECT_TRUE(same_bits(run_score(test, Runner(isa, threads).env), want));
        smla_score_args args = test.args();
        args.logits = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {shape.tokens, shape.columns});
        const size_t least = stage_workspace<Stage::score>(args, Runner(isa).env, 1);
        EXPECT_TRUE(same_bits(run_score(test, Runner(isa, 1, least).env), want))
            << "in " << least << " bytes";
        // Token by token, against tokens of other requests, pages in another order.
        ScoreCase alone(shape);
        alone.starts = test.starts;
        for (size_t t = 0; t < test.ends.size(); ++t) {
            alone.ends.assign(test.ends.size(), 0);
            alone.ends[t] = test.ends[t];
            const std::vector<float> got = run_score(alone, Runner(isa).env);
            EXPECT_EQ(std::memcmp(&got[t * 1700], &want[t * 1700], 1700 * sizeof(float)), 0)
                << isa_name(isa) << " row " << t;
        }
    }
}

TEST(ScoreWindows, PagesInAnyOrderAndRaggedKeysGiveTheSameBits) {
    ScoreShape shape;
    shape.columns = 300;
    shape.page_tokens = 7;
    const ScoreCase paged(shape);
    ScoreShape flat = shape;
    flat.paged = false;
    flat.page_tokens = 300;
    const ScoreCase ragged(flat);
    std::vector<float> row(size_t(shape.width));
    for (int64_t j = 0; j < shape.columns; ++j) {
        paged.keys().decode(paged.row(0, j), row.data());
        ragged.keys().encode(j, row.data());
    }
    for (const smla_isa isa : isas_here()) {
        Runner runner(isa);
        EXPECT_TRUE(same_bits(run_score(paged, runner.env), run_score(ragged, runner.env))) << isa_name(isa);
    }
}

TEST(ScoreWindows, NoTokensAndNoColumns) {
    Runner runner;
    for (const auto& [tokens, columns] : {std::pair<int64_t, int64_t>{0, 10}, {2, 0}, {0, 0}}) {
        ScoreShape shape;
        shape.tokens = tokens;
        shape.columns = columns;
        EXPECT_EQ(run_score(ScoreCase(shape), runner.env).size(), size_t(tokens * columns));
    }
}

}  // namespace
}  // namespace smla::test
