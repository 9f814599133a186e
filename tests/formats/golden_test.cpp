// Bytes that the encoders must write: some spelt by hand, whole pages by hash from golden.py (exact
// fractions, no code in common with the library).
#include "formats/test_cache.h"

#include <array>
#include <cmath>

namespace smla::testing {
namespace {

float f32_at(const uint8_t* at) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
}
double f64_at(const uint8_t* at) {
    double value;
    std::memcpy(&value, at, 8);
    return value;
}
int u16_at(const uint8_t* at) { return at[0] | at[1] << 8; }

// The generator of golden.py.
std::vector<float> golden_inputs(int n, uint64_t x) {
    std::vector<float> out;
    for (int i = 0; i < n; ++i) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        float v = std::ldexp(float(int64_t(x >> 40) - (1 << 23)), -23 - int(x >> 8 & 15));
        if ((x & 0xfc) == 0) v *= 1024.f;
        if ((x & 0xfc) == 4) v = 0.f;
        out.push_back(v);
    }
    return out;
}

struct Golden {
    smla_format format;
    size_t page_bytes;
    uint64_t hash;
};
constexpr Golden kPages[] = {
    // the output of golden.py
    {SMLA_FP8_656, 1968, 0xf54287c4cc33fc83u},       {SMLA_FP8_528, 1584, 0x8759391914e25942u},
    {SMLA_FP8_576, 1728, 0x414f2b5b6bac04b4u},       {SMLA_FP8_512, 1536, 0x54981c697bf0f38cu},
    {SMLA_FP8_584, 2304, 0x2b499fa3f0127ac2u},       {SMLA_INDEX_FP8_132, 396, 0x044eeb583962192bu},
    {SMLA_INDEX_MXFP4_68, 204, 0x26118faaf7b7a548u},
};

TEST(GoldenBytes, PagesOfEveryFormat) {
    int seed = 0;
    for (const Golden& golden : kPages) {
        ++seed;
        CacheShape shape = shape_of(golden.format, 3, 1);
        shape.scale = golden.format == SMLA_FP8_576 ? 1.5f : golden.format == SMLA_FP8_512 ? 0.25f : 0.f;
        for (const bool f64 : {false, true}) {
            TestCache test(shape);
            for (int row = 0; row < 3; ++row) {
                const std::vector<float> values = golden_inputs(test.width(), uint64_t(1000 * seed + row));
                const std::vector<double> doubles(values.begin(), values.end());
                if (f64) test.view().encode(row, doubles.data());
                else test.view().encode(row, values.data());
            }
            ASSERT_EQ(packed_page_bytes(test.cache), golden.page_bytes);
            uint64_t hash = 0xcbf29ce484222325u;
            for (size_t i = 0; i < golden.page_bytes; ++i) hash = (hash ^ test.page(0)[i]) * 0x100000001b3u;
            EXPECT_EQ(hash, golden.hash) << find_format(golden.format)->name;
        }
    }
}

TEST(GoldenBytes, Fp8_656ByHand) {
    TestCache test(shape_of(SMLA_FP8_656, 2, 1));
    std::vector<float> v(576, 0.f);
    v[0] = 448.f, v[1] = -224.f, v[2] = 1.f, v[3] = 17.f, v[127] = 0x1p-9f;  // tile 0: scale 1
    v[128] = 336.f, v[129] = 3.f;                                            // tile 1: 0.75 rounds up to 1
    v[256] = 449.f, v[257] = -1.f;                                           // tile 2: scale 2
    v[512] = 1.f, v[513] = -2.5f, v[575] = 1.f + 0x1p-8f;  // rope; the last is a tie, down to even
    test.view().encode(1, v.data());
    const uint8_t* row = test.page(0) + 656;
    EXPECT_EQ(row[0], 0x7e);
    EXPECT_EQ(row[1], 0xf6);
    EXPECT_EQ(row[2], 0x38);
    EXPECT_EQ(row[3], 0x58);  // 17 is a tie of 16 and 18
    EXPECT_EQ(row[127], 0x01);
    EXPECT_EQ(row[128], 0x7a);  // 336 = 1.3125 * 256: a tie of 320 and 352, even mantissa 2
    EXPECT_EQ(row[129], 0x44);
    EXPECT_EQ(row[256], 0x76);  // 224.5 -> 224
    EXPECT_EQ(row[257], 0xb0);  // -0.5
    EXPECT_EQ(row[384], 0x00);
    EXPECT_EQ(f32_at(row + 512), 1.f);
    EXPECT_EQ(f32_at(row + 516), 1.f);
    EXPECT_EQ(f32_at(row + 520), 2.f);
    EXPECT_EQ(f32_at(row + 524), 0x1p-13f);  // a tile of zeros: the floor 1e-4
    EXPECT_EQ(u16_at(row + 528), 0x3f80);
    EXPECT_EQ(u16_at(row + 530), 0xc020);
    EXPECT_EQ(u16_at(row + 654), 0x3f80);
}

TEST(GoldenBytes, Fp8_584ByHand) {
    TestCache test(shape_of(SMLA_FP8_584, 2, 2));
    std::vector<float> v(512, 0.f);
    v[0] = 448.f, v[63] = -7.f;  // tile 0: byte 127
    v[64] = 1.f;                 // tile 1: byte 119, 1 / 2^-8 = 256
    v[384] = 1000.f;             // tile 6: byte 129, 1000 / 4 = 250 -> 256
    v[448] = 3.f, v[511] = -1.f;
    test.view().encode(3, v.data());
    const uint8_t* page = test.page(1);
    EXPECT_EQ(page - test.page(0), 1728);
    const uint8_t* row = page + 576;
    EXPECT_EQ(row[0], 0x7e);
    EXPECT_EQ(row[63], 0xce);
    EXPECT_EQ(row[64], 0x78);
    EXPECT_EQ(row[384], 0x78);
    EXPECT_EQ(u16_at(row + 448), 0x4040);
    EXPECT_EQ(u16_at(row + 574), 0xbf80);
    const std::array<uint8_t, 8> scales = {127, 119, 105, 105, 105, 105, 129, 0};
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(page[2 * 576 + 8 + i], scales[i]) << i;
}

