// The writer rules: which scale, how close the stored values come, what becomes of NaN and infinity.
#include "formats/test_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace smla::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Tiles {
    int codes, tile;
    double largest, floor;      // of the code; of amax
    double relative, absolute;  // rounding error of a code: half a step of the value, or of the scaled zero
};
// Half a step: e4m3 has 4 significant bits, so at most 2^-4 of the value, or 2^-10 below the normal range;
// e2m1 has 2, so 2^-2 of the value or 2^-2 below 1. 1e-4 is the floor of the scale in rows (so 448e-4 of
// amax), of amax in pages.
Tiles tiles_of(smla_format format) {
    switch (format) {
        case SMLA_FP8_656:
        case SMLA_FP8_528: return {512, 128, 448., 448e-4, 0x1p-4, 0x1p-10};
        case SMLA_FP8_528_G32:
        case SMLA_FP8_528_G32_SPLIT: return {512, 32, 448., 1e-4, 0x1p-4, 0x1p-10};
        case SMLA_FP8_584: return {448, 64, 448., 1e-4, 0x1p-4, 0x1p-10};
        case SMLA_INDEX_FP8_132: return {128, 128, 448., 1e-4, 0x1p-4, 0x1p-10};
        default: return {128, 32, 6., 6 * 0x1p-126, 0x1p-2, 0x1p-2};
    }
}
constexpr smla_format kTileFormats[] = {SMLA_FP8_656,          SMLA_FP8_528,        SMLA_FP8_584,
                                        SMLA_INDEX_FP8_132,    SMLA_INDEX_MXFP4_68, SMLA_FP8_528_G32,
                                        SMLA_FP8_528_G32_SPLIT};

double amax_of(const float* values, int n) {
    double out = 0;
    for (int i = 0; i < n; ++i) out = std::max(out, double(std::fabs(values[i])));
    return out;
}

std::vector<float> round_trip(TestCache& test, int64_t row, const std::vector<float>& values) {
    std::vector<float> out(values.size());
    test.view().encode(row, values.data());
    test.view().decode(row, out.data());
    return out;
}

void expect_close(smla_format format, const std::vector<float>& in, const std::vector<float>& out) {
    const Tiles tiles = tiles_of(format);
    for (int i = 0; i < int(in.size()); ++i) {
        const double x = in[size_t(i)], error = std::fabs(double(out[size_t(i)]) - x);
        // bf16: half a step of 8 significant bits, or of the subnormals' 2^-133
        double bound = std::max(std::fabs(x) * 0x1p-8, 0x1p-134);
        if (i < tiles.codes) {
            const double amax = amax_of(in.data() + i / tiles.tile * tiles.tile, tiles.tile);
            const double scale =
                2 * std::max(amax, tiles.floor) / tiles.largest;  // rounded up: below twice the ratio
            bound = std::max(std::fabs(x) * tiles.relative, scale * tiles.absolute);
        }
        ASSERT_LE(error, bound) << find_format(format)->name << " value " << i << " = " << x;
    }
}

TEST(Encode, RoundTripsWithinHalfAStep) {
    for (const smla_format format : kTileFormats) {
        TestCache test(shape_of(format, 4, 1));
        for (uint32_t seed = 0; seed < 200; ++seed) {
            std::vector<float> values = random_values(size_t(test.width()), seed);
            const float factor = std::ldexp(1.f, int(seed % 40) - 20);
            for (float& v : values) v *= factor;
            expect_close(format, values, round_trip(test, seed % 4, values));
        }
    }
}

TEST(Encode, ZeroAndTinyTiles) {
    for (const smla_format format : kTileFormats) {
        TestCache test(shape_of(format, 1, 1));
        std::vector<float> values(size_t(test.width()), 0.f);
        for (const float v : round_trip(test, 0, values)) EXPECT_EQ(v, 0.f);
        for (const float tiny : {1e-4f, 1e-6f, 1e-20f, 0x1p-140f, -0x1p-149f}) {
            for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 ? tiny : -tiny / 2;
            expect_close(format, values, round_trip(test, 0, values));
        }
    }
}

bool nvfp4(smla_format format) { return format >= SMLA_NVFP4_288; }

