// Bugs of the field that show only in gigabytes: offsets past 2^31 and 2^32, long chunks, long contexts.
// Heads and lists are as small as the bug allows; no test takes more than 8 GiB.
#include "kit/mapped.h"

#include <smla/smla.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace {

using smla::Context;
using smla::tensor;

struct Memory : smla::kit::SparseMemory {
    using SparseMemory::SparseMemory;
    uint16_t* bf16() const { return static_cast<uint16_t*>(data()); }
};

uint16_t to_bf16(float value) { return uint16_t(std::bit_cast<uint32_t>(value) >> 16); }  // cuts off
float to_float(uint16_t bf16) { return std::bit_cast<float>(uint32_t(bf16) << 16); }

void fill_random(uint16_t* out, int64_t count, uint64_t seed) {
    for (int64_t i = 0; i < count; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out[i] = to_bf16(float(int32_t(seed >> 33)) * 0x1p-30f - 1.f);
    }
}

// A packed cache of one page run and random values in it.
struct Cache {
    Cache(const Context& context, smla_format format, int32_t width, int64_t pages, int32_t page_tokens)
        : view(smla::cache(nullptr, format, pages, page_tokens)), width(width) {
        bytes.resize(smla::cache_bytes(view));
        view.data = bytes.data();
        std::vector<uint16_t> values(size_t(page_tokens * width));
        std::vector<int64_t> slots(size_t(page_tokens), 0);
        for (int64_t p = 0; p < pages; ++p) {
            fill_random(values.data(), int64_t(values.size()), uint64_t(p) + 1);
            for (int32_t i = 0; i < page_tokens; ++i) slots[size_t(i)] = p * page_tokens + i;
            write(context, values.data(), slots);
        }
    }
    void write(const Context& context, const uint16_t* values, const std::vector<int64_t>& slots) const {
        context.write_kv({.head = tensor(values, SMLA_BF16, {int64_t(slots.size()), width}),
                          .slots = tensor(slots),
                          .cache = view});
    }

    std::vector<uint8_t> bytes;
    smla_cache view;
    int64_t width;
};

smla_attend_args attend_args(const smla_cache& cache, smla_tensor q, smla_tensor rows, smla_tensor out) {
    smla_attend_args args{};
    args.softmax_scale = 0.0625;
    args.q = q;
    args.primary.cache = cache;
    args.primary.rows = rows;
    args.out = out;
    return args;
}

// A million pages of 32 rows of 512 bytes: 16 GiB of addresses, of which only the listed pages exist.
TEST(Huge, T20_AMillionPages) {
    constexpr int64_t kPages = 1 << 20, kPageTokens = 32, kHeads = 2;
    const Context context;
    const Memory memory(size_t(kPages * kPageTokens * 512));
    if (!memory.taken()) GTEST_SKIP() << "16 GiB of addresses are not to be had";
    smla_cache cache = smla::cache(memory.data(), SMLA_FP8_512, kPages, kPageTokens);
    cache.scale = 0.25f;
    // both sides of 2^31 and 2^32 bytes, and the last row
    const std::vector<int64_t> slots = {
        0, (1 << 22) - 1, 1 << 22, (1 << 23) - 1, (1 << 23) + 5, 20000001, kPages * kPageTokens - 1};
    std::vector<uint16_t> values(slots.size() * 512), q(kHeads * 512), out(kHeads * 512);
    fill_random(values.data(), int64_t(values.size()), 20);
    fill_random(q.data(), int64_t(q.size()), 21);
    context.write_kv({.head = tensor(values.data(), SMLA_BF16, {int64_t(slots.size()), 512}),
                      .slots = tensor(slots),
                      .cache = cache});
    for (size_t j = 0; j < slots.size(); ++j) {  // a list of one row gives that row back
        const std::vector<int32_t> rows = {int32_t(slots[j])};
        context.attend(attend_args(cache, tensor(q.data(), SMLA_BF16, {1, kHeads, 512}), tensor(rows, {1, 1}),
                                   tensor(out.data(), SMLA_BF16, {1, kHeads, 512})));
        for (size_t i = 0; i < out.size(); ++i)  // e4m3 keeps 4 bits of a value
            ASSERT_NEAR(to_float(out[i]), to_float(values[j * 512 + i % 512]), 0.0645)
                << "row " << slots[j] << " value " << i;
    }
}