TEST(GoldenBytes, IndexFp8_132ByHand) {
    TestCache test(shape_of(SMLA_INDEX_FP8_132, 64, 2));
    std::vector<float> v(128, 0.f);
    v[0] = 3.5f, v[127] = -0.875f;  // 3.5 / 448 = 2^-7
    test.view().encode(64 + 5, v.data());
    const uint8_t* page = test.page(0) + 8448;
    EXPECT_EQ(page[5 * 128], 0x7e);
    EXPECT_EQ(page[5 * 128 + 127], 0xee);  // -112
    EXPECT_EQ(f32_at(page + 8192 + 20), 0x1p-7f);
}

TEST(GoldenBytes, IndexMxfp4_68ByHand) {
    TestCache test(shape_of(SMLA_INDEX_MXFP4_68, 2, 1));
    std::vector<float> v(128, 0.f);
    const float block[8] = {6.f, -4.f, 3.f, 2.f, 1.5f, -1.f, 0.5f, -0.f};  // scale 1
    for (int i = 0; i < 8; ++i) v[size_t(i)] = block[i];
    v[32] = 0.75f, v[33] = -0.125f;  // scale 2^-3: 6 and -1
    v[95] = 6.5f;                    // scale 2: 3.25 -> 3
    test.view().encode(1, v.data());
    const uint8_t* row = test.page(0) + 64;
    EXPECT_EQ(row[0], 0xe7);
    EXPECT_EQ(row[1], 0x45);
    EXPECT_EQ(row[2], 0xa3);
    EXPECT_EQ(row[3], 0x81);
    EXPECT_EQ(row[16], 0xa7);
    EXPECT_EQ(row[47], 0x50);
    const uint8_t* scales = test.page(0) + 2 * 64 + 4;
    EXPECT_EQ(scales[0], 127);
    EXPECT_EQ(scales[1], 124);
    EXPECT_EQ(scales[2], 128);
    EXPECT_EQ(scales[3], 1);  // a block of zeros: 2^-126
}

TEST(GoldenBytes, E2m1TiesGoToTheEvenCode) {
    TestCache test(shape_of(SMLA_INDEX_MXFP4_68, 1, 1));
    std::vector<float> v(128, 0.f);
    const float ties[8] = {6.f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.f};
    for (int i = 0; i < 8; ++i) v[size_t(i)] = ties[i], v[size_t(16 + i)] = -ties[i];
    test.view().encode(0, v.data());
    const uint8_t positive[4] = {0x07, 0x22, 0x44, 0x66}, negative[4] = {0x8f, 0xaa, 0xcc, 0xee};
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(test.page(0)[i], positive[i]) << i;
        EXPECT_EQ(test.page(0)[8 + i], negative[i]) << i;
    }
}

TEST(GoldenBytes, PerTensorByHand) {
    for (const smla_format format : {SMLA_FP8_576, SMLA_FP8_512}) {
        CacheShape shape = shape_of(format, 2, 1);
        shape.scale = 0.5f;
        TestCache test(shape);
        std::vector<float> v(size_t(test.width()), 0.f);
        v[0] = 224.f, v[1] = 1e6f, v[2] = -300.f, v[3] = 0.5f, v.back() = -1.f;
        test.view().encode(1, v.data());
        const uint8_t* row = test.page(0) + test.record;
        EXPECT_EQ(row[0], 0x7e);
        EXPECT_EQ(row[1], 0x7e);  // saturated
        EXPECT_EQ(row[2], 0xfe);
        EXPECT_EQ(row[3], 0x38);
        EXPECT_EQ(row[test.record - 1], 0xc0);
    }
}

TEST(GoldenBytes, PlainRows) {
    CacheShape shape = shape_of(SMLA_ROW_BF16, 2, 1);
    shape.width = 3;
    TestCache bf16(shape);
    const float values[3] = {1.f, -2.5f, 1.f + 0x3p-9f};  // the last is nearer to 1 + 2^-7
    bf16.view().encode(1, values);
    const uint8_t expected[6] = {0x80, 0x3f, 0x20, 0xc0, 0x81, 0x3f};
    EXPECT_EQ(std::memcmp(bf16.page(0) + 6, expected, 6), 0);

    for (const smla_format format : {SMLA_ROW_F32, SMLA_STATE_F32, SMLA_ROW_F64, SMLA_STATE_F64}) {
        TestCache test(shape_of(format, 2, 1));
        std::vector<double> v;
        for (int i = 0; i < test.width(); ++i) v.push_back(1. / (i + 3));
        test.view().encode(1, v.data());
        const bool f64 = format == SMLA_ROW_F64 || format == SMLA_STATE_F64;
        for (int i = 0; i < test.width(); ++i) {
            if (f64) EXPECT_EQ(f64_at(test.page(0) + test.record + 8 * i), v[size_t(i)]);
            else EXPECT_EQ(f32_at(test.page(0) + test.record + 4 * i), float(v[size_t(i)]));
        }
    }
}

}  // namespace
}  // namespace smla::testing
