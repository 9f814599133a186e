#include "model/rope_tables.h"

#include <gtest/gtest.h>

#include <cmath>

namespace smla {
namespace {

// Values computed with another program from the published formulas, to 7 digits.
constexpr double kDigits = 5e-7;

void expect_frequencies(const RopeParameters& rope,
                        std::initializer_list<std::pair<size_t, double>> expected) {
    const std::vector<double> table = rope_frequencies(64, rope);
    ASSERT_EQ(table.size(), 32u);
    for (const auto& [pair, value] : expected) EXPECT_NEAR(table[pair] / value, 1, kDigits) << pair;
}

const RopeParameters kV32{10000, Yarn{40, 4096, 32, 1, 1, true}};
const RopeParameters kV4{160000, Yarn{16, 65536, 32, 1, 0, true}};

TEST(RopeTables, DeepseekV32) {
    const YarnRamp ramp = yarn_ramp(64, 10000, *kV32.yarn);
    EXPECT_EQ(ramp.low, 10);
    EXPECT_EQ(ramp.high, 23);
    expect_frequencies(kV32, {{0, 1},
                              {8, 1e-1},
                              {12, 2.687936e-2},
                              {16, 5.5e-3},
                              {20, 7.905694e-4},
                              {23, 3.333804e-5},
                              {31, 3.333804e-6}});
}

TEST(RopeTables, DeepseekV4) {
    const YarnRamp ramp = yarn_ramp(64, 160000, *kV4.yarn);
    EXPECT_EQ(ramp.low, 15);
    EXPECT_EQ(ramp.high, 25);
    expect_frequencies(kV4, {{0, 1},
                             {8, 5e-2},
                             {15, 3.635539e-3},
                             {16, 2.265625e-3},
                             {20, 2.969778e-4},
                             {24, 1.953125e-5},
                             {31, 5.680529e-7}});
}

TEST(RopeTables, WithoutScaling) {
    expect_frequencies({10000, {}}, {{0, 1}, {16, 1e-2}, {8, 1e-1}});
    expect_frequencies({1e6, {}}, {{16, 1e-3}});
    EXPECT_TRUE(rope_frequencies(0, {}).empty());
}

TEST(RopeTables, UntruncatedRamp) {
    Yarn yarn = *kV32.yarn;
    yarn.truncate = false;
    const YarnRamp ramp = yarn_ramp(64, 10000, yarn);
    EXPECT_NEAR(ramp.low, 64 * std::log(4096 / (2 * M_PI * 32)) / (2 * std::log(10000.0)), 1e-12);
    EXPECT_GT(ramp.low, 10);
    EXPECT_LT(ramp.high, 23);
}

TEST(RopeTables, RampIsClampedAndNeverEmpty) {
    const YarnRamp small = yarn_ramp(8, 10000, Yarn{40, 64, 32, 1, 1, true});
    EXPECT_EQ(small.low, 0);  // beta_fast turns would be before the first pair
    EXPECT_EQ(small.high, 2);
    // pairs 12.88 to 24.92, then 10.39 to 22.43: rounded outwards, not to the nearest
    const YarnRamp late = yarn_ramp(64, 10000, Yarn{40, 8192, 32, 1, 1, true});
    EXPECT_EQ(late.low, 12);
    EXPECT_EQ(late.high, 25);
    const YarnRamp early = yarn_ramp(64, 10000, Yarn{40, 4000, 32, 1, 1, true});
    EXPECT_EQ(early.low, 10);
    EXPECT_EQ(early.high, 23);
    EXPECT_EQ(yarn_ramp(64, 10000, Yarn{40, 1e9, 32, 1, 1, true}).high, 63);  // past the last pair, 31
    const YarnRamp empty = yarn_ramp(64, 10000, Yarn{40, 1, 1 / (2 * M_PI), 1 / (2 * M_PI), 1, true});
    EXPECT_EQ(empty.low, 0);
    EXPECT_EQ(empty.high, 0.001);
}

TEST(RopeTables, AttentionScale) {
    EXPECT_NEAR(attention_scale(192, kV32), 0.1352337789, 5e-11);
    EXPECT_EQ(attention_scale(256, {1e6, {}}), 0.0625);
    EXPECT_NEAR(attention_scale(512, kV4), 0.0441941738, 5e-11);  // mscale 0: no magnitude
    // the magnitude is a square, of mscale inside the logarithm's factor
    const double g = 0.1 * 0.707 * std::log(40.0) + 1;
    EXPECT_NEAR(attention_scale(64, {1e4, Yarn{40, 4096, 32, 1, 0.707, true}}), g * g / 8, 1e-15);
    EXPECT_EQ(attention_scale(64, {1e4, Yarn{1, 4096, 32, 1, 1, true}}), 0.125);
}

}  // namespace
}  // namespace smla
