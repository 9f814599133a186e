// compress spreads the channels of a token over threads where fewer tokens than threads close a group.
#include "engines/context.h"
#include "engines/run.h"
#include "kit/context_args.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace smla {
namespace {

constexpr int64_t kPages = 72, kPageTokens = 4;

// Tokens at given positions of one request, every one with a slot. Positions may not reach kPages pages.
struct Compression {
    std::vector<float> state, cache, entries;
    std::vector<int32_t> table, requests, positions, slots;
    std::vector<double> frequencies{1, 0.5, 0.25};
    smla_compress_args args{};

    Compression(int32_t ratio, int32_t width, std::vector<int32_t> at)
        : table(size_t(kPages)), requests(at.size(), 0), positions(std::move(at)), slots(positions.size()) {
        const int32_t coff = ratio == 4 ? 2 : 1, state_width = 2 * coff * width;
        std::mt19937 random(7);
        std::normal_distribution<float> values;
        state.resize(size_t(kPages * kPageTokens * state_width));
        for (float& value : state) value = values(random);
        cache.assign(positions.size() * size_t(width), NAN);
        entries = cache;
        for (size_t i = 0; i < table.size(); ++i) table[i] = int32_t(i * 5 % kPages);
        std::iota(slots.begin(), slots.end(), 0);
        const int64_t tokens = int64_t(positions.size());
        args.struct_size = sizeof args;
        args.ratio = ratio;
        args.state.data = state.data();
        args.state.format = SMLA_STATE_F32;
        args.state.width = state_width;
        args.state.page_tokens = kPageTokens;
        args.state.pages = kPages;
        args.cache.data = cache.data();
        args.cache.format = SMLA_ROW_F32;
        args.cache.width = width;
        args.cache.page_tokens = 1;
        args.cache.pages = int32_t(tokens);
        args.state_table = make_tensor(table.data(), SMLA_I32, {1, kPages});
        args.request_of_token = make_tensor(requests.data(), SMLA_I32, {tokens});
        args.positions = make_tensor(positions.data(), SMLA_I32, {tokens});
        args.slots = make_tensor(slots.data(), SMLA_I32, {tokens});
        args.frequencies = make_tensor(frequencies.data(), SMLA_F64, {3});
        args.entries = make_tensor(entries.data(), SMLA_F32, {tokens, width});
    }
    void run(int32_t threads, bool batch_invariant, smla_engine engine = SMLA_ENGINE_CPU) {
        std::fill(cache.begin(), cache.end(), NAN);
        std::fill(entries.begin(), entries.end(), NAN);
        smla_context_args with = kit::context_args(engine, threads);
        with.batch_invariant = batch_invariant;
        Context context(with);
        OwnedWorkspace owned(context);
        const size_t bytes = stage_workspace<Stage::compress>(args, context.env({}), 0);
        run_stage<Stage::compress>(args, context.env(owned.at_least(bytes)));
    }
    std::vector<float> entry(int64_t token) const {
        const auto at = entries.begin() + token * args.cache.width;
        return std::vector<float>(at, at + args.cache.width);
    }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Widths of whole vectors, of an odd number of cuts, and one that the plain loops take.
TEST(CompressOnThreads, ATokensBitsDependNeitherOnThreadsNorOnOtherTokens) {
    for (const int32_t ratio : {128, 4})
        for (const int32_t width : {512, 528, 37}) {
            SCOPED_TRACE(text("ratio ", ratio, ", width ", width));
            const std::vector<int32_t> one{129, 255, 130}, many{127, 255, 127, 255, 255};
            Compression first(ratio, width, one), batch(ratio, width, many);
            first.run(1, true);
            const std::vector<float> want = first.entry(1), cached = first.cache;
            for (const float value : want) ASSERT_TRUE(std::isfinite(value));
            for (const bool batch_invariant : {false, true})
                for (const int32_t threads : {1, 2, 3, 5, 8}) {
                    SCOPED_TRACE(text(threads, " threads"));
                    Compression alone(ratio, width, one);
                    alone.run(threads, batch_invariant);
                    EXPECT_TRUE(same_bits(alone.entry(1), want));
                    EXPECT_TRUE(same_bits(alone.cache, cached));
                    batch.run(threads, batch_invariant);
                    for (const int64_t token : {1, 3, 4}) EXPECT_TRUE(same_bits(batch.entry(token), want));
                    EXPECT_TRUE(same_bits(batch.entry(2), batch.entry(0)));
                }
        }
}

// The vector kernels support every multiple of eight channels. The bound is the one of SoftPool, for values
// below the largest value.
TEST(CompressOnThreads, AnyNumberOfVectorsMatchesTheReference) {
    for (const int32_t width : {8, 24, 40, 520}) {
        Compression vectors(4, width, {127, 255}), loops(4, width, {127, 255});
        Context context(kit::context_args(SMLA_ENGINE_CPU));
        for (const Verdict& verdict : explain_stage<Stage::compress>(vectors.args, context.env({})))
            EXPECT_EQ(verdict.refusal.find("channels"), std::string::npos) << verdict.refusal;
        vectors.run(2, false);
        loops.run(1, false, SMLA_ENGINE_REFERENCE);
        float largest = 0;
        for (const float value : vectors.state) largest = std::max(largest, std::fabs(value));
        for (size_t i = 0; i < loops.entries.size(); ++i)
            EXPECT_NEAR(vectors.entries[i], loops.entries[i], 0x1p-20f * largest) << "width " << width;
    }
}

// A window without rows: the mean is 0, however it is cut.
TEST(CompressOnThreads, AWindowWithoutRowsIsZero) {
    Compression empty(128, 512, {127});
    std::fill(empty.table.begin(), empty.table.end(), -1);
    for (const int32_t threads : {1, 3}) {
        empty.run(threads, false);
        EXPECT_TRUE(same_bits(empty.entry(0), std::vector<float>(512, 0.f)));
    }
}

}  // namespace
}  // namespace smla
