// score on Hopper against double precision, with exact and with rounded products: heads that fill no step,
// pages of several sizes, windows, holes, NaN, many rows of one request and one row of many; the same bits
// alone and in a batch.
#include "formats/layouts.h"
#include "gpu/hopper_score.h"
#include "index/cases.h"
#include "index/expected.h"
#include "kit/problem.h"

#include <cmath>
#include <limits>

namespace smla::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What the kernel multiplies.
struct Way {
    smla_format format;
    smla_dtype q;
    smla_precision precision;

    bool takes(int64_t heads) const { return format == SMLA_INDEX_FP8_132 || heads == 32 || heads == 64; }
    void set(ScoreShape& shape) const {
        shape.format = format;
        shape.q = q;
        shape.precision = precision;
        shape.odd_scales = shape.odd_scales && format == SMLA_INDEX_FP8_132;
    }
};
constexpr Way kWays[] = {{SMLA_INDEX_FP8_132, SMLA_E4M3, SMLA_PRECISION_EXACT},
                         {SMLA_INDEX_FP8_132, SMLA_E4M3, SMLA_PRECISION_ROUNDED},
                         {SMLA_INDEX_MXFP4_68, SMLA_E2M1, SMLA_PRECISION_DEFAULT}};

class Sm90Score : public HopperScore {
protected:
    Sm90Score() : HopperScore("cuda_sm90_score") {}

    std::string refusal(const ScoreShape& shape) const {
        const ScoreCase test(shape);
        smla_score_args args = test.args();
        args.logits = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {shape.tokens, shape.columns});
        for (const Verdict& verdict : explain_stage<Stage::score>(args, context_->env({})))
            if (verdict.kernel == kernel_) return verdict.refusal;
        return "not in the table";
    }
};

std::string described(const ScoreShape& shape) {
    return text(find_format(shape.format)->name, " H ", shape.heads, " T ", shape.tokens, " R ",
                shape.requests, " N ", shape.columns, " pages of ", shape.page_tokens,
                shape.paged ? "" : " ragged", " precision ", shape.precision);
}

std::vector<ScoreShape> shapes() {
    std::vector<ScoreShape> out;
    for (const int64_t heads : {1, 8, 11, 16, 24, 32, 50, 64})
        for (const int64_t tokens : {1, 5, 70})
            for (const Way& way : kWays) {
                if (!way.takes(heads)) continue;
                ScoreShape shape;
                shape.heads = heads;
                shape.tokens = tokens;
                shape.requests = tokens == 5 ? 3 : 1;
                shape.columns = tokens == 70 ? 150 : 700;
                shape.paged = heads != 24;
                shape.page_tokens = heads % 16 == 0 ? 64 : 12;
                shape.odd_scales = heads != 32;
                way.set(shape);
                shape.seed = uint32_t(out.size() + 1);
                out.push_back(shape);
            }
    return out;
}

TEST_F(Sm90Score, IsWithinTheBound) {
    for (const ScoreShape& shape : shapes()) {
        ScoreCase test(shape);
        for (int64_t t = 0; t < shape.tokens; ++t) test.requests[size_t(t)] = int32_t(t % shape.requests);
        const std::vector<float> got = run_score(test, env());
        double worst = 0, product = 0, squares = 0;
        for (int64_t t = 0; t < shape.tokens; ++t)
            for (int64_t j = 0; j < shape.columns; ++j) {
                const Want want = logit_of(test, t, test.row(t % shape.requests, j));
                const double is = got[size_t(t * shape.columns + j)], error = std::fabs(is - want.logit);
                const bool rounded = shape.precision == SMLA_PRECISION_ROUNDED;
                worst = std::max(worst, error / (want.bound + (rounded ? want.rounded : 0)));
                product += is * want.logit;
                squares += (is * is + want.logit * want.logit) / 2;
            }
        ASSERT_LE(worst, 1) << described(shape);
        ASSERT_LT(1 - product / squares, 5e-6) << described(shape);  // DeepGEMM's own measure and limit
    }
}

TEST_F(Sm90Score, WholeNumbersGiveTheBitsOfTheReference) {
    for (ScoreShape shape : shapes()) {
        shape.exact = true;
        shape.odd_scales = false;
        const ScoreCase test(shape);
        const std::vector<float> got = run_score(test, env()), want = reference_score(test);
        ASSERT_TRUE(same_bits(got, want))
            << described(shape) << ": " << first_difference(got, want, shape.columns);
    }
}

