// The map stage: positions of a request to rows of the cache.
#include "ops/map/map.h"
#include "kit/refused.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace smla {
namespace {

struct Mapped {
    std::vector<int32_t> rows, counts, lengths;
};

smla_map_args map_args(const std::vector<int32_t>& positions, const std::vector<int32_t>& requests,
                       const std::vector<int32_t>& table, int64_t columns, int32_t page_tokens,
                       int32_t page_rows, Mapped& out) {
    const int64_t tokens = int64_t(requests.size()), width = int64_t(positions.size()) / tokens;
    out.rows.assign(positions.size(), 12345);
    out.counts.assign(requests.size(), 12345);
    out.lengths.assign(requests.size(), 12345);
    smla_map_args args{};
    args.struct_size = sizeof args;
    args.page_tokens = page_tokens;
    args.page_rows = page_rows;
    args.positions = make_tensor(positions.data(), SMLA_I32, {tokens, width});
    args.request_of_token = make_tensor(requests.data(), SMLA_I32, {tokens});
    args.block_table = make_tensor(table.data(), SMLA_I32, {int64_t(table.size()) / columns, columns});
    args.rows = make_tensor(out.rows.data(), SMLA_I32, {tokens, width});
    args.counts = make_tensor(out.counts.data(), SMLA_I32, {tokens});
    args.lengths = make_tensor(out.lengths.data(), SMLA_I32, {tokens});
    return args;
}

TEST(Map, WorkedNumbers) {
    const std::vector<int32_t> positions{0, 63, 64, 130, -1}, requests{0}, table{7, 3};
    Mapped out;
    const smla_map_args args = map_args(positions, requests, table, 2, 64, 0, out);
    MapOp::check(args);
    MapOp::reference(args, 0, MapOp::tasks(args));
    EXPECT_EQ(out.rows, (std::vector<int32_t>{448, 511, 192, -1, -1}));
    EXPECT_EQ(out.counts, std::vector<int32_t>{3});
    EXPECT_EQ(out.lengths, std::vector<int32_t>{3});
}

TEST(Map, HolesOfEveryKind) {
    const int32_t most = std::numeric_limits<int32_t>::max();
    const std::vector<int32_t> table{-1, 4, most, most / 8};
    Mapped out;
    const std::vector<int32_t> positions{1, 5, 9, 12, 14, 15, -8, most, 1, 5, 9, 12, 14, 15, -8, most};
    const std::vector<int32_t> requests{0, 1};
    smla_map_args args = map_args(positions, requests, table, 4, 4, 8, out);
    args.block_table.shape[0] = 1;
    MapOp::check(args);
    MapOp::reference(args, 0, 2);
    // most / 8 * 8 = 2^31 - 8: rows + 0 and + 2 and + 3 fit
    EXPECT_EQ(out.rows, (std::vector<int32_t>{-1, 33, -1, most - 7, most - 5, most - 4, -1, -1,  //
                                              -1, -1, -1, -1, -1, -1, -1, -1}));
    EXPECT_EQ(out.counts, (std::vector<int32_t>{4, 0}));
    EXPECT_EQ(out.lengths, (std::vector<int32_t>{6, 0}));
}

TEST(Map, RandomAndInPlace) {
    std::mt19937 engine(3);
    const auto in = [&](int32_t low, int32_t high) {
        return std::uniform_int_distribution<int32_t>(low, high)(engine);
    };
    for (int round = 0; round < 200; ++round) {
        const int32_t page = in(1, 70), page_rows = in(0, 1) ? 0 : page + in(0, 5), columns = in(1, 6),
                      width = in(0, 9);
        std::vector<int32_t> positions, requests, table;
        for (int32_t t = in(1, 6); t > 0; --t) requests.push_back(in(-1, 4));
        for (size_t i = 0; i < requests.size() * size_t(width); ++i)
            positions.push_back(in(-3, page * columns + 9));
        for (int32_t i = 0; i < 4 * columns; ++i) table.push_back(in(-1, 3));
        std::vector<int32_t> want, counts(requests.size(), 0), lengths(requests.size(), 0);
        for (size_t i = 0; i < positions.size(); ++i) {
            const size_t t = i / size_t(width);
            int32_t row = -1;
            const bool known = requests[t] >= 0 && requests[t] < 4;
            if (known && positions[i] >= 0 && positions[i] < page * columns) {
                const int32_t block = table[size_t(requests[t] * columns + positions[i] / page)];
                if (block >= 0) row = block * (page_rows ? page_rows : page) + positions[i] % page;
            }
            counts[t] += row >= 0;
            if (row >= 0) lengths[t] = int32_t(i % size_t(width)) + 1;
            want.push_back(row);
        }
        Mapped out;
        smla_map_args args = map_args(positions, requests, table, columns, page, page_rows, out);
        MapOp::check(args);
        MapOp::reference(args, 0, MapOp::tasks(args));
        ASSERT_EQ(out.rows, want);
        ASSERT_EQ(out.counts, counts);
        ASSERT_EQ(out.lengths, lengths);
        std::vector<int32_t> limits(requests.size(), width / 2);
        args.limits = make_tensor(limits.data(), SMLA_I32, {int64_t(limits.size())});
        MapOp::reference(args, 0, MapOp::tasks(args));
        for (size_t i = 0; i < want.size(); ++i) {
            const bool listed = int32_t(i % size_t(width)) < width / 2;
            ASSERT_EQ(out.rows[i], listed ? want[i] : -1);
        }
        for (const int32_t length : out.lengths) ASSERT_LE(length, width / 2);
        args.limits = {};
        args.rows = args.positions;
        args.counts = {};
        MapOp::check(args);
        MapOp::reference(args, 0, MapOp::tasks(args));
        ASSERT_EQ(positions, want);
    }
}

// Pools of 3: tokens of each, then those that a token sees behind its last whole pool.
TEST(Map, Pools) {
    const std::vector<int32_t> positions{0, 2, -1, 1, -1, -1, -1, -1, -1, 0, 1, 2}, requests{0, 0, 0, 0},
        table{5, 1, 3};
    const std::vector<int32_t> visible{11, 8, 2, 9};
    Mapped out;
    smla_map_args args = map_args(positions, requests, table, 3, 4, 0, out);
    args.pool_tokens = 3;
    args.visible_tokens = make_tensor(visible.data(), SMLA_I32, {4});
    out.rows.assign(4 * 11, 12345);
    args.rows = make_tensor(out.rows.data(), SMLA_I32, {4, 11});
    MapOp::check(args);
    MapOp::reference(args, 0, 4);
    EXPECT_EQ(out.rows, (std::vector<int32_t>{20, 21, 22, 6,  7,  12, 13, 14, -1, -1, -1,  // 0-2, 6-8; 9, 10
                                              23, 4,  5,  6,  7,  -1, -1, -1, -1, -1, -1,  // 3-5; 6, 7
                                              20, 21, -1, -1, -1, -1, -1, -1, -1, -1, -1,  // 0, 1
                                              20, 21, 22, 23, 4,  5,  6,  7,  12, -1, -1}));  // 0-8
    EXPECT_EQ(out.lengths, (std::vector<int32_t>{8, 5, 2, 9}));
    const std::vector<int32_t> limits{1, 3, 0, 2};
    args.limits = make_tensor(limits.data(), SMLA_I32, {4});
    MapOp::reference(args, 0, 4);
    EXPECT_EQ(out.lengths, (std::vector<int32_t>{5, 5, 2, 6}));
    args.rows.shape[1] = 9;
    EXPECT_THROW(MapOp::check(args), Error);
    args.visible_tokens = {};
    MapOp::check(args);
}

TEST(Map, Refusals) {
    const auto refused = [](const std::function<void(smla_map_args&)>& spoil) -> std::string {
        const std::vector<int32_t> positions(6), requests(2), table(6);
        Mapped out;
        smla_map_args args = map_args(positions, requests, table, 3, 4, 0, out);
        spoil(args);
        return kit::refused_field([&] { MapOp::check(args); });
    };
    using A = smla_map_args;
    EXPECT_EQ(refused([](A&) {}), "");
    EXPECT_EQ(refused([](A& a) { a.page_tokens = 0; }), "args.page_tokens");
    EXPECT_EQ(refused([](A& a) { a.page_rows = 3; }), "args.page_rows");
    EXPECT_EQ(refused([](A& a) { a.pool_tokens = -1; }), "args.pool_tokens");
    EXPECT_EQ(refused([](A& a) { a.pool_tokens = 2; }), "args.rows.shape[1]");
    EXPECT_EQ(refused([](A& a) { a.pool_tokens = 2, a.rows.shape[1] = a.rows.stride_elems[0] = 6; }), "");
    EXPECT_EQ(refused([](A& a) { a.visible_tokens = a.request_of_token; }), "");
    EXPECT_EQ(refused([](A& a) { a.positions.dtype = SMLA_I64; }), "args.positions.dtype");
    EXPECT_EQ(refused([](A& a) { a.request_of_token.shape[0] = 1; }), "args.request_of_token.shape");
    EXPECT_EQ(refused([](A& a) { a.block_table = {}; }), "args.block_table");
    EXPECT_EQ(refused([](A& a) { a.rows.shape[1] = 2; }), "args.rows.shape[1]");
    EXPECT_EQ(refused([](A& a) { a.counts.shape[0] = 3; }), "args.counts.shape");
    EXPECT_EQ(refused([](A& a) { a.rows.data = a.positions.data; }), "");
}

}  // namespace
}  // namespace smla
