#include "index/cases.h"

#include "kit/refused.h"
#include "ops/score_select_blocks/score_select_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace smla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Result {
    std::vector<int32_t> indices, counts, blocks;
    std::vector<float> selected, maxima;
    std::string kernel;

    bool operator==(const Result& other) const {
        return indices == other.indices && counts == other.counts && blocks == other.blocks &&
               same_bits(selected, other.selected) && same_bits(maxima, other.maxima);
    }
};

struct Blocks {
    int32_t size = 8;
    int64_t k = 40, best = 6;
    std::vector<int32_t> listed;  // [T,B]; empty: all blocks
    bool relative = false;
};

// bytes: a budget, which becomes the size of the workspace; nothing runs then.
Result run_blocks(const ScoreCase& test, const Blocks& blocks, const Env& env, size_t* bytes = nullptr) {
    const int64_t tokens = test.shape.tokens, all = ceil_div(test.shape.columns, blocks.size);
    Result out;
    out.indices.assign(size_t(tokens * blocks.k), -99);
    out.selected.assign(size_t(tokens * blocks.k), kCanary);
    out.counts.assign(size_t(tokens), -5);
    out.maxima.assign(size_t(tokens * all), kCanary);
    out.blocks.assign(size_t(tokens * blocks.best), -99);
    const smla_score_args score = test.args();
    smla_score_select_blocks_args args{};
    args.columns = int32_t(test.shape.columns);
    args.block_size = blocks.size;
    args.relative = blocks.relative;
    args.q = score.q;
    args.q_scales = score.q_scales;
    args.w = score.w;
    args.keys = score.keys;
    args.block_table = score.block_table;
    args.request_of_token = score.request_of_token;
    args.starts = score.starts;
    args.ends = score.ends;
    if (!blocks.listed.empty())
        args.blocks =
            make_tensor(blocks.listed.data(), SMLA_I32, {tokens, int64_t(blocks.listed.size()) / tokens});
    args.indices = make_tensor(out.indices.data(), SMLA_I32, {tokens, blocks.k});
    args.selected = make_tensor(out.selected.data(), SMLA_F32, {tokens, blocks.k});
    args.counts = make_tensor(out.counts.data(), SMLA_I32, {tokens});
    args.block_maxima = make_tensor(out.maxima.data(), SMLA_F32, {tokens, all});
    args.best_blocks = make_tensor(out.blocks.data(), SMLA_I32, {tokens, blocks.best});
    if (bytes) *bytes = stage_workspace<Stage::score_select_blocks>(args, env, *bytes);
    else out.kernel = run_stage<Stage::score_select_blocks>(args, env);
    return out;
}

ScoreShape long_row() {
    ScoreShape shape;
    shape.tokens = 2;
    shape.heads = 3;
    shape.columns = 20000;
    return shape;
}

TEST(ScoreSelectBlocks, AllBlocksGiveTheBitsOfScoreSelect) {
    for (const bool paged : {false, true}) {
        ScoreShape shape;
        shape.tokens = 4;
        shape.heads = 17;
        shape.columns = 650;
        shape.paged = paged;
        ScoreCase test(shape);
        test.starts = {0, 100, 649, 20};
        test.ends = {650, 405, 650, 20};
        for (const bool relative : {false, true})
            for (const int threads : {1, 3}) {
                const Runner runner(best_isa(), threads);
                const Result got = run_blocks(test, {.k = 200, .relative = relative}, runner.env);
                const Selection want = run_score_select(test, 200, runner.env, relative);
                EXPECT_EQ(got.kernel, "cpu_streamed_score_select_blocks");
                EXPECT_EQ(got.indices, want.indices);
                EXPECT_EQ(got.counts, want.counts);
                EXPECT_TRUE(same_bits(got.selected, want.selected));
            }
    }
}

TEST(ScoreSelectBlocks, MoreTokensTakeNoLessScratch) {
    const ScoreCase test(ScoreShape{});
    const smla_score_args score = test.args();
    smla_score_select_blocks_args args{};
    args.columns = 131072;
    args.block_size = 8;
    args.q = score.q;
    args.w = score.w;
    args.keys = score.keys;
    args.indices = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {1, 512});
    for (const int threads : {1, 16}) {
        const Runner runner(best_isa(), threads);
        const size_t all = stage_workspace<Stage::score_select_blocks>(args, runner.env, 0);
        for (const size_t budget : {size_t(0), size_t(1), all / 4, all}) {
            size_t before = 0;
            for (int64_t tokens = 0; tokens <= 100; ++tokens) {
                args.q.shape[0] = args.indices.shape[0] = tokens;
                const size_t bytes = stage_workspace<Stage::score_select_blocks>(args, runner.env, budget);
                ASSERT_GE(bytes, before) << tokens << " tokens, budget " << budget << ", threads " << threads;
                before = bytes;
            }
        }
    }
}