TEST_F(Sm90Score, LogitsOfBf16AreThoseOfF32Rounded) {
    for (const char* kernel : {"cuda_sm90_score", "cuda_mma_score", "cuda_generic_score"})
        for (const ScoreShape& shape : shapes()) {
            ScoreCase test(shape);
            for (int64_t t = 0; t < shape.tokens; ++t) test.starts[size_t(t)] = int32_t(5 * t);
            Env env = this->env();
            env.demanded[size_t(Stage::score)] = kernel;
            for (const bool fill : {false, true}) {
                const std::vector<float> want = run_score(test, env, fill);
                const std::vector<uint16_t> got = run_score_to_bf16(test, env, fill);
                for (size_t i = 0; i < want.size(); ++i)
                    ASSERT_EQ(got[i], f32_to_bf16(want[i])) << kernel << " " << described(shape) << " " << i;
            }
        }
}

// Precision rounded multiplies otherwise: else nothing above would test it.
TEST_F(Sm90Score, RoundedIsNotExact) {
    ScoreShape shape;
    shape.columns = 300;
    const std::vector<float> exact = run_score(ScoreCase(shape), env());
    shape.precision = SMLA_PRECISION_ROUNDED;
    EXPECT_FALSE(same_bits(run_score(ScoreCase(shape), env()), exact));
}

TEST_F(Sm90Score, WindowsAndHoles) {
    for (const int64_t heads : {8, 32, 64})
        for (const Way& way : kWays)
            for (const bool fill : {true, false}) {
                if (!way.takes(heads)) continue;
                ScoreShape shape;
                shape.tokens = 12;
                shape.heads = heads;
                shape.columns = 330;
                shape.page_tokens = 16;
                shape.requests = 2;
                way.set(shape);
                const ScoreCase whole(shape);
                ScoreCase test(shape);
                test.requests = {0, 0, 0, 1, 1, 0, -1, 2, 0, 0, 0, 0};
                test.starts = {0, 5, 47, 48, 100, 200, -9, 330, 320, 7, 0, 290};
                test.ends = {330, 5, 50, 49, 90, 250, 3, 400, 2147483647, 8, -4, 301};
                test.table[1] = -1;  // columns 16 to 31 of request 0
                test.table[20] = int32_t(test.keys().pages);
                ScoreCase each(shape);
                each.requests = {0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0};
                const std::vector<float> all = run_score(each, env()), got = run_score(test, env(), fill);
                for (int64_t t = 0; t < shape.tokens; ++t)
                    for (int64_t j = 0; j < shape.columns; ++j) {
                        const size_t at = size_t(t * shape.columns + j);
                        const int32_t request = test.requests[size_t(t)];
                        const bool inside = j >= test.starts[size_t(t)] && j < test.ends[size_t(t)];
                        const bool hole =
                            request < 0 || request > 1 || (request == 0 && (j / 16 == 1 || j / 16 == 20));
                        ASSERT_EQ(got[at], inside ? hole ? -kInfinity : all[at]
                                           : fill ? -kInfinity
                                                  : kCanary)
                            << described(shape) << " " << t << " " << j;
                    }
            }
}

// Neither the other rows of a batch nor how it is cut change a row's bits.
TEST_F(Sm90Score, ARowAloneHasTheBitsItHasInABatch) {
    for (const int64_t heads : {16, 32, 64})
        for (const Way& way : kWays) {
            if (!way.takes(heads)) continue;
            ScoreShape shape;
            shape.heads = heads;
            shape.tokens = 37;
            shape.columns = 1000;
            shape.paged = false;
            way.set(shape);
            expect_tokens_alone(ScoreCase(shape), 5, described(shape));
        }
}

