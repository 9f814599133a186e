// What each cache format stores of an entry.
#include "core/numbers.h"
#include "sequence.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace smla::testing {
namespace {

// x H / sqrt(n), H[i][j] = (-1)^popcount(i & j): the definition, in double
std::vector<float> rotated(const std::vector<float>& x) {
    std::vector<float> out(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
        double sum = 0;
        for (size_t j = 0; j < x.size(); ++j) sum += std::popcount(i & j) % 2 ? -double(x[j]) : double(x[j]);
        out[i] = float(sum / std::sqrt(double(x.size())));
    }
    return out;
}

template <class Real>
std::vector<float> entry_row(const Server<Real>& server, const Shape& shape, int64_t e) {
    const auto at = server.entry_rows.begin() + ((e + 1) * shape.ratio - 1) * shape.width;
    return std::vector<float>(at, at + shape.width);
}

// Formats with scales get the entry rounded to bf16; plain rows and the records of V4.1 get it as it is.
template <class Real>
void expect_stored(smla_format format, uint32_t seed) {
    const int32_t width = width_of(format) ? width_of(format) : 24;
    const Shape shape{13, 4, width, width == 576 || width == 512 ? 32 : 8};
    const Sequence<Real> sequence(shape, seed);
    Server<Real> server(sequence, {format, 4, 3, 0, false}, seed);
    server.run({5});
    TestCache want(server.cache.shape);
    const bool plain = format == SMLA_ROW_F32 || format == SMLA_ROW_BF16 || format == SMLA_FP8_528_G32 ||
                       format == SMLA_FP8_528_G32_SPLIT || format == SMLA_NVFP4_288 ||
                       format == SMLA_NVFP4_288_SPLIT;
    for (int64_t e = 0; e < shape.entries(); ++e) {
        std::vector<float> row = entry_row(server, shape, e);
        for (float& v : row) v = plain ? v : round_to_bf16(v);
        want.view().encode(server.row_of_entry(e), row.data());
    }
    const size_t bytes = size_t(want.page_stride * want.shape.pages);
    EXPECT_EQ(std::memcmp(server.cache.page(0), want.page(0), bytes), 0) << find_format(format)->name;
}

TEST(CompressFormats, EveryFormat) {
    for (const smla_format format : kAllFormats) {
        if (format == SMLA_ROW_F64 || format == SMLA_STATE_F32 || format == SMLA_STATE_F64) continue;
        expect_stored<float>(format, 20);
    }
}

// The arithmetic in f64 and a cache of codes: the same rule. (Entries come out in f64; codes see them through
// bf16.)
TEST(CompressFormats, F64WithCodes) {
    expect_stored<double>(SMLA_FP8_584, 21);
    expect_stored<double>(SMLA_INDEX_FP8_132, 22);
}

// The rope part of fp8_584 is bf16 of the unrounded rotation: rounding the normed row first would change it.
TEST(CompressFormats, RopeIsRoundedOnce) {
    const Shape shape{16, 4, 512, 32};
    const Sequence<float> sequence(shape, 23);
    Server<float> server(sequence, {SMLA_FP8_584, 4, 64, 0, false}, 23);
    server.run({});
    const std::vector<double> want = sequence.entries();
    int64_t inexact = 0;
    for (int64_t e = 0; e < shape.entries(); ++e) {
        const std::vector<float> got = server.entry(e);
        for (int64_t d = 448; d < 512; ++d) {
            const double exact = want[size_t(e * 512 + d)];
            // half a unit in the last place of bf16 at this magnitude, and the arithmetic's own error
            const double half = std::ldexp(1., std::ilogb(exact == 0 ? 1e-30 : exact) - 8);
            ASSERT_NEAR(double(got[size_t(d)]), exact, half + sequence.tolerance());
            inexact += got[size_t(d)] != float(exact);
        }
    }
    EXPECT_GT(inexact, 100);  // so it is a rounding that was tested
}

TEST(CompressFormats, IndexEntriesAreRotatedAfterRounding) {
    const Shape shape{13, 4, 128, 32};
    const Sequence<float> sequence(shape, 24);
    for (const smla_format format : {SMLA_ROW_F32, SMLA_INDEX_FP8_132}) {
        Server<float> server(sequence, {format, 4, 4, 0, true}, 24);
        server.run({});
        for (int64_t e = 0; e < shape.entries(); ++e) {
            std::vector<float> row = entry_row(server, shape, e);
            double largest = 0;
            for (float& v : row) v = format == SMLA_ROW_F32 ? v : round_to_bf16(v);
            const std::vector<float> want = rotated(row), got = server.entry(e);
            for (const float v : want) largest = std::max(largest, std::fabs(double(v)));
            // 7 additions and one product; e4m3 keeps 4 significant bits, or 2^-9 of a scale of at most 2
            // largest / 448
            for (size_t d = 0; d < want.size(); ++d) {
                const double rounding = 9 * 0x1p-24 * largest * std::sqrt(128.);
                const double code = format == SMLA_ROW_F32
                                        ? 0
                                        : std::max(std::fabs(double(want[d])) / 16, largest / 448 * 0x1p-9);
                ASSERT_NEAR(got[d], want[d], rounding + code) << e << " " << d;
            }
        }
    }
}

// And rounded to bf16 once more before they are quantised, as vLLM does: sums of bf16 values are exact in
// double, so every byte follows.
TEST(CompressFormats, RotatedIndexEntriesAreRoundedAgain) {
    const Shape shape{160, 4, 128, 32};
    const Sequence<double> sequence(shape, 25);
    for (const smla_format format : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68}) {
        Server<double> server(sequence, {format, 4, 64, 0, true}, 25);
        server.run({});
        TestCache once(server.cache.shape), twice(server.cache.shape);
        int differ = 0;
        for (int64_t e = 0; e < shape.entries(); ++e) {
            std::vector<float> row = entry_row(server, shape, e);
            for (float& v : row) v = round_to_bf16(v);
            row = rotated(row);
            const int64_t at = server.row_of_entry(e);
            once.view().encode(at, row.data());
            for (float& v : row) v = round_to_bf16(v);
            twice.view().encode(at, row.data());
            std::vector<float> a(row.size()), b(row.size());
            once.view().decode(at, a.data());
            twice.view().decode(at, b.data());
            EXPECT_EQ(std::vector<float>(b), [&] {
                const std::vector<double> stored = server.entry(e);
                return std::vector<float>(stored.begin(), stored.end());
            }()) << e;
            for (size_t d = 0; d < a.size(); ++d) differ += a[d] != b[d];
        }
        EXPECT_GT(differ, 3) << find_format(format)->name;  // so the second rounding was seen
    }
}

}  // namespace
}  // namespace smla::testing