// Keys of blocks that nobody lists are NaN, and so are those past a window's end.
TEST(ScoreSelectBlocks, OnlyListedKeysAreRead) {
    ScoreShape shape;
    shape.tokens = 2;
    shape.format = SMLA_ROW_F32;
    shape.q = SMLA_F32;
    shape.columns = 400;
    ScoreCase clean(shape), dirty(shape);
    clean.ends = dirty.ends = {389, 389};
    const Blocks blocks{.k = 50, .listed = {48, 3, -1, 3, 17, 90, 20, 47, 20, 3, 17, 48, 49, INT32_MIN}};
    const CacheView keys = dirty.keys();
    const std::vector<double> nothing(size_t(shape.width), std::nan(""));
    for (int64_t column = 0; column < shape.columns; ++column) {
        const int64_t block = column / blocks.size;
        const bool read = column < 389 && (block == 3 || block == 17 || block == 20 || block >= 47);
        if (read) continue;
        keys.encode(dirty.row(0, column), nothing.data());
    }
    for (const std::string kernel : {"cpu_streamed_score_select_blocks", "cpu_generic_score_select_blocks"}) {
        Runner runner(best_isa(), 2);
        runner.demand<Stage::score_select_blocks>(kernel);
        const Result want = run_blocks(clean, blocks, runner.env);
        EXPECT_EQ(want.counts, (std::vector<int32_t>{29, 37}));
        EXPECT_TRUE(run_blocks(dirty, blocks, runner.env) == want) << kernel;
    }
}

TEST(ScoreSelectBlocks, TheNewestBlockIsAlwaysKept) {
    ScoreShape shape = long_row();
    shape.columns = 300;
    shape.format = SMLA_ROW_F32;
    shape.q = SMLA_F32;
    ScoreCase test(shape);
    test.ends = {300, 7};
    for (float& w : test.w) w = 3e38f;  // logits of +inf, or of 0 where no product is above 0
    const Runner runner(best_isa(), 2);
    const Result got = run_blocks(test, {.best = 3}, runner.env);
    EXPECT_EQ(got.blocks[2], 37);
    EXPECT_EQ(got.maxima[37], kInfinity);
    EXPECT_GT(std::count(got.maxima.begin(), got.maxima.begin() + 38, kInfinity), 3);
    EXPECT_EQ(std::vector<int32_t>(got.blocks.begin() + 3, got.blocks.end()),
              (std::vector<int32_t>{0, -1, -1}));
    EXPECT_EQ(got.maxima[38], kInfinity);
    EXPECT_EQ(std::count(got.maxima.begin() + 39, got.maxima.end(), -kInfinity), 37);
}

TEST(ScoreSelectBlocks, SlicesThreadsAndBudgetsChangeNoBit) {
    const ScoreShape shape = long_row();
    ScoreCase test(shape);
    test.ends = {20000, 12345};
    std::mt19937 random(3);
    Blocks listed{.k = 512, .best = 300};
    for (int i = 0; i < 2 * 2100; ++i) listed.listed.push_back(int32_t(random() % 2500));
    for (const Blocks& blocks : {Blocks{.k = 512, .best = 300}, listed}) {
        Runner one;
        one.demand<Stage::score_select_blocks>("cpu_generic_score_select_blocks");
        one.demand<Stage::score>("cpu_generic_score");
        const Result want = run_blocks(test, blocks, Runner(best_isa(), 1, 4 << 20).env);
        const Result plain = run_blocks(test, blocks, one.env);
        EXPECT_EQ(plain.counts, want.counts);
        for (const int threads : {2, 5}) {
            const Runner runner(best_isa(), threads, 16 << 20);
            size_t most = 0, least = 1;
            run_blocks(test, blocks, runner.env, &most);
            run_blocks(test, blocks, runner.env, &least);
            EXPECT_LT(least, most);
            for (const size_t bytes : {least, (least + most) / 2, most})
                EXPECT_TRUE(run_blocks(test, blocks, Runner(best_isa(), threads, bytes).env) == want)
                    << threads << " threads, " << bytes << " bytes";
        }
    }
}

TEST(ScoreSelectBlocks, BadArgumentsAreRefusedByName) {
    ScoreShape shape;
    const ScoreCase test(shape);
    const auto refusal = [&](const Blocks& blocks, void (*change)(smla_score_select_blocks_args&)) {
        std::vector<int32_t> indices(size_t(shape.tokens * blocks.k));
        std::vector<float> maxima(size_t(shape.tokens * 25));
        const smla_score_args score = test.args();
        smla_score_select_blocks_args args{};
        args.columns = 200;
        args.block_size = blocks.size;
        args.q = score.q;
        args.w = score.w;
        args.keys = score.keys;
        args.block_table = score.block_table;
        args.request_of_token = score.request_of_token;
        args.ends = score.ends;
        args.indices = make_tensor(indices.data(), SMLA_I32, {shape.tokens, blocks.k});
        args.block_maxima = make_tensor(maxima.data(), SMLA_F32, {shape.tokens, 25});
        change(args);
        return kit::refused_field([&] { run_stage<Stage::score_select_blocks>(args, Runner().env); });
    };
    using Args = smla_score_select_blocks_args;
    EXPECT_EQ(refusal({}, [](Args&) {}), "");
    EXPECT_EQ(refusal({}, [](Args& a) { a.columns = -1; }), "args.columns");
    EXPECT_EQ(refusal({}, [](Args& a) { a.block_size = 0; }), "args.block_size");
    EXPECT_EQ(refusal({}, [](Args& a) { a.block_size = 9; }), "args.block_maxima.shape[1]");
    EXPECT_EQ(refusal({}, [](Args& a) { a.relative = 2; }), "args.relative");
    EXPECT_EQ(refusal({}, [](Args& a) { a.indices = {}; }), "args.indices");
    EXPECT_EQ(refusal({}, [](Args& a) { a.blocks = a.w; }), "args.blocks.dtype");
}

}  // namespace
}  // namespace smla::test