// Queries and outputs of more than 2^31 elements. Most tokens list nothing: their q does not exist.
TEST(Huge, T21_QueriesOfMoreThanTwoToTheThirtyOneElements) {
    constexpr int64_t kTokens = 32769, kHeads = 128, kQuery = kHeads * 576, kOut = kHeads * 512;
    const Context context;
    const Cache cache(context, SMLA_FP8_656, 576, 1, 64);
    const Memory q(size_t(kTokens * kQuery) * 2), out(size_t(kTokens * kOut) * 2);
    if (!q.taken() || !out.taken()) GTEST_SKIP() << "9 GiB of addresses are not to be had";
    std::vector<int32_t> rows(kTokens * 2), lengths(kTokens, 0);
    for (int64_t t = 0; t < kTokens; ++t) rows[size_t(2 * t)] = int32_t(t % 64), rows[size_t(2 * t + 1)] = 7;
    const std::vector<int64_t> asking = {0, 14563, 14564, 29126, 29127, 32767, kTokens - 1};
    for (const int64_t t : asking) {
        lengths[size_t(t)] = 2;
        fill_random(q.bf16() + t * kQuery, kQuery, uint64_t(t) + 1);
    }
    std::memset(out.data(), 0xff, size_t(kTokens * kOut) * 2);
    smla_attend_args args =
        attend_args(cache.view, tensor(q.data(), SMLA_BF16, {kTokens, kHeads, 576}),
                    tensor(rows, {kTokens, 2}), tensor(out.data(), SMLA_BF16, {kTokens, kHeads, 512}));
    args.primary.lengths = tensor(lengths);
    context.attend(args);
    std::vector<uint16_t> alone(kOut);
    for (const int64_t t : asking) {
        context.attend(attend_args(cache.view, tensor(q.bf16() + t * kQuery, SMLA_BF16, {1, kHeads, 576}),
                                   tensor(rows.data() + 2 * t, {1, 2}),
                                   tensor(alone.data(), SMLA_BF16, {1, kHeads, 512})));
        EXPECT_EQ(std::memcmp(alone.data(), out.bf16() + t * kOut, kOut * 2), 0) << "token " << t;
        EXPECT_TRUE(std::any_of(alone.begin(), alone.end(), [](uint16_t x) { return x != 0; }));
    }
    int64_t wrong = 0;
    for (int64_t t = 0; t < kTokens; ++t)
        if (lengths[size_t(t)] == 0)
            for (int64_t i = 0; i < kOut; ++i) wrong += out.bf16()[t * kOut + i] != 0;
    EXPECT_EQ(wrong, 0) << "values of tokens without rows that are not 0";
}

// One call of 32768 tokens, 64 heads, in a budget of 8 MiB: the same bits as in pieces.
TEST(Huge, T23_ALongChunkWithinItsBudget) {
    constexpr int64_t kTokens = 32768, kHeads = 64, kRows = 4, kPiece = 1000;
    constexpr size_t kBudget = size_t(8) << 20;
    const Context context;
    const Cache cache(context, SMLA_FP8_584, 512, 8, 64);
    const Memory q(size_t(kTokens * kHeads * 512) * 2), out(size_t(kTokens * kHeads * 512) * 2);
    if (!q.taken() || !out.taken()) GTEST_SKIP() << "4 GiB of addresses are not to be had";
    fill_random(q.bf16(), kTokens * kHeads * 512, 23);
    std::memset(out.data(), 0xff, size_t(kTokens * kHeads * 512) * 2);
    std::mt19937 random(23);
    std::vector<int32_t> rows(kTokens * kRows);
    for (int32_t& row : rows) row = int32_t(random() % 512);
    const auto piece = [&](int64_t begin, int64_t count, uint16_t* to) {
        return attend_args(
            cache.view, tensor(q.bf16() + begin * kHeads * 512, SMLA_BF16, {count, kHeads, 512}),
            tensor(rows.data() + begin * kRows, {count, kRows}), tensor(to, SMLA_BF16, {count, kHeads, 512}));
    };
    smla::Workspace workspace = context.workspace(kBudget);
    context.attend(piece(0, kTokens, out.bf16()), workspace);
    EXPECT_LE(workspace.bytes(), kBudget);
    std::vector<uint16_t> want(size_t(kPiece * kHeads * 512));
    for (int64_t t = 0; t < kTokens; t += kPiece) {
        const int64_t count = std::min(kPiece, kTokens - t);
        context.attend(piece(t, count, want.data()));
        ASSERT_EQ(std::memcmp(want.data(), out.bf16() + t * kHeads * 512, size_t(count * kHeads * 512) * 2),
                  0)
            << "tokens from " << t;
    }
}

