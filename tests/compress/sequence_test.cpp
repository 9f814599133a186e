// Whole sequences against their definition, and the same bits however the sequence is cut into steps.
#include "sequence.h"

#include <gtest/gtest.h>

#include <cmath>

namespace smla::testing {
namespace {

struct Case {
    Shape shape;
    int32_t state_page, cache_page, interleave;
};
// ratios of V4 (4 and 128) and others, pages of the servers (4, 8) and odd ones, no rope, all rope
constexpr Case kCases[] = {
    {{43, 4, 8, 2}, 4, 4, 0}, {{40, 4, 6, 3}, 8, 3, 0},    {{29, 4, 8, 0}, 5, 64, 3},
    {{50, 8, 8, 2}, 8, 4, 0}, {{300, 128, 8, 4}, 8, 2, 0}, {{270, 128, 4, 1}, 7, 2, 1},
    {{12, 1, 8, 2}, 4, 4, 0}, {{31, 3, 10, 2}, 4, 5, 0},
};

template <class Real>
void expect_entries(Server<Real>& server, const Sequence<Real>& sequence, const std::vector<double>& want) {
    const int64_t width = sequence.shape.width, ratio = sequence.shape.ratio;
    for (int64_t e = 0; e < sequence.shape.entries(); ++e) {
        const std::vector<Real> got = server.entry(e);
        for (int64_t d = 0; d < width; ++d) {
            const double expected = want[size_t(e * width + d)];
            ASSERT_NEAR(double(got[size_t(d)]), expected, sequence.tolerance())
                << "entry " << e << ", channel " << d;
            const size_t at = size_t(((e + 1) * ratio - 1) * width + d);  // of the token that closes it
            ASSERT_EQ(server.entry_rows[at], got[size_t(d)]);
        }
    }
}

template <class Real>
void run_cases(uint32_t seed) {
    for (const Case& each : kCases) {
        SCOPED_TRACE(text("ratio ", each.shape.ratio, ", pages of ", each.state_page));
        const Sequence<Real> sequence(each.shape, seed);
        const typename Server<Real>::Options options{kRow<Real>, each.state_page, each.cache_page,
                                                     each.interleave, false};
        Server<Real> prefill(sequence, options, seed), decode(sequence, options, seed + 1),
            chunks(sequence, options, seed + 2);
        prefill.run({});
        expect_entries(prefill, sequence, sequence.entries());
        decode.run(std::vector<int64_t>(size_t(each.shape.tokens), 1));
        chunks.run({3, 1, 7, 2, 19});
        EXPECT_EQ(decode.bytes_of_entries(), prefill.bytes_of_entries());
        EXPECT_EQ(chunks.bytes_of_entries(), prefill.bytes_of_entries());
        EXPECT_EQ(decode.entry_rows, prefill.entry_rows);
        // only entries were written to the cache, only rows to the state
        std::vector<int64_t> rows;
        for (int64_t e = 0; e < each.shape.entries(); ++e) rows.push_back(decode.row_of_entry(e));
        decode.cache.expect_untouched_except(rows);
        for (int64_t t = 0; t < each.shape.tokens; ++t)
            ASSERT_TRUE((t + 1) % each.shape.ratio == 0 ||
                        prefill.entry_rows[size_t(t * each.shape.width)] == Real(-7))
                << "token " << t << " emits nothing";
    }
}

TEST(CompressSequence, F32) { run_cases<float>(1); }
TEST(CompressSequence, F64) { run_cases<double>(2); }

TEST(CompressSequence, RejectedTokensAreWrittenAgain) {
    for (const Case& each : kCases) {
        const Sequence<float> sequence(each.shape, 5), drafts(each.shape, 6);
        const Server<float>::Options options{SMLA_ROW_F32, each.state_page, each.cache_page, each.interleave,
                                             false};
        Server<float> plain(sequence, options, 7), speculative(sequence, options, 8);
        plain.run({});
        // each step takes one good token and three drafts, which also close entries; then two of them turn
        // out wrong
        for (int64_t t = 0; t < each.shape.tokens; t += 2) {
            const int64_t n = each.shape.tokens;
            speculative.step(sequence, t, std::min(t + 2, n));
            speculative.step(drafts, std::min(t + 2, n), std::min(t + 4, n));
        }
        EXPECT_EQ(speculative.bytes_of_entries(), plain.bytes_of_entries());
    }
}

TEST(CompressSequence, PagesMayMoveBetweenSteps) {
    for (const Case& each : kCases) {
        const Sequence<float> sequence(each.shape, 9);
        const Server<float>::Options options{SMLA_ROW_F32, each.state_page, each.cache_page, each.interleave,
                                             false};
        Server<float> plain(sequence, options, 10), moved(sequence, options, 11);
        plain.run({});
        for (int64_t t = 0; t < each.shape.tokens; t += 5) {
            moved.step(t, std::min(t + 5, each.shape.tokens));
            moved.move_pages(uint32_t(t));
        }
        EXPECT_EQ(moved.bytes_of_entries(), plain.bytes_of_entries());
    }
}

// A window row without a page counts as masked: the rest of the window is pooled, nothing else is read.
TEST(CompressSequence, MissingStatePages) {
    const Sequence<double> sequence({24, 4, 8, 2}, 12);
    const Server<double>::Options options{SMLA_ROW_F64, 4, 4, 0, false};
    Server<double> server(sequence, options, 13);
    server.step(0, 24);
    for (const int32_t hole : {-1, -5, 1 << 28, 9999}) {
        server.state_table[2] = hole;  // tokens 8..11
        server.step(12, 24);
        const auto hidden = [](int64_t token) { return token >= 8 && token < 12; };
        const std::vector<double> want = sequence.entries(hidden);
        for (int64_t e = 3; e < 6; ++e)
            for (int64_t d = 0; d < 8; ++d)
                EXPECT_NEAR(server.entry(e)[size_t(d)], want[size_t(e * 8 + d)], sequence.tolerance()) << e;
    }
}

// Scores far beyond the range of exp: only their differences count.
TEST(CompressSequence, LargeScores) {
    Sequence<double> sequence({40, 4, 8, 2}, 16);
    for (double& score : sequence.score) score += 3000;
    Server<double> server(sequence, {SMLA_ROW_F64, 4, 4, 0, false}, 17);
    server.run({});
    const std::vector<double> want = sequence.entries();
    // a logit near 3000 is rounded to 2^-42, and its difference to the peak with it
    for (int64_t e = 0; e < 10; ++e)
        for (int64_t d = 0; d < 8; ++d)
            EXPECT_NEAR(server.entry(e)[size_t(d)], want[size_t(e * 8 + d)], sequence.tolerance() + 0x1p-36);
}

// NaN in a row of one window reaches the entries of that window only.
TEST(CompressSequence, NanStaysInItsWindow) {
    Sequence<float> sequence({40, 4, 8, 2}, 14);
    const Sequence<float> clean = sequence;
    for (int64_t c = 0; c < 16; ++c) sequence.kv[size_t(13 * 16 + c)] = std::nanf("");
    const Server<float>::Options options{SMLA_ROW_F32, 4, 4, 0, false};
    Server<float> server(sequence, options, 15);
    server.run({9, 9});
    const std::vector<double> want = clean.entries();
    for (int64_t e = 0; e < 10; ++e)
        for (int64_t d = 0; d < 8; ++d) {
            const float got = server.entry(e)[size_t(d)];
            const bool reached = e == 3 || e == 4;
            EXPECT_EQ(std::isnan(got), reached) << e;
            EXPECT_TRUE(reached || std::fabs(got - want[size_t(e * 8 + d)]) <= clean.tolerance()) << e;
        }
}

}  // namespace
}  // namespace smla::testing