// Decoding by a power of two is exact, so a decoded row holds nothing that encoding would round again. (The
// scales of nvfp4 are no powers of two: in its tiny groups the second scale is another.)
TEST(Encode, ASecondRoundTripChangesNothing) {
    for (const smla_format format : kAllFormats) {
        if (nvfp4(format)) continue;
        TestCache test(shape_of(format, 2, 1)), again(shape_of(format, 2, 1));
        for (uint32_t seed = 0; seed < 20; ++seed) {
            const std::vector<float> once = round_trip(test, 1, random_values(size_t(test.width()), seed));
            EXPECT_EQ(round_trip(again, 1, once), once) << find_format(format)->name;
        }
    }
}

float latent_scale(float amax) {
    TestCache test(shape_of(SMLA_FP8_656, 1, 1));
    std::vector<float> values(576, 0.f);
    values[200] = -amax;  // tile 1
    test.view().encode(0, values.data());
    float scale;
    std::memcpy(&scale, test.page(0) + 512 + 4, 4);
    return scale;
}

uint8_t page_scale_byte(float amax) {
    TestCache test(shape_of(SMLA_FP8_584, 2, 1));
    std::vector<float> values(512, 0.f);
    values[130] = amax;  // tile 2
    test.view().encode(1, values.data());
    return test.page(0)[2 * 576 + 8 + 2];
}

uint8_t mxfp4_scale_byte(float amax) {
    TestCache test(shape_of(SMLA_INDEX_MXFP4_68, 1, 1));
    std::vector<float> values(128, 0.f);
    values[97] = amax;  // block 3
    test.view().encode(0, values.data());
    return test.page(0)[64 + 3];
}

TEST(Encode, ScalesOfLatentTiles) {
    EXPECT_EQ(latent_scale(336.f), 1.f);
    EXPECT_EQ(latent_scale(0.f), 0x1p-13f);
    EXPECT_EQ(latent_scale(448.f), 1.f);
    EXPECT_EQ(latent_scale(std::nextafter(448.f, 449.f)), 2.f);
    EXPECT_EQ(latent_scale(std::nextafter(448.f, 0.f)), 1.f);
    EXPECT_EQ(latent_scale(0x1p-13f * 448.f), 0x1p-13f);  // the floor ends where amax / 448 passes 2^-13
    EXPECT_EQ(latent_scale(std::nextafter(0x1p-13f * 448.f, 1.f)), 0x1p-12f);
    EXPECT_EQ(latent_scale(3e38f), 0x1p120f);
}

TEST(Encode, ScaleBytesOfPagePackedTiles) {
    EXPECT_EQ(page_scale_byte(0.f), 105);  // floor before the division: 1e-4 / 448
    EXPECT_EQ(page_scale_byte(1e-5f), 105);
    EXPECT_EQ(page_scale_byte(0.01f), 112);
    EXPECT_EQ(page_scale_byte(0.05f), 114);
    EXPECT_EQ(page_scale_byte(1.f), 119);
    EXPECT_EQ(page_scale_byte(336.f), 127);
    EXPECT_EQ(page_scale_byte(448.f), 127);
    EXPECT_EQ(page_scale_byte(std::nextafter(448.f, 449.f)), 128);
    for (int e = -20; e < 119; ++e)
        EXPECT_EQ(page_scale_byte(std::ldexp(448.f, e)), std::max(e + 127, 105)) << e;
}

TEST(Encode, ScaleBytesOfMxfp4Blocks) {
    for (int e = -126; e <= 125; ++e) {
        EXPECT_EQ(mxfp4_scale_byte(std::ldexp(6.f, e)), e + 127) << e;
        if (e > -124) {
            EXPECT_EQ(mxfp4_scale_byte(std::nextafter(std::ldexp(6.f, e), kInf)), e + 128) << e;
        }
    }
    EXPECT_EQ(mxfp4_scale_byte(0.f), 1);
    EXPECT_EQ(mxfp4_scale_byte(0x1p-149f), 1);
}

