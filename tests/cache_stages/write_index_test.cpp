// write_index: index formats and the rotation.
#include "cache_stages/write_support.h"
#include "core/hadamard.h"

#include <bit>
#include <cmath>

namespace smla::testing {
namespace {

constexpr smla_format kIndex[] = {SMLA_ROW_F64, SMLA_ROW_F32, SMLA_ROW_BF16, SMLA_INDEX_FP8_132,
                                  SMLA_INDEX_MXFP4_68};

// H[i][j] = (-1)^popcount(i & j), by its definition and in double.
std::vector<double> rotated(const std::vector<float>& row) {
    const size_t n = row.size();
    std::vector<double> out(n);
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) out[i] += std::popcount(i & j) & 1 ? -double(row[j]) : double(row[j]);
        out[i] /= std::sqrt(double(n));
    }
    return out;
}

TEST(WriteIndex, EveryFormat) {
    for (const smla_format format : kIndex)
        for (const smla_dtype dtype : {SMLA_F32, SMLA_BF16}) {
            TestCache test(shape_of(format, 4, 2));
            const Tokens tokens(3, test.width(), dtype == SMLA_BF16 ? 32 : 0, dtype, 5);
            const std::vector<int64_t> slots = {6, -7, 1};
            smla_write_args args{};
            args.head = tokens.head;
            args.tail = tokens.tail;
            args.slots = slots_tensor(slots);
            args.cache = test.cache;
            run_in_pieces<WriteIndexOp>(args);
            expect_row(test, 6, tokens.row(0, test.width()));
            expect_row(test, 1, tokens.row(2, test.width()));
            test.expect_untouched_except({6, 1});
        }
}

// 3 is a code of both formats at the scale that it sets; at the scale of 0.25 it would saturate.
TEST(WriteIndex, TheLargestChannelSetsTheScaleWhereverItStands) {
    for (const smla_format format : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68})
        for (const size_t channel : {0, 1, 31, 32, 63, 64, 126, 127}) {
            TestCache test(shape_of(format, 2, 1));
            std::vector<float> row(128, 0.25f);
            row[channel] = -3;
            const std::vector<int64_t> slots = {1};
            smla_write_args args{};
            args.head = make_tensor(row.data(), SMLA_F32, {1, 128});
            args.slots = slots_tensor(slots);
            args.cache = test.cache;
            run_in_pieces<WriteIndexOp>(args);
            std::vector<double> got(128);
            test.view().decode(1, got.data());
            EXPECT_EQ(got[channel], -3) << find_format(format)->name << " channel " << channel;
        }
}

TEST(WriteIndex, RotatesTheWholeRow) {
    for (const bool f64 : {false, true})
        for (const int32_t width : {1, 2, 64, 128, 1024}) {
            CacheShape shape = shape_of(f64 ? SMLA_ROW_F64 : SMLA_ROW_F32, 2, 1);
            shape.width = width;
            TestCache test(shape);
            const Tokens tokens(1, width, width >= 64 ? 32 : 0, f64 ? SMLA_F64 : SMLA_F32, 6);
            const std::vector<int64_t> slots = {1};
            smla_write_args args{};
            args.hadamard = 1;
            args.head = tokens.head;
            args.tail = tokens.tail;
            args.slots = slots_tensor(slots);
            args.cache = test.cache;
            run_in_pieces<WriteIndexOp>(args);
            std::vector<double> got(static_cast<size_t>(width));
            test.view().decode(1, got.data());
            const std::vector<double> want = rotated(tokens.values);
            double norm = 0;
            for (const float v : tokens.values) norm += double(v) * v;
            // log2(n) additions and 2 roundings of the factor, each off by half an ulp of a partial sum <=
            // the norm, which the final 1/sqrt(n) and the growth sqrt(n) of the sums cancel
            const double ulp = f64 ? 0x1p-52 : 0x1p-23,
                         bound = std::sqrt(norm) * ulp * (std::log2(width) + 3);
            for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], bound) << "width " << width;
        }
}

TEST(WriteIndex, RotationIsAnInvolutionThatKeepsDotProducts) {
    std::vector<float> q = random_values(128, 8), k = random_values(128, 9), q0 = q, k0 = k;
    std::vector<double> qd(q.begin(), q.end()), kd(k.begin(), k.end());
    double before = 0, after = 0, size = 0;
    for (size_t i = 0; i < 128; ++i) before += qd[i] * kd[i], size += std::fabs(qd[i] * kd[i]);
    hadamard(qd.data(), 128);
    hadamard(kd.data(), 128);
    double q_norm = 0, k_norm = 0;
    for (size_t i = 0; i < 128; ++i) after += qd[i] * kd[i], q_norm += qd[i] * qd[i], k_norm += kd[i] * kd[i];
    EXPECT_NEAR(after, before,
                std::sqrt(q_norm * k_norm) * 0x1p-52 * 140);  // 128 products of values off by 10 ulp
    hadamard(qd.data(), 128);
    for (size_t i = 0; i < 128; ++i) EXPECT_NEAR(qd[i], double(q0[i]), std::sqrt(q_norm) * 0x1p-52 * 20);
}

TEST(WriteIndex, RotatedFp8KeysComeFromTheRotatedRow) {
    for (const smla_format format : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68}) {
        TestCache test(shape_of(format, 2, 1));
        Tokens tokens(1, 128, 0, SMLA_F32, 10);
        const std::vector<int64_t> slots = {0};
        smla_write_args args{};
        args.hadamard = 1;
        args.head = tokens.head;
        args.slots = slots_tensor(slots);
        args.cache = test.cache;
        run_in_pieces<WriteIndexOp>(args);
        hadamard(tokens.values.data(), 128);
        expect_row(test, 0, tokens.values);
    }
}

}  // namespace
}  // namespace smla::testing
