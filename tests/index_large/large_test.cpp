// The indexer at the lengths it exists for.
#include "index/cases.h"

#include <algorithm>
#include <cmath>

namespace smla::test {
namespace {

// The k best columns in column order, by an independent partial sort.
std::vector<int32_t> best(const std::vector<float>& row, int64_t k) {
    std::vector<int32_t> order(row.size());
    for (size_t j = 0; j < order.size(); ++j) order[j] = int32_t(j);
    k = std::min<int64_t>(k, int64_t(row.size()));
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
        const float x = row[size_t(a)], y = row[size_t(b)];
        return x != y ? x > y : a < b;
    });
    order.resize(size_t(k));
    std::sort(order.begin(), order.end());
    return order;
}

TEST(SelectLarge, LongRowsAreTheOracle) {
    struct Size {
        int64_t columns, k;
    };
    for (const Size size :
         {Size{131072, 2048}, Size{131072, 4096}, Size{1048576, 2048}, Size{(1 << 23) - 1, 1000}})
        for (int kind = 0; kind < 4; ++kind) {
            std::mt19937 random{uint32_t(size.columns + kind)};
            std::normal_distribution<float> normal;
            std::vector<float> row(size_t(size.columns));
            for (size_t j = 0; j < row.size(); ++j) {
                if (kind == 0) row[j] = normal(random);
                if (kind == 1) row[j] = float(random() % 4097);
                if (kind == 2) row[j] = float(j);
                if (kind == 3) row[j] = 1.f + float(random() % 2007041) * 0x1p-23f;
            }
            const std::vector<int32_t> want = best(row, size.k);
            for (const smla_isa isa : isas_here()) {
                const Runner runner(isa);
                const Selection got =
                    run_select(make_tensor(row.data(), SMLA_F32, {1, size.columns}), size.k, runner.env);
                EXPECT_TRUE(got.indices == want)
                    << isa_name(isa) << " N " << size.columns << " k " << size.k << " kind " << kind;
            }
        }
}

// T-45: one key among many, wherever it stands, is found.
TEST(ScoreSelectLarge, TheNeedleIsFoundAtAnyDepth) {
    for (const int64_t columns : {8192, 61440, 140288, 358400, 1048576}) {
        ScoreShape shape;
        shape.tokens = 1;
        shape.heads = 4;
        shape.columns = columns;
        shape.format = SMLA_INDEX_FP8_132;
        ScoreCase test(shape);
        std::fill(test.w.begin(), test.w.end(), 1.f);
        std::vector<float> key(size_t(shape.width), 0.f);
        for (int64_t d = 0; d < shape.width; ++d)
            for (int64_t h = 0; h < shape.heads; ++h)
                key[size_t(d)] += 4 * float(test.q[0][size_t(h * shape.width + d)]);
        const int64_t needle = columns * 5 / 7;
        test.keys().encode(test.row(0, needle), key.data());
        const Runner runner(best_isa(), 2);
        EXPECT_EQ(run_score_select(test, 1, runner.env).indices[0], needle);
        const Selection many = run_score_select(test, 2048, runner.env);
        EXPECT_TRUE(std::binary_search(many.indices.begin(), many.indices.end(), int32_t(needle)));
        EXPECT_EQ(many.counts[0], 2048);
    }
}

TEST(ScoreSelectLarge, LongContextsAreThePair) {
    ScoreShape shape;
    shape.tokens = 3;
    shape.heads = 64;
    shape.columns = 40000;
    ScoreCase test(shape);
    test.ends = {40000, 39999, 25000};
    const Runner one, two(best_isa(), 2);
    const std::vector<float> logits = run_score(test, two.env);
    const Selection want = run_select(make_tensor(logits.data(), SMLA_F32, {3, shape.columns}), 2048, one.env,
                                      nullptr, &test.ends);
    EXPECT_TRUE(run_score_select(test, 2048, one.env) == want);
    EXPECT_TRUE(run_score_select(test, 2048, two.env) == want);
}

// Logits of more than 2^31 elements: only the pages that windows touch exist.
TEST(ScoreLarge, LogitsPastTwoToTheThirtyOneElements) {
    constexpr int64_t kTokens = 20000, kColumns = 131072;
    const kit::SparseMemory memory(size_t(kTokens * kColumns) * sizeof(float));
    if (!memory.taken()) GTEST_SKIP() << "10 GB of address space are not to be had";
    ScoreShape shape;
    shape.format = SMLA_ROW_F32;
    shape.q = SMLA_F32;
    shape.heads = 1;
    shape.width = 16;
    shape.tokens = kTokens;
    shape.columns = kColumns;
    ScoreCase test(shape);
    std::fill(test.starts.begin(), test.starts.end(), 0);
    std::fill(test.ends.begin(), test.ends.end(), 0);
    const std::vector<int64_t> touched = {0, 16383, 16384, kTokens - 1};  // row 16384 begins at element 2^31
    for (const int64_t t : touched) {
        test.starts[size_t(t)] = int32_t(kColumns - 2);
        test.ends[size_t(t)] = int32_t(kColumns);
    }
    smla_score_args args = test.args();
    args.logits = make_tensor(memory.data(), SMLA_F32, {kTokens, kColumns});
    const Runner runner(best_isa(), 2);
    run_stage<Stage::score>(args, runner.env);
    const CacheView keys = test.keys();
    std::vector<double> key(size_t(shape.width));
    for (const int64_t t : touched)
        for (int64_t j = kColumns - 2; j < kColumns; ++j) {
            keys.decode(test.row(0, j), key.data());
            double dot = 0, magnitude = 0;
            for (size_t d = 0; d < key.size(); ++d) {
                dot += test.q[size_t(t)][d] * key[d];
                magnitude += std::fabs(test.q[size_t(t)][d] * key[d]);
            }
            const double w = test.w[size_t(t)], want = w * std::max(0.0, dot);
            // the bound of tests/index/expected.h for one head of width 16
            EXPECT_NEAR(static_cast<float*>(memory.data())[t * kColumns + j], want,
                        20 * 0x1p-24 * std::fabs(w) * magnitude);
        }
}

}  // namespace
}  // namespace smla::test