// By sglang's rule for V4: thresholds that a value has to exceed, in blocks of scale 2 and in one whose scale
// is the floor, 2^-13.
TEST(Encode, TiesOfMxfp4BlocksGoToZero) {
    const float halves[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.f};
    TestCache test(shape_of(SMLA_INDEX_MXFP4_68, 1, 1));
    for (const smla_writer writer : {0, 1, 4, 5}) {
        test.cache.writer = writer;
        const bool floor = writer & SMLA_WRITER_SCALE_FLOOR, zero = writer & SMLA_WRITER_TIES_TO_ZERO;
        std::vector<float> values(128, 0.f);
        for (size_t i = 0; i < 7; ++i) {
            const float up = std::nextafter(halves[i], 9.f), down = std::nextafter(halves[i], 0.f);
            const float all[] = {halves[i], -halves[i], up, -up, down};
            for (size_t j = 0; j < 4; ++j) values[4 * i + j] = 2 * all[j];
            values[32 + i] = 2 * down;
        }
        values[28] = values[60] = 12.f;
        values[64] = 1e-6f;  // block 2: scale of the floor, or of itself
        values[65] = -1e-6f;
        test.view().encode(0, values.data());
        const uint8_t* const page = test.page(0);
        const auto code = [&](size_t i) { return int(page[i / 2] >> 4 * (i % 2) & 15); };
        const int scales[] = {128, 128, floor ? 114 : 105, floor ? 114 : 1};
        for (size_t t = 0; t < 4; ++t) EXPECT_EQ(int(page[64 + t]), scales[t]) << writer << " " << t;
        for (size_t i = 0; i < 7; ++i) {
            const int below = int(i), even = below + below % 2, tie = zero ? below : even;
            EXPECT_EQ(code(4 * i), tie) << writer << " " << halves[i];
            EXPECT_EQ(code(4 * i + 1), zero && !tie ? 0 : tie + 8) << writer << " " << halves[i];
            EXPECT_EQ(code(4 * i + 2), below + 1) << writer;
            EXPECT_EQ(code(4 * i + 3), below + 9) << writer;
            EXPECT_EQ(code(32 + i), below) << writer;
        }
        EXPECT_EQ(code(64), floor ? 0 : 6) << writer;  // 1e-6 * 2^22 = 4.19
        EXPECT_EQ(code(65), floor ? (zero ? 0 : 8) : 14) << writer;
    }
}

// The floor is of the scale, amax / 6, not of amax.
TEST(Encode, FloorOfMxfp4Scales) {
    TestCache test(shape_of(SMLA_INDEX_MXFP4_68, 1, 1));
    test.cache.writer = SMLA_WRITER_SCALE_FLOOR;
    for (int e = -30; e <= 125; ++e)
        for (const bool above : {false, true}) {
            std::vector<float> values(128, 0.f);
            values[97] = above ? std::nextafter(std::ldexp(6.f, e), kInf) : std::ldexp(6.f, e);
            test.view().encode(0, values.data());
            EXPECT_EQ(test.page(0)[64 + 3], std::max(e + 127 + above, 114)) << e;
        }
}

TEST(Encode, IndexScaleIsAPowerOfTwo) {
    TestCache test(shape_of(SMLA_INDEX_FP8_132, 2, 1));
    const std::pair<float, float> cases[] = {
        {0.f, 0x1p-22f}, {1.f, 0x1p-8f}, {336.f, 1.f}, {448.f, 1.f}, {449.f, 2.f}};
    for (const auto& [amax, expected] : cases) {
        std::vector<float> values(128, 0.f);
        values[77] = amax;
        test.view().encode(1, values.data());
        float scale;
        std::memcpy(&scale, test.page(0) + 256 + 4, 4);
        EXPECT_EQ(scale, expected) << amax;
    }
}

TEST(Encode, PerTensorRoundsAndSaturates) {
    for (const smla_format format : {SMLA_FP8_576, SMLA_FP8_512})
        for (const float scale : {0.5f, 1.f, 0.013f}) {
            CacheShape shape = shape_of(format, 1, 1);
            shape.scale = scale;
            TestCache test(shape);
            const std::vector<float> in = random_values(size_t(test.width()), 7),
                                     out = round_trip(test, 0, in);
            for (size_t i = 0; i < in.size(); ++i) {
                const double x = in[i], top = 448. * double(scale);
                // two f32 roundings (quotient and product) widen half a step of e4m3 by 2^-23 of the value
                const double bound =
                    std::max(std::fabs(x) * (0x1p-4 + 0x1p-22), double(scale) * (0x1p-10 + 0x1p-22));
                if (std::fabs(x) > top) EXPECT_FLOAT_EQ(out[i], float(std::copysign(top, x)));
                else EXPECT_LE(std::fabs(double(out[i]) - x), bound) << x;
            }
        }
}