// Chunks of 8192 to 65536 tokens: every token as it comes out alone.
TEST(Huge, T24_ChunksOfEveryLength) {
    constexpr int64_t kMost = 65536, kHeads = 2, kRows = 2;
    const Context context;
    const Cache cache(context, SMLA_FP8_656, 576, 16, 64);
    std::vector<uint16_t> q(kMost * kHeads * 576), out(kMost * kHeads * 512), want(out.size());
    fill_random(q.data(), int64_t(q.size()), 24);
    std::vector<int32_t> rows(kMost * kRows);
    for (int64_t i = 0; i < kMost * kRows; ++i) rows[size_t(i)] = int32_t(i * 389 % 1024);
    const auto piece = [&](int64_t begin, int64_t count, uint16_t* to) {
        return attend_args(
            cache.view, tensor(q.data() + begin * kHeads * 576, SMLA_BF16, {count, kHeads, 576}),
            tensor(rows.data() + begin * kRows, {count, kRows}), tensor(to, SMLA_BF16, {count, kHeads, 512}));
    };
    for (int64_t t = 0; t < kMost; ++t) context.attend(piece(t, 1, want.data() + t * kHeads * 512));
    for (const int64_t tokens : {8192, 16384, 32768, 65536}) {
        std::fill(out.begin(), out.end(), uint16_t(0xffff));
        context.attend(piece(0, tokens, out.data()));
        EXPECT_EQ(std::memcmp(out.data(), want.data(), size_t(tokens * kHeads * 512) * 2), 0) << tokens;
        EXPECT_TRUE(std::all_of(out.begin() + tokens * kHeads * 512, out.end(),
                                [](uint16_t x) { return x == 0xffff; }))
            << "written past " << tokens << " tokens";
    }
}

// A context of `tokens` rows in both caches; the needle is the only key that the indexer's query and the
// attention's query point at.
void find_needle(const Context& context, int64_t tokens, int64_t needle) {
    constexpr int32_t kPageTokens = 64, kTopk = 2048;
    const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
    smla_cache index = smla::cache(nullptr, SMLA_INDEX_FP8_132, pages, kPageTokens);
    std::vector<uint8_t> index_bytes(smla::cache_bytes(index));
    index.data = index_bytes.data();
    const Cache kv(context, SMLA_FP8_656, 576, pages, kPageTokens);

    std::vector<uint16_t> keys(kPageTokens * 128), query(128), latent_q(576), value(576);
    std::vector<int64_t> slots(kPageTokens);
    for (int64_t p = 0; p < pages; ++p) {
        fill_random(keys.data(), int64_t(keys.size()), uint64_t(p) + 1000);
        for (int64_t i = 0; i < kPageTokens; ++i) slots[size_t(i)] = p * kPageTokens + i;
        context.write_index({.head = tensor(keys.data(), SMLA_BF16, {kPageTokens, 128}),
                             .slots = tensor(slots),
                             .cache = index});
    }
    fill_random(query.data(), 128, 45);
    fill_random(latent_q.data(), 576, 46);
    for (size_t d = 0; d < 576; ++d) value[d] = to_bf16(4 * to_float(latent_q[d]));
    const std::vector<int64_t> at = {needle};
    context.write_index(
        {.head = tensor(query.data(), SMLA_BF16, {1, 128}), .slots = tensor(at), .cache = index});
    kv.write(context, value.data(), at);

    std::vector<int32_t> table(static_cast<size_t>(pages)), request = {0}, ends = {int32_t(tokens)};
    for (int64_t p = 0; p < pages; ++p) table[size_t(p)] = int32_t(p);
    std::vector<int32_t> picks(kTopk), rows(kTopk);
    const std::vector<float> weight = {1.f};
    smla_score_select_args search{};
    search.columns = int32_t(tokens);
    search.score.q = tensor(query.data(), SMLA_BF16, {1, 1, 128});
    search.score.w = tensor(weight, {1, 1});
    search.score.keys = index;
    search.score.block_table = tensor(table, {1, pages});
    search.score.request_of_token = tensor(request);
    search.score.ends = tensor(ends);
    search.select.indices = tensor(picks, {1, kTopk});
    context.score_select(search);
    EXPECT_TRUE(std::binary_search(picks.begin(), picks.end(), int32_t(needle)));

    context.map({.page_tokens = kPageTokens,
                 .positions = tensor(picks, {1, kTopk}),
                 .request_of_token = tensor(request),
                 .block_table = tensor(table, {1, pages}),
                 .rows = tensor(rows, {1, kTopk})});
    std::vector<float> out(512);
    smla_attend_args args = attend_args(kv.view, tensor(latent_q.data(), SMLA_BF16, {1, 1, 576}),
                                        tensor(rows, {1, kTopk}), tensor(out, {1, 1, 512}));
    args.softmax_scale = 1;  // the needle's logit is hundreds above the others': it is the answer
    context.attend(args);
    for (size_t d = 0; d < 512; ++d)
        ASSERT_NEAR(out[d], to_float(value[d]), 0.26) << "of e4m3 values up to 4; value " << d;
}

TEST(Huge, T45_ANeedleAtEveryDepth) {  // vllm#46856: corrupt only between 60 k and 137 k
    const Context context;
    for (const int64_t depth : {8192, 61440, 140288, 358400, 1048576})
        for (const int64_t needle : {depth - 1, depth * 5 / 7}) {
            SCOPED_TRACE(testing::Message() << "needle at " << needle << " of " << depth);
            find_needle(context, depth, needle);
        }
    find_needle(context, 1048576, 0);
}

}  // namespace