// One row per request makes steps of 64 columns, many rows of one request steps of 128.
// Blocks use each stage many times; the bits stay the same.
TEST_F(Sm90Score, LongCalls) {
    for (const int64_t rows : {1, 2, 9})
        for (const Way& way : kWays) {
            ScoreShape shape;
            shape.heads = 64;
            shape.requests = rows == 9 ? 3 : 20;
            shape.tokens = shape.requests * rows;
            shape.columns = 6400;
            way.set(shape);
            ScoreCase test(shape);
            lengthen(test, 48'000);
            expect_again(test, run_score(test, env()), described(test.shape));
        }
}

TEST_F(Sm90Score, StepsOfEveryWidthGiveTheSameBits) {
    for (const int64_t heads : {8, 32, 64})
        for (const Way& way : kWays) {
            if (!way.takes(heads)) continue;
            ScoreShape shape;
            shape.heads = heads;
            shape.tokens = shape.requests = 20;
            shape.columns = 300;
            way.set(shape);
            const ScoreCase test(shape);
            std::vector<float> logits[2];
            const std::vector<int32_t> first(size_t(shape.tokens), 0);
            for (int many = 0; many < 2; ++many) {
                smla_score_args args = test.args();
                args.request_of_token = make_tensor(first.data(), SMLA_I32, {shape.tokens});
                if (many) args.block_table.shape[0] = 1;
                logits[many].assign(size_t(shape.tokens * shape.columns), kCanary);
                args.logits = make_tensor(logits[many].data(), SMLA_F32, {shape.tokens, shape.columns});
                kit::run_placed<Stage::score>(args, env());
            }
            ASSERT_TRUE(same_bits(logits[0], logits[1]))
                << described(shape) << ": " << first_difference(logits[0], logits[1], shape.columns);
        }
}

TEST_F(Sm90Score, NanReachesItsColumnAndNothingElse) {
    for (const Way& way : kWays) {
        ScoreShape shape;
        shape.tokens = 9;
        shape.heads = way.takes(21) ? 21 : 32;
        shape.columns = 200;
        way.set(shape);
        const ScoreCase clean(shape);
        ScoreCase test(shape);
        std::vector<float> key(size_t(shape.width));
        test.keys().decode(test.row(0, 33), key.data());
        key[5] = std::nanf("");
        test.keys().encode(test.row(0, 33), key.data());
        const std::vector<float> want = run_score(clean, env()), got = run_score(test, env());
        for (size_t i = 0; i < got.size(); ++i) {
            if (i % size_t(shape.columns) == 33) EXPECT_TRUE(std::isnan(got[i])) << "relu hid a NaN";
            else EXPECT_EQ(got[i], want[i]) << i;
        }
    }
}

// Products of mxfp4 reach infinity, and relu of -inf is 0. Keys and queries have one channel each.
TEST_F(Sm90Score, InfiniteProducts) {
    constexpr size_t kByte = 2;  // of channel 5, the high half
    constexpr uint8_t kOne = 0x20, kFour = 0x60, kMinusFour = 0xe0, kTo127 = 0xfe, kTo0 = 0x7f;
    for (const int64_t heads : {32, 64}) {
        ScoreShape shape;
        shape.heads = heads;
        shape.tokens = 9;
        shape.columns = 150;
        kWays[2].set(shape);
        ScoreCase test(shape);
        for (int64_t j = 0; j < shape.columns; ++j) {
            using Layout = layout::IndexMxfp4_68;
            const RecordAt at = test.keys().at(test.row(0, j));
            char* const codes = at.page + Layout::row_at(at.offset);
            std::memset(codes, 0, Layout::row);
            codes[kByte] = kOne;
            std::memset(at.page + Layout::scales_at(at.page_tokens, at.offset), kTo127, Layout::tiles);
        }
        std::memset(test.q_scales.data(), kTo0, size_t(shape.tokens * heads * 4));
        for (int64_t i = 0; i < shape.tokens * heads; ++i) {
            auto* const codes = reinterpret_cast<uint8_t*>(test.q_bytes.data()) + i * 64;
            std::memset(codes, 0, 64);
            // token 0 has no positive product, token 1 one, all others half of them
            const int64_t t = i / heads, h = i % heads;
            codes[kByte] = (t == 0 || (t == 1 ? h > 0 : h % 2)) ? kMinusFour : kFour;
            test.w[size_t(i)] = 0.01f;
        }
        const std::vector<float> got = run_score(test, env());
        for (int64_t t = 0; t < shape.tokens; ++t)
            for (int64_t j = 0; j < shape.columns; ++j)
                ASSERT_EQ(got[size_t(t * shape.columns + j)], t == 0 ? 0 : kInfinity) << t << " " << j;
    }
}

TEST_F(Sm90Score, RefusesWhatItDoesNotTake) {
    ScoreShape shape;
    EXPECT_EQ(refusal(shape), "");
    shape.heads = 65;
    EXPECT_NE(refusal(shape).find("65 heads"), std::string::npos);
    shape = {};
    shape.q = SMLA_BF16;
    EXPECT_NE(refusal(shape).find("got bf16"), std::string::npos);
    shape = {};
    shape.format = SMLA_INDEX_MXFP4_68;
    EXPECT_NE(refusal(shape).find("got e4m3"), std::string::npos);
    shape.q = SMLA_E2M1;
    EXPECT_EQ(refusal(shape), "");
    shape.heads = 48;
    EXPECT_NE(refusal(shape).find("got 48"), std::string::npos);
    shape = {};
    shape.format = SMLA_ROW_BF16;
    EXPECT_NE(refusal(shape).find("row_bf16"), std::string::npos);
    shape = {};
    shape.page_tokens = 5;  // 660 bytes
    EXPECT_NE(refusal(shape).find("16 bytes"), std::string::npos);
}

}  // namespace
}  // namespace smla::test
