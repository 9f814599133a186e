// The integer operations against worked numbers and plain loops.
#include "support.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace smla::test {
namespace {

TEST(RequestRows, WorkedNumbers) {
    const Ints positions(1, 5, {0, 63, 64, 130, -1}), request({0}), table(1, 2, {7, 3});
    Ints rows(1, 5), counts(1, 1);
    smla_request_rows_args args{};
    args.struct_size = sizeof args;
    args.page_tokens = 64;
    args.positions = positions.matrix();
    args.request_of_token = request.list();
    args.block_table = table.matrix();
    args.rows = rows.matrix();
    args.counts = counts.list();
    ASSERT_EQ(smla_request_rows(&args), SMLA_OK) << smla_last_error();
    EXPECT_EQ(rows.values(), (std::vector<int32_t>{448, 511, 192, -1, -1}));
    EXPECT_EQ(counts.values(), std::vector<int32_t>{3});
}

// All variants at once, column by column from their definitions.
TEST(RequestRows, EveryVariant) {
    Random random(11);
    for (int round = 0; round < 400; ++round) {
        const int32_t page = random.in(1, 70), columns = random.in(1, 5), requests = random.in(1, 4);
        const int32_t page_rows = random.in(0, 1) ? 0 : page + random.in(0, 9);
        const int32_t tokens = random.in(1, 6), width = random.in(0, 9);
        const int32_t ranks = random.in(0, 4), interleave = random.in(0, 3);
        const int32_t rank = ranks > 1 ? random.in(0, ranks - 1) : 0;
        Ints table(requests, columns), positions(tokens, width), request(tokens, 1), workspace(tokens, 1),
            starts(2, 1), rows(tokens, width), counts(tokens, 1);
        for (int32_t r = 0; r < requests; ++r)
            for (int32_t c = 0; c < columns; ++c) table.at(r, c) = random.in(-1, 9);
        std::vector<uint8_t> valid(size_t(tokens), 1);
        starts.at(0) = random.in(0, 1000);
        starts.at(1) = random.in(0, 1000);
        const int32_t most = std::max(ranks, 1) * page * columns + 5;
        for (int32_t t = 0; t < tokens; ++t) {
            request.at(t) = random.in(-1, requests);
            workspace.at(t) = random.in(-1, 1);
            valid[size_t(t)] = uint8_t(random.in(0, 3) > 0);
            for (int32_t j = 0; j < width; ++j) positions.at(t, j) = random.in(-3, most);
        }
        const bool compact = random.in(0, 1), use_workspace = random.in(0, 1), use_valid = random.in(0, 1);
        smla_request_rows_args args{};
        args.struct_size = sizeof args;
        args.page_tokens = page;
        args.page_rows = page_rows;
        args.compact = compact;
        args.ranks = ranks;
        args.rank = rank;
        args.interleave = interleave;
        args.positions = positions.matrix();
        args.request_of_token = request.list();
        args.block_table = table.matrix();
        if (use_valid) args.is_valid = make_tensor(valid.data(), SMLA_U8, {tokens});
        if (use_workspace) {
            args.workspace_of_token = workspace.list();
            args.workspace_starts = starts.list();
        }
        args.rows = rows.matrix();
        args.counts = counts.list();
        ASSERT_EQ(smla_request_rows(&args), SMLA_OK) << smla_last_error();
        ASSERT_TRUE(rows.canaries() && counts.canaries());
        const int32_t n = std::max(ranks, 1), chunk = std::max(interleave, 1);
        for (int32_t t = 0; t < tokens; ++t) {
            std::vector<int32_t> want;
            for (int32_t j = 0; j < width; ++j) {
                const int32_t p = positions.at(t, j);
                int32_t row = -1;
                if (p >= 0 && (p / chunk) % n == rank) {
                    const int32_t local = p / (n * chunk) * chunk + p % chunk;
                    if (use_workspace && workspace.at(t) >= 0)
                        row = local / page < columns ? starts.at(workspace.at(t)) + local : -1;
                    else row = plain_row(table, request.at(t), local, page, page_rows ? page_rows : page);
                }
                if (!compact || row >= 0) want.push_back(row);
            }
            const auto found = std::count_if(want.begin(), want.end(), [](int32_t row) { return row >= 0; });
            want.resize(size_t(width), -1);
            ASSERT_EQ(rows.row(t), want);
            ASSERT_EQ(counts.at(t), use_valid && !valid[size_t(t)] ? 0 : found);
        }
    }
}

// Every position is kept by one rank, whose local numbers count up without gaps.
TEST(RequestRows, RanksShareAllPositions) {
    const int32_t ranks = 3, interleave = 2, tokens = 60;
    std::vector<int32_t> seen(size_t(tokens), 0);
    for (int32_t rank = 0; rank < ranks; ++rank) {
        Ints positions(1, tokens), request({0}), table(1, tokens), rows(1, tokens);
        for (int32_t p = 0; p < tokens; ++p) positions.at(0, p) = table.at(0, p) = p;
        smla_request_rows_args args{};
        args.struct_size = sizeof args;
        args.page_tokens = 1;
        args.compact = 1;
        args.ranks = ranks;
        args.rank = rank;
        args.interleave = interleave;
        args.positions = positions.matrix();
        args.request_of_token = request.list();
        args.block_table = table.matrix();
        args.rows = rows.matrix();
        ASSERT_EQ(smla_request_rows(&args), SMLA_OK) << smla_last_error();
        for (int32_t i = 0; i < tokens; ++i) EXPECT_EQ(rows.at(0, i), i < tokens / ranks ? i : -1);
        for (int32_t p = 0; p < tokens; ++p) seen[size_t(p)] += p / interleave % ranks == rank;
    }
    EXPECT_EQ(seen, std::vector<int32_t>(size_t(tokens), 1));
}

TEST(RequestRows, Refusals) {
    const auto field = [](auto spoil) {
        Ints positions(2, 3, 0), request(2, 1, 0), table(1, 2, 0), rows(2, 3), counts(2, 1), starts(1, 1, 0);
        smla_request_rows_args args{};
        args.struct_size = sizeof args;
        args.page_tokens = 4;
        args.positions = positions.matrix();
        args.request_of_token = request.list();
        args.block_table = table.matrix();
        args.rows = rows.matrix();
        args.counts = counts.list();
        spoil(args);
        return refused_field(smla_request_rows(&args));
    };
    using A = smla_request_rows_args;
    EXPECT_EQ(field([](A&) {}), "");
    EXPECT_EQ(field([](A& a) { a.page_tokens = 0; }), "args.page_tokens");
    EXPECT_EQ(field([](A& a) { a.page_rows = 3; }), "args.page_rows");
    EXPECT_EQ(field([](A& a) { a.compact = 2; }), "args.compact");
    EXPECT_EQ(field([](A& a) { a.ranks = -1; }), "args.ranks");
    EXPECT_EQ(field([](A& a) { a.rank = 1; }), "args.rank");
    EXPECT_EQ(field([](A& a) { a.interleave = -1; }), "args.interleave");
    EXPECT_EQ(field([](A& a) { a.reserved = 1; }), "args.reserved");
    EXPECT_EQ(field([](A& a) { a.positions.dtype = SMLA_I64; }), "args.positions.dtype");
    EXPECT_EQ(field([](A& a) { a.request_of_token.shape[0] = 1; }), "args.request_of_token.shape");
    EXPECT_EQ(field([](A& a) { a.workspace_of_token = a.request_of_token; }), "args.workspace_starts");
    EXPECT_EQ(field([](A& a) {
                  a.workspace_of_token = a.workspace_starts = a.request_of_token;
                  a.workspace_starts.shape[0] = 0;
              }),
              "args.workspace_of_token[0]");
    EXPECT_EQ(field([](A& a) { a.rows.data = a.positions.data; }), "args.rows.data");
    EXPECT_EQ(field([](A& a) { a.counts.shape[0] = 3; }), "args.counts.shape");
    EXPECT_EQ(refused_field(smla_request_rows(nullptr)), "args");
}

TEST(RequestRows, ARefusalWritesNothing) {
    const Ints positions(3, 4, 0), request(3, 1, 0), table(1, 2, 0), workspace({-1, 0, 2}), starts({5, 6});
    Ints rows(3, 4), counts(3, 1);
    smla_request_rows_args args{};
    args.struct_size = sizeof args;
    args.page_tokens = 4;
    args.positions = positions.matrix();
    args.request_of_token = request.list();
    args.block_table = table.matrix();
    args.workspace_of_token = workspace.list();
    args.workspace_starts = starts.list();
    args.rows = rows.matrix();
    args.counts = counts.list();
    EXPECT_EQ(refused_field(smla_request_rows(&args)), "args.workspace_of_token[2]");
    EXPECT_EQ(rows.values(), std::vector<int32_t>(12, kGarbage));
    EXPECT_EQ(counts.values(), std::vector<int32_t>(3, kGarbage));
}

TEST(SplitContext, PositionsGoToOneSide) {
    Random random(3);
    Ints positions(7, 40), context(7, 1), below(7, 40), behind(7, 40);
    for (int64_t t = 0; t < 7; ++t) {
        context.at(t) = random.in(0, 30);
        for (int64_t j = 0; j < 40; ++j) positions.at(t, j) = random.in(-2, 40);
        positions.at(t, 0) = context.at(t);
        positions.at(t, 1) = context.at(t) - 1;
    }
    smla_split_context_args args{};
    args.struct_size = sizeof args;
    args.positions = positions.matrix();
    args.context_lens = context.list();
    args.context_rows = below.matrix();
    args.new_rows = behind.matrix();
    ASSERT_EQ(smla_split_context(&args), SMLA_OK) << smla_last_error();
    for (int64_t t = 0; t < 7; ++t)
        for (int64_t j = 0; j < 40; ++j) {
            const int32_t p = positions.at(t, j), c = context.at(t);
            EXPECT_EQ(below.at(t, j), p < 0 || p >= c ? -1 : p);
            EXPECT_EQ(behind.at(t, j), p < 0 || p < c ? -1 : p - c);
        }
    EXPECT_TRUE(below.canaries() && behind.canaries());
    context.at(4) = -1;
    const std::vector<int32_t> before = below.values();
    positions.at(0, 0) = -5;
    EXPECT_EQ(refused_field(smla_split_context(&args)), "args.context_lens[4]");
    EXPECT_EQ(below.values(), before);
}

TEST(Lse, FromLog2) {
    const float in[] = {0.f, 1.f, -3.5f, 1e30f, -INFINITY, INFINITY};
    float out[6];
    const smla_tensor from = make_tensor(in, SMLA_F32, {2, 3}), to = make_tensor(out, SMLA_F32, {2, 3});
    ASSERT_EQ(smla_lse_from_log2(&from, &to), SMLA_OK) << smla_last_error();
    for (int i = 0; i < 4; ++i)  // one rounding of ln 2 and one of the product
        EXPECT_NEAR(out[i], double(in[i]) * std::log(2.0), std::abs(double(in[i])) * 1.5e-7);
    EXPECT_EQ(out[4], -INFINITY);
    EXPECT_EQ(out[5], INFINITY);
    EXPECT_EQ(refused_field(smla_lse_from_log2(nullptr, &to)), "log2_lse");
}

struct Chunk {
    std::vector<int32_t> starts, lengths, gathered;
    int64_t tokens() const { return starts.back() - starts.front(); }
};

TEST(CombinedRows, WorkedNumbers) {
    // ratio 4, position 4, topk 512: one entry and five window tokens, in a row of 640
    const Ints selected(1, 512, [] {
        std::vector<int32_t> values(512, -1);
        values[0] = 0;
        return values;
    }());
    const Ints starts({10, 11}), lengths({5}), gathered({5});
    Ints rows(1, 640), lens(1, 1);
    smla_combined_rows_args args{};
    args.struct_size = sizeof args;
    args.window = 128;
    args.ratio = 4;
    args.topk = 512;
    args.stride = 6;
    args.entries = 1;
    args.selected = selected.matrix();
    args.query_start_loc = starts.list();
    args.seq_lens = lengths.list();
    args.gather_lens = gathered.list();
    args.rows = rows.matrix();
    args.lens = lens.list();
    ASSERT_EQ(smla_combined_rows(&args), SMLA_OK) << smla_last_error();
    EXPECT_EQ(lens.values(), std::vector<int32_t>{6});
    for (int64_t j = 0; j < 640; ++j) EXPECT_EQ(rows.at(0, j), j < 6 ? j : -1);
}

TEST(CombinedRows, AgainstPlainLoops) {
    Random random(5);
    for (int round = 0; round < 200; ++round) {
        const int32_t ratio = std::vector<int32_t>{0, 1, 2, 4, 128}[size_t(random.in(0, 4))];
        const int32_t topk = ratio ? random.in(0, 12) : 0, window = random.in(1, 9);
        Chunk chunk;
        chunk.starts = {random.in(0, 50)};
        int32_t longest_gather = 0, entries = 0;
        for (int32_t b = random.in(1, 4); b > 0; --b) {
            const int32_t query = random.in(0, 5), prefix = random.in(0, 300);
            chunk.starts.push_back(chunk.starts.back() + query);
            chunk.lengths.push_back(prefix + query);
            chunk.gathered.push_back(query + std::min(prefix, window - 1));
            longest_gather = std::max(longest_gather, chunk.gathered.back());
            entries = std::max(entries, ratio ? chunk.lengths.back() / ratio : 0);
        }
        Ints selected(chunk.tokens(), 13), rows(chunk.tokens(), topk + window + random.in(0, 3)),
            lens(chunk.tokens(), 1);
        for (int64_t t = 0; t < chunk.tokens(); ++t)
            for (int64_t j = 0; j < 13; ++j) selected.at(t, j) = random.in(-1, 40);
        const Ints starts(chunk.starts), lengths(chunk.lengths), gathered(chunk.gathered);
        smla_combined_rows_args args{};
        args.struct_size = sizeof args;
        args.window = window;
        args.ratio = ratio;
        args.topk = topk;
        args.entries = entries;
        args.stride = entries + longest_gather;
        args.selected = selected.matrix();
        args.query_start_loc = starts.list();
        args.seq_lens = lengths.list();
        args.gather_lens = gathered.list();
        args.rows = rows.matrix();
        args.lens = lens.list();
        ASSERT_EQ(smla_combined_rows(&args), SMLA_OK) << smla_last_error();
        int64_t t = 0;
        for (size_t b = 0; b < chunk.lengths.size(); ++b)
            for (int32_t i = chunk.starts[b]; i < chunk.starts[b + 1]; ++i, ++t) {
                const int32_t position = chunk.lengths[b] - (chunk.starts[b + 1] - i);
                std::vector<int32_t> want;
                for (int32_t c = 0; ratio && c < std::min((position + 1) / ratio, topk); ++c) {
                    const int32_t entry = selected.at(t, c);
                    const bool gathered_here = entry >= 0 && entry < entries;
                    want.push_back(gathered_here ? int32_t(b) * args.stride + entry : -1);
                }
                for (int32_t p = std::max(0, position - window + 1); p <= position; ++p)
                    want.push_back(int32_t(b) * args.stride + entries +
                                   (p - (chunk.lengths[b] - chunk.gathered[b])));
                ASSERT_EQ(lens.at(t), int32_t(want.size()));
                want.resize(size_t(rows.columns()), -1);
                ASSERT_EQ(rows.row(t), want);
            }
        ASSERT_TRUE(rows.canaries() && lens.canaries());
    }
}

TEST(CombinedRows, Refusals) {
    const auto field = [](auto spoil) {
        Ints selected(3, 4, 0), starts({0, 1, 3}), lengths({5, 9}), gathered({3, 4}), rows(3, 8), lens(3, 1);
        smla_combined_rows_args args{};
        args.struct_size = sizeof args;
        args.window = 3;
        args.ratio = 4;
        args.topk = 4;
        args.entries = 2;
        args.stride = 6;
        args.selected = selected.matrix();
        args.query_start_loc = starts.list();
        args.seq_lens = lengths.list();
        args.gather_lens = gathered.list();
        args.rows = rows.matrix();
        args.lens = lens.list();
        spoil(args, starts, lengths, gathered);
        return refused_field(smla_combined_rows(&args));
    };
    using A = smla_combined_rows_args;
    EXPECT_EQ(field([](A&, Ints&, Ints&, Ints&) {}), "");
    EXPECT_EQ(field([](A& a, Ints&, Ints&, Ints&) { a.window = 0; }), "args.window");
    EXPECT_EQ(field([](A& a, Ints&, Ints&, Ints&) { a.ratio = 0; }), "args.topk");
    EXPECT_EQ(field([](A& a, Ints&, Ints&, Ints&) { a.stride = 1; }), "args.stride");
    EXPECT_EQ(field([](A& a, Ints&, Ints&, Ints&) { a.topk = 5; }), "args.selected.shape[1]");
    EXPECT_EQ(field([](A& a, Ints&, Ints&, Ints&) { a.rows.shape[1] = 6; }), "args.rows.shape[1]");
    EXPECT_EQ(field([](A&, Ints& s, Ints&, Ints&) { s.at(1) = 4; }), "args.query_start_loc[2]");
    EXPECT_EQ(field([](A&, Ints&, Ints& l, Ints&) { l.at(1) = 1; }), "args.seq_lens[1]");
    EXPECT_EQ(field([](A&, Ints&, Ints&, Ints& g) { g.at(0) = -1; }), "args.gather_lens[0]");
    EXPECT_EQ(field([](A&, Ints&, Ints&, Ints& g) { g.at(1) = 5; }), "args.gather_lens[1]");
}

}  // namespace
}  // namespace smla::test