// A NaN must be seen by whoever reads its tile, and by nobody else.
TEST(Encode, NanStaysInItsTile) {
    for (const smla_format format : kAllFormats) {
        TestCache test(shape_of(format, 3, 1));
        const int width = test.width();
        const std::vector<float> clean = random_values(size_t(width), 3);
        const std::vector<float> before = round_trip(test, 1, clean);
        for (const float nan : {kNan, -kNan}) {
            for (int at = 0; at < width; at += 31) {
                std::vector<float> values = clean;
                values[size_t(at)] = nan;
                const std::vector<float> out = round_trip(test, 1, values);
                EXPECT_TRUE(std::isnan(out[size_t(at)])) << find_format(format)->name << " " << at;
                const int block = nan_group(format, at);
                const bool tiled =
                    find_format(format)->scale != ScaleKind::none && !per_tensor(format) && !nvfp4(format);
                const int tile = tiled ? tiles_of(format).tile : 1;
                std::vector<float> neighbours = values, stored = out;
                for (int i = 0; i < width; ++i) {
                    if (i / block == at / block && nan_group(format, i) == block) {
                        EXPECT_TRUE(std::isnan(out[size_t(i)])) << i;
                        neighbours[size_t(i)] = stored[size_t(i)] = 0.f;
                    } else if (i / tile != at / tile) {
                        EXPECT_EQ(out[size_t(i)], before[size_t(i)]) << i;
                    }
                }
                if (tiled) expect_close(format, neighbours, stored);  // the scale is that of the numbers
            }
        }
        const std::vector<float> all(size_t(width), kNan);
        for (const float v : round_trip(test, 2, all)) EXPECT_TRUE(std::isnan(v));
        const std::vector<double> doubles(size_t(width), std::nan(""));
        test.view().encode(0, doubles.data());
        std::vector<double> back(size_t(width), 0.);
        test.view().decode(0, back.data());
        for (const double v : back) EXPECT_TRUE(std::isnan(v));
    }
}

// Infinity takes the largest scale, so it reads back as infinity in f32 (448 * 2^127); per-tensor scales and
// those of nvfp4 saturate it.
TEST(Encode, InfinityIsNotLost) {
    for (const smla_format format : kAllFormats) {
        CacheShape shape = shape_of(format, 1, 1);
        TestCache test(shape);
        std::vector<float> values(size_t(test.width()), 1.f);
        values[3] = kInf, values[40] = -kInf;
        const std::vector<float> out = round_trip(test, 0, values);
        const float top = per_tensor(format) ? 448.f * 0.5f : nvfp4(format) ? 6.f * 448.f : kInf;
        EXPECT_EQ(out[3], top) << find_format(format)->name;
        EXPECT_EQ(out[40], -top) << find_format(format)->name;
        for (const float v : out) EXPECT_FALSE(std::isnan(v));
    }
}

TEST(Encode, DoublesRoundOnceToFloatFirst) {
    for (const smla_format format : kAllFormats) {
        TestCache a(shape_of(format, 2, 1)), b(shape_of(format, 2, 1));
        std::vector<double> doubles;
        for (const float v : random_values(size_t(a.width()), 11))
            doubles.push_back(double(v) * (1 + 0x1p-30));
        const std::vector<float> floats(doubles.begin(), doubles.end());
        a.view().encode(1, doubles.data());
        b.view().encode(1, floats.data());
        const bool f64 = format == SMLA_ROW_F64 || format == SMLA_STATE_F64;
        const bool same = std::memcmp(a.page(0), b.page(0), size_t(a.page_stride)) == 0;
        EXPECT_EQ(same, !f64) << find_format(format)->name;
        std::vector<double> back(doubles.size());
        a.view().decode(1, back.data());
        if (f64) {
            EXPECT_EQ(back, doubles);
        }
    }
}

}  // namespace
}  // namespace smla::testing
