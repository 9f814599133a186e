#include "core/numbers.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

TEST(Numbers, E4m3RoundTripsAllCodes) {
    for (int code = 0; code < 256; ++code) {
        const float value = e4m3_to_f32(uint8_t(code));
        if ((code & 0x7f) == 0x7f) {
            EXPECT_TRUE(std::isnan(value));
            EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(value))));
        } else {
            EXPECT_EQ(f32_to_e4m3(value), code);
        }
    }
}

TEST(Numbers, E4m3KnownValues) {
    EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9f);
    EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6f);
    EXPECT_EQ(e4m3_to_f32(0x38), 1.f);
    EXPECT_EQ(e4m3_to_f32(0x7e), 448.f);
    EXPECT_EQ(f32_to_e4m3(1e9f), 0x7e);
    EXPECT_EQ(f32_to_e4m3(-1e9f), 0xfe);
    EXPECT_EQ(f32_to_e4m3(464.f), 0x7e);
    EXPECT_EQ(f32_to_e4m3(1.0625f), 0x38);   // tie between 1 and 1.125: even mantissa
    EXPECT_EQ(f32_to_e4m3(1.1875f), 0x3a);   // tie between 1.125 and 1.25
    EXPECT_EQ(f32_to_e4m3(0x1p-10f), 0x00);  // tie between 0 and 2^-9
    EXPECT_EQ(f32_to_e4m3(0x1.8p-9f), 0x02);
}

TEST(Numbers, E4m3NearestByExhaustion) {
    for (uint32_t i = 0; i < 200000; ++i) {
        const float x = std::ldexp(float(i % 4001) / 4001.f + 0.25f, int(i % 23) - 12);
        const uint8_t code = f32_to_e4m3(x);
        const float error = std::fabs(e4m3_to_f32(code) - x);
        for (int step : {-1, 1}) {
            const int other = code + step;
            if (other < 0 || other > 0x7e) continue;
            EXPECT_LE(error, std::fabs(e4m3_to_f32(uint8_t(other)) - x)) << x;
        }
    }
}

TEST(Numbers, E8m0) {
    EXPECT_EQ(e8m0_to_f32(127), 1.f);
    EXPECT_EQ(e8m0_to_f32(0), 0x1p-127f);
    EXPECT_EQ(e8m0_to_f32(254), 0x1p127f);
    EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
    for (int code = 0; code < 255; ++code) EXPECT_EQ(ceil_e8m0(e8m0_to_f32(uint8_t(code))), code);
    for (int code = 1; code < 254; ++code)
        EXPECT_EQ(ceil_e8m0(std::nextafter(e8m0_to_f32(uint8_t(code)), 1e38f)), code + 1);
}

TEST(Numbers, E2m1Ties) {
    const std::pair<float, int> cases[] = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4},
                                           {2.5f, 4},  {3.5f, 6},  {5.f, 6}};
    for (const auto& [value, code] : cases) {
        EXPECT_EQ(f32_to_e2m1(value), code) << value;
        EXPECT_EQ(f32_to_e2m1(-value), code | 8) << value;
    }
    for (int code = 0; code < 16; ++code) EXPECT_EQ(f32_to_e2m1(e2m1_to_f32(uint8_t(code))), code);
}

TEST(Numbers, PairsOfE2m1AsTinyBf16) {
    for (uint32_t low = 0; low < 256; ++low)
        for (uint32_t high = 0; high < 256; ++high)
            for (const bool next : {false, true})
                for (const uint32_t more : {0u, 0xff00ff00u}) {  // what else the word holds
                    const uint32_t pair = e2m1_pair_to_tiny_bf16(low | high << 16 | more, next);
                    const auto value = [&](uint32_t codes) {
                        return e2m1_to_f32(uint8_t(codes >> (next ? 4 : 0) & 15));
                    };
                    ASSERT_EQ(bf16_to_f32(uint16_t(pair)) * 0x1p126f, value(low));
                    ASSERT_EQ(bf16_to_f32(uint16_t(pair >> 16)) * 0x1p126f, value(high));
                    ASSERT_EQ(std::signbit(bf16_to_f32(uint16_t(pair))), bool(low >> (next ? 7 : 3) & 1));
                }
}

TEST(Numbers, Bf16AndF16RoundTrip) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const float b = bf16_to_f32(uint16_t(bits)), h = f16_to_f32(uint16_t(bits));
        if (!std::isnan(b)) {
            EXPECT_EQ(f32_to_bf16(b), bits);
        }
        if (!std::isnan(h)) {
            EXPECT_EQ(f32_to_f16(h), bits);
        }
    }
    EXPECT_EQ(f32_to_f16(65519.f), 0x7bff);
    EXPECT_EQ(f32_to_f16(65520.f), 0x7c00);
    EXPECT_EQ(f32_to_f16(1.f + 0x1p-11f), 0x3c00);
    EXPECT_EQ(f32_to_bf16(1.f + 0x1p-8f), 0x3f80);
}

}  // namespace
}  // namespace smla
