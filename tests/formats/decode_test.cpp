// Decoding by exhaustion: every code with every kind of scale, against the formulas of the formats in double.
#include "formats/test_cache.h"

#include <cmath>

namespace smla::testing {
namespace {

// Equal, or NaN on both sides. Floats compare with the double result rounded once: code * scale has at most
// 28 bits.
void expect_value(double got, double want, bool f32, const std::string& where) {
    if (std::isnan(want)) EXPECT_TRUE(std::isnan(got)) << where;
    else EXPECT_EQ(got, f32 ? double(float(want)) : want) << where;
}

struct Decoded {
    std::vector<float> f32;
    std::vector<double> f64;
    explicit Decoded(const TestCache& test, int64_t row)
        : f32(size_t(test.width())), f64(size_t(test.width())) {
        test.view().decode(row, f32.data());
        test.view().decode(row, f64.data());
    }
    void expect(size_t i, double want, const std::string& where) const {
        expect_value(f32[i], want, true, where + " f32");
        expect_value(f64[i], want, false, where + " f64");
    }
};

void put_f32(uint8_t* at, float value) { std::memcpy(at, &value, 4); }

// Values that a caller's own writer may have stored: powers of two and not, tiny, huge, the era-A floor
// FLT_MIN.
constexpr float kScales[] = {1.f, 0x1p-13f, 0.75f, 1.f / 3.f, 1e-30f, 0x1p-126f, 0x1p100f, 3.14159f};

TEST(FieldBugs, T39_AllE4m3CodesOfTileScaledRows) {
    for (const smla_format format : {SMLA_FP8_656, SMLA_FP8_528})
        for (const float scale : kScales) {
            TestCache test(shape_of(format, 2, 1));
            for (int half = 0; half < 2;
                 ++half) {  // 512 codes in a row: all 256 twice, in tiles of two scales
                uint8_t* row = test.page(0) + half * test.record;
                for (int i = 0; i < 512; ++i) row[i] = uint8_t(half ? 255 - i : i);
                for (int t = 0; t < 4; ++t) put_f32(row + 512 + 4 * t, scale * float(t + 1));
                std::memset(row + 528, 0, size_t(test.record - 528));
            }
            for (int half = 0; half < 2; ++half) {
                const Decoded decoded(test, half);
                for (int i = 0; i < 512; ++i) {
                    const uint8_t code = uint8_t(half ? 255 - i : i);
                    const double want = e4m3_by_formula(code) * double(scale * float(i / 128 + 1));
                    decoded.expect(size_t(i), want, text("code ", int(code), " scale ", double(scale)));
                }
            }
        }
}

TEST(FieldBugs, T39_AllE4m3CodesOfPerTensorRows) {
    for (const smla_format format : {SMLA_FP8_576, SMLA_FP8_512})
        for (const float scale : kScales) {
            CacheShape shape = shape_of(format, 1, 1);
            shape.scale = scale;
            TestCache test(shape);
            for (int i = 0; i < test.width(); ++i) test.page(0)[i] = uint8_t(i);
            const Decoded decoded(test, 0);
            for (int i = 0; i < test.width(); ++i)
                decoded.expect(size_t(i), e4m3_by_formula(i & 255) * double(scale), text("code ", i & 255));
        }
}

TEST(FieldBugs, T39_AllE4m3CodesOfIndexKeys) {
    for (const float scale : kScales) {
        TestCache test(shape_of(SMLA_INDEX_FP8_132, 2, 1));
        for (int i = 0; i < 256; ++i) test.page(0)[i] = uint8_t(i);  // token 0: 0..127, token 1: 128..255
        put_f32(test.page(0) + 256, scale);
        put_f32(test.page(0) + 260, 2 * scale);
        for (int row = 0; row < 2; ++row) {
            const Decoded decoded(test, row);
            for (int i = 0; i < 128; ++i) {
                const double want = e4m3_by_formula(128 * row + i) * double(row ? 2 * scale : scale);
                decoded.expect(size_t(i), want, text("code ", 128 * row + i));
            }
        }
    }
}

// Every E8M0 byte with every e4m3 code: 32 pages of 8 tokens, scale byte = row, codes shifted so that all are
// met.
TEST(FieldBugs, T39_AllE8m0ScalesWithAllCodesOf584) {
    TestCache test(shape_of(SMLA_FP8_584, 8, 32));
    for (int row = 0; row < 256; ++row) {
        uint8_t* page = test.page(row / 8);
        for (int i = 0; i < 448; ++i) page[row % 8 * 576 + i] = uint8_t(i + 64 * (row & 1));
        std::memset(page + row % 8 * 576 + 448, 0, 128);
        for (int t = 0; t < 7; ++t) page[8 * 576 + row % 8 * 8 + t] = uint8_t(row + 37 * t);
    }
    for (int row = 0; row < 256; ++row) {
        const Decoded decoded(test, row);
        for (int i = 0; i < 448; ++i) {
            const int byte = (row + 37 * (i / 64)) & 255, code = (i + 64 * (row & 1)) & 255;
            const double scale = byte == 255 ? std::nan("") : std::pow(2., byte - 127);
            decoded.expect(size_t(i), e4m3_by_formula(code) * scale, text("code ", code, " byte ", byte));
        }
    }
}

TEST(FieldBugs, T39_AllE8m0ScalesWithAllE2m1Codes) {
    constexpr double magnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    TestCache test(shape_of(SMLA_INDEX_MXFP4_68, 8, 8));
    for (int row = 0; row < 64; ++row) {
        uint8_t* page = test.page(row / 8);
        for (int i = 0; i < 64; ++i) page[row % 8 * 64 + i] = uint8_t(16 * ((i + 5) & 15) | (i & 15));
        for (int t = 0; t < 4; ++t) page[8 * 64 + row % 8 * 4 + t] = uint8_t(4 * row + t);
    }
    for (int row = 0; row < 64; ++row) {
        const Decoded decoded(test, row);
        for (int i = 0; i < 128; ++i) {
            const int code = i & 1 ? (i / 2 + 5) & 15 : (i / 2) & 15, byte = 4 * row + i / 32;
            const double scale = byte == 255 ? std::nan("") : std::pow(2., byte - 127);
            const double value = code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
            decoded.expect(size_t(i), value * scale, text("code ", code, " byte ", byte));
        }
    }
}

TEST(Decode, EveryBf16PatternOfTheRope) {
    for (const smla_format format : {SMLA_FP8_656, SMLA_FP8_584, SMLA_ROW_BF16}) {
        CacheShape shape = shape_of(format, 1024, 1);
        if (format == SMLA_ROW_BF16) shape.width = 64;
        TestCache test(shape);
        std::memset(test.page(0), 0, size_t(test.page_stride));
        const int64_t rope = format == SMLA_FP8_656 ? 528 : format == SMLA_FP8_584 ? 448 : 0;
        const int64_t stride = format == SMLA_FP8_584 ? 576 : test.record;
        for (int bits = 0; bits < 65536; ++bits) {
            const uint16_t stored = uint16_t(bits);
            std::memcpy(test.page(0) + bits / 64 * stride + rope + 2 * (bits % 64), &stored, 2);
        }
        for (int row = 0; row < 1024; ++row) {
            const Decoded decoded(test, row);
            for (int i = 0; i < 64; ++i) {
                const uint32_t bits = uint32_t(64 * row + i) << 16;
                float want;
                std::memcpy(&want, &bits, 4);
                decoded.expect(size_t(test.width() - 64 + i), want, text("bf16 bits ", 64 * row + i));
            }
        }
    }
}

// The double path multiplies in double: a product of 4 by 24 bits is exact there and rounded in float.
TEST(Decode, DoubleKeepsTheProduct) {
    TestCache test(shape_of(SMLA_FP8_656, 1, 1));
    std::memset(test.page(0), 0, 656);
    test.page(0)[0] = 0x3f;  // 1.875
    put_f32(test.page(0) + 512, 1.f / 3.f);
    const Decoded decoded(test, 0);
    EXPECT_EQ(decoded.f64[0], 1.875 * double(1.f / 3.f));
    EXPECT_EQ(decoded.f32[0], 1.875f * (1.f / 3.f));
    EXPECT_NE(double(decoded.f32[0]), decoded.f64[0]);
}

TEST(Decode, ScaleByPointerOverrides) {
    for (const smla_format format : {SMLA_FP8_576, SMLA_FP8_512}) {
        TestCache test(shape_of(format, 1, 1));
        std::memset(test.page(0), 0x38, size_t(test.record));
        float scale = 3.f;
        test.cache.scale = 0.f;
        test.cache.scale_device = &scale;
        check_cache("args.cache", test.cache, format_bit(format));
        EXPECT_EQ(Decoded(test, 0).f32[5], 3.f);
        scale = 5.f;  // read anew by each call
        EXPECT_EQ(Decoded(test, 0).f32[5], 5.f);
    }
}

// A cache of another device keeps its scale there: resolving it must not follow the pointer.
TEST(Decode, ScaleOfADeviceIsNotRead) {
    TestCache test(shape_of(SMLA_FP8_576, 1, 1));
    test.cache.device_type = SMLA_CUDA;
    test.cache.scale_device = reinterpret_cast<const float*>(uintptr_t(64));
    check_cache("args.cache", test.cache, format_bit(SMLA_FP8_576));
    EXPECT_EQ(test.view().scale, test.cache.scale);
}

// Nor does a pointer lead anywhere where the format has no scale, or where only sizes are asked for.
TEST(Decode, AScaleThatNothingNeedsIsNotRead) {
    for (const smla_format format : kAllFormats) {
        TestCache test(shape_of(format, 1, 1));
        test.cache.scale_device = reinterpret_cast<const float*>(uintptr_t(64));
        const CheckContext sizes = kOnHost.shapes_only();
        check_cache("args.cache", test.cache, format_bit(format), per_tensor(format) ? sizes : kOnHost);
        const CacheView view(test.cache);
        if (!per_tensor(format)) Decoded(test, 0);
    }
}

}  // namespace
}  // namespace smla::testing
