// fp8_528_g32* and nvfp4_*: the worked examples of other engines' writers, every code and scale, scales next
// to powers of two, and random rows against the rules spelt out here in double.
#include <source_dir.h>
#include "formats/test_cache.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

namespace smla::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr smla_format kMxFp8[] = {SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT};
constexpr smla_format kNvfp4[] = {SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384, SMLA_NVFP4_352};
constexpr double kE2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Groups of e2m1 in a record: how many, and where the scale of one lies among the scales.
int groups_of(smla_format format) { return format == SMLA_NVFP4_384 ? 28 : 32; }
int scale_byte(smla_format format, int g) { return format == SMLA_NVFP4_352 ? 8 * (g & 3) + (g >> 2) : g; }

// The code of the nearest value of a grid, ties to the even code; past its end: the end.
template <class Grid>
int nearest(double value, int codes, const Grid& grid) {
    int best = 0;
    for (int c = 1; c < codes; ++c) {
        const double now = std::fabs(grid(c) - value), then = std::fabs(grid(best) - value);
        if (now < then || (now == then && c % 2 == 0)) best = c;
    }
    return best;
}
uint8_t e4m3_code(double value) {
    if (std::isnan(value)) return std::signbit(value) ? 0xff : 0x7f;
    static const std::vector<double> grid = [] {
        std::vector<double> out;
        for (int c = 0; c < 127; ++c) out.push_back(e4m3_by_formula(c));
        return out;
    }();
    const int code = nearest(std::min(std::fabs(value), 448.), 127, [](int c) { return grid[size_t(c)]; });
    return uint8_t(code | (std::signbit(value) ? 128 : 0));
}
int e2m1_code(double value) {
    const int code = nearest(std::min(std::fabs(value), 6.), 8, [](int c) { return kE2m1[c]; });
    return code | (std::signbit(value) ? 8 : 0);
}

// A row as the format's writer must store it: values, then scales. Where engines multiply or divide in f32,
// so does this.
struct Record {
    std::vector<uint8_t> values, scales;
};

double tile_amax(const float* values, int n) {
    double out = 0;
    for (int i = 0; i < n; ++i)
        if (!std::isnan(values[i])) out = std::max(out, double(std::fabs(values[i])));
    return out;
}

// What codes of nvfp4_288 stand for.
void round_to_fp4(std::vector<float>& x) {
    for (size_t g = 0; g < x.size(); g += 16) {
        const float sixth = float(tile_amax(&x[g], 16)) * (1.f / 6.f);
        const double scale = e4m3_by_formula(e4m3_code(std::max(double(sixth), 0x1p-9)));
        for (size_t i = g; i < g + 16; ++i) {
            const int code = e2m1_code(double(x[i] / float(scale)));
            x[i] = float(kE2m1[code & 7] * (code & 8 ? -1 : 1) * scale);
        }
    }
}

Record mx_record(std::vector<float> x, smla_writer writer) {
    Record out;
    if (writer & SMLA_WRITER_BF16_FIRST)
        for (float& v : x) v = round_to_bf16(v);
    if (writer & SMLA_WRITER_FP4_VALUES) round_to_fp4(x);
    for (int t = 0; t < 16; ++t) {
        const double amax = tile_amax(&x[size_t(32 * t)], 32);
        const double scale =
            writer & SMLA_WRITER_SCALE_FLOOR ? std::max(amax / 448, 1e-4) : std::max(amax, 1e-4) / 448;
        int e = -127;
        while (std::ldexp(1., e) < double(float(scale)) && e < 127) ++e;
        for (int i = 0; i < 32; ++i)
            out.values.push_back(e4m3_code(double(x[size_t(32 * t + i)]) * std::ldexp(1., -e)));
        out.scales.push_back(uint8_t(e + 127));
    }
    return out;
}

Record nv_record(std::vector<float> x, smla_format format, smla_writer writer) {
    Record out;
    if (writer & SMLA_WRITER_BF16_FIRST)
        for (float& v : x) v = round_to_bf16(v);
    const bool floor = format != SMLA_NVFP4_384,
               multiply = format == SMLA_NVFP4_384 || format == SMLA_NVFP4_352;
    out.scales.assign(32, 0);
    const int groups = groups_of(format);
    for (int g = 0; g < groups; ++g) {
        const float amax = float(tile_amax(&x[size_t(16 * g)], 16));
        const float sixth = format == SMLA_NVFP4_384 ? amax / 6.f : amax * (1.f / 6.f);
        const uint8_t code = e4m3_code(floor ? std::max(double(sixth), 0x1p-9) : double(sixth));
        const float scale = float(e4m3_by_formula(code));
        out.scales[size_t(scale_byte(format, g))] = code;
        for (int i = 16 * g; i < 16 * g + 16; i += 2) {
            int pair[2];
            for (int j = 0; j < 2; ++j) {
                const float v = x[size_t(i + j)];
                const float share = scale == 0 ? std::copysign(0.f, v)
                                    : multiply ? v * (1.f / scale)
                                               : v / scale;
                pair[j] = e2m1_code(double(share));
            }
            out.values.push_back(uint8_t(pair[0] | pair[1] << 4));
        }
    }
    for (size_t i = size_t(16 * groups); i < x.size(); ++i) {
        if (format == SMLA_NVFP4_352) out.values.push_back(e4m3_code(double(x[i])));
        if (format != SMLA_NVFP4_384) continue;
        const uint16_t bits = f32_to_bf16(x[i]);
        out.values.push_back(uint8_t(bits));
        out.values.push_back(uint8_t(bits >> 8));
    }
    return out;
}

Record record_by_rule(const std::vector<float>& x, smla_format format, smla_writer writer) {
    return format < SMLA_NVFP4_288 ? mx_record(x, writer) : nv_record(x, format, writer);
}

// What a page of several tokens holds of one: its values and its scales.
Record stored(TestCache& test, int64_t row) {
    const bool split = page_packed(test.shape.format);
    const int64_t n = test.shape.page_tokens, i = row % n;
    const int64_t values = record_by_rule(std::vector<float>(size_t(test.width())), test.shape.format, 0)
                               .values.size(),
                  scales = test.record - values;
    const uint8_t* page = test.page(row / n);
    const uint8_t* at = page + i * (split ? values : test.record);
    const uint8_t* behind = split ? page + n * values + i * scales : at + values;
    return {{at, at + values}, {behind, behind + scales}};
}

void expect_record(const Record& got, const Record& want, const std::string& where) {
    EXPECT_EQ(got.values, want.values) << where;
    EXPECT_EQ(got.scales, want.scales) << where;
}

std::vector<smla_writer> writers_of(smla_format format) {
    if (format == SMLA_FP8_528_G32 || format == SMLA_FP8_528_G32_SPLIT)
        return {0, 1, 2, 3, SMLA_WRITER_FP4_VALUES, SMLA_WRITER_FP4_VALUES | 3};
    if (format == SMLA_NVFP4_288 || format == SMLA_NVFP4_288_SPLIT) return {0, 2};
    return {0};
}

std::vector<smla_format> every_format() {
    std::vector<smla_format> out(std::begin(kMxFp8), std::end(kMxFp8));
    out.insert(out.end(), std::begin(kNvfp4), std::end(kNvfp4));
    return out;
}

// ------------------------------------------------------------------ the examples of other engines

struct Example {
    smla_format format;
    smla_writer writer;
    int first, count;  // of the 512 inputs
};
const std::map<std::string, Example> kExamples = {
    {"mxfp8_528.interleaved.vllm_floor", {SMLA_FP8_528_G32, 0, 0, 512}},
    {"mxfp8_528.split.vllm_floor", {SMLA_FP8_528_G32_SPLIT, 0, 0, 512}},
    {"mxfp8_528.interleaved.sglang_floor", {SMLA_FP8_528_G32, SMLA_WRITER_SCALE_FLOOR, 0, 512}},
    {"mxfp8_528.split.sglang_floor", {SMLA_FP8_528_G32_SPLIT, SMLA_WRITER_SCALE_FLOOR, 0, 512}},
    {"mxfp8_528.interleaved.vllm_floor.two_tokens", {SMLA_FP8_528_G32, 0, 0, 512}},
    {"mxfp8_528.split.vllm_floor.two_tokens", {SMLA_FP8_528_G32_SPLIT, 0, 0, 512}},
    {"nvfp4_288.interleaved", {SMLA_NVFP4_288, 0, 0, 512}},
    {"nvfp4_288.split", {SMLA_NVFP4_288_SPLIT, 0, 0, 512}},
    {"nvfp4_288.interleaved.two_tokens", {SMLA_NVFP4_288, 0, 0, 512}},
    {"nvfp4_288.split.two_tokens", {SMLA_NVFP4_288_SPLIT, 0, 0, 512}},
    {"nvfp4_384", {SMLA_NVFP4_384, 0, 0, 512}},
    {"nvfp4_352", {SMLA_NVFP4_352, 0, 0, 512}},
    {"index_68", {SMLA_INDEX_MXFP4_68, 0, 192, 128}},
    {"index_132", {SMLA_INDEX_FP8_132, 0, 192, 128}},
};

std::vector<float> example_input(const std::string& name) {
    std::vector<float> out(512, 0.f);
    if (name == "one_large") out[37] = -1000.f;
    if (name == "ramp")
        for (int i = 0; i < 512; ++i) out[size_t(i)] = float(i - 256) / 64.f;
    return out;
}

// "f8 00*3": bytes in hex, some of them several times.
std::vector<uint8_t> bytes_of(const std::string& runs) {
    std::vector<uint8_t> out;
    std::istringstream words(runs);
    for (std::string word; words >> word;) {
        const size_t times = word.size() > 2 ? std::stoul(word.substr(3)) : 1;
        out.insert(out.end(), times, uint8_t(std::stoi(word.substr(0, 2), nullptr, 16)));
    }
    return out;
}

TEST(MxRecords, WorkedExamplesByteForByte) {
    std::ifstream file(SMLA_SOURCE_DIR "/tests/formats/worked_examples.json");
    const auto examples = nlohmann::json::parse(file);
    ASSERT_EQ(examples.size(), 3u);
    for (const auto& [input, rows] : examples.items()) {
        ASSERT_EQ(rows.size(), kExamples.size());
        for (const auto& [name, runs] : rows.items()) {
            ASSERT_TRUE(kExamples.count(name)) << name;
            const Example& e = kExamples.at(name);
            const int tokens = name.find("two_tokens") == std::string::npos ? 1 : 2;
            for (const bool f64 : {false, true}) {
                TestCache test(shape_of(e.format, tokens, 1));
                test.cache.writer = e.writer;
                check_cache("args.cache", test.cache, format_bit(e.format));
                const std::vector<float> all = example_input(input);
                for (int token = 0; token < tokens; ++token) {
                    std::vector<float> row(all.begin() + e.first, all.begin() + e.first + e.count);
                    if (e.format == SMLA_NVFP4_352) row.insert(row.end(), all.begin() + 448, all.end());
                    for (float& v : row) v /= float(token + 1);  // the second token is half the first
                    const std::vector<double> doubles(row.begin(), row.end());
                    if (f64) test.view().encode(token, doubles.data());
                    else test.view().encode(token, row.data());
                }
                const std::vector<uint8_t> want = bytes_of(runs.get<std::string>());
                ASSERT_EQ(int64_t(want.size()), tokens * test.record);
                EXPECT_EQ(std::vector<uint8_t>(test.page(0), test.page(0) + want.size()), want)
                    << input << " " << name;
            }
        }
    }
}

// ------------------------------------------------------------------ random rows against the rules

TEST(MxRecords, RandomRowsByTheRules) {
    for (const smla_format format : every_format())
        for (const smla_writer writer : writers_of(format)) {
            TestCache test(shape_of(format, 3, 2));
            test.cache.writer = writer;
            const CacheView view = test.view();
            for (uint32_t seed = 0; seed < 150; ++seed) {
                std::vector<float> values = random_values(size_t(test.width()), seed);
                const float factor = std::ldexp(1.f, int(seed % 50) - 25);
                for (float& v : values) v *= factor;
                if (seed % 2)  // bf16 values meet ties, where dividing and multiplying part
                    for (float& v : values) v = round_to_bf16(v);
                const int64_t row = seed % 6;
                view.encode(row, values.data());
                const Record want = record_by_rule(values, format, writer);
                expect_record(stored(test, row), want,
                              text(view.format->name, " writer ", writer, " ", seed));

                std::vector<double> got(values.size());  // and back, in double
                view.decode(row, got.data());
                for (int i = 0; i < test.width(); ++i) {
                    const size_t at = size_t(i);
                    double value;
                    if (format < SMLA_NVFP4_288) {
                        value = e4m3_by_formula(want.values[at]) * std::ldexp(1., want.scales[at / 32] - 127);
                    } else if (i < 16 * groups_of(format)) {
                        const int code = want.values[at / 2] >> (4 * (i & 1)) & 15;
                        value = kE2m1[code & 7] * (code & 8 ? -1 : 1) *
                                e4m3_by_formula(want.scales[size_t(scale_byte(format, i / 16))]);
                    } else if (format == SMLA_NVFP4_352) {
                        value = e4m3_by_formula(want.values[256 + at - 512]);
                    } else {
                        value = double(round_to_bf16(values[at]));
                    }
                    ASSERT_EQ(got[at], value) << view.format->name << " " << i;
                }
            }
        }
}

// The rules of the writers differ where they say so, and nowhere else.
TEST(MxRecords, WritersDiffer) {
    const auto scale = [](float amax, smla_writer writer) {
        TestCache test(shape_of(SMLA_FP8_528_G32, 1, 1));
        test.cache.writer = writer;
        std::vector<float> values(512, 0.f);
        values[70] = amax;  // tile 2
        test.view().encode(0, values.data());
        return int(test.page(0)[512 + 2]);
    };
    EXPECT_EQ(scale(0.f, 0), 0x69);
    EXPECT_EQ(scale(0.f, SMLA_WRITER_SCALE_FLOOR), 0x72);
    EXPECT_EQ(scale(0x1p-13f * 448.f, 0), scale(0x1p-13f * 448.f, SMLA_WRITER_SCALE_FLOOR));
    EXPECT_LT(scale(0.0272f, 0), scale(0.0272f, SMLA_WRITER_SCALE_FLOOR));
    EXPECT_EQ(scale(0.06f, 0), scale(0.06f, SMLA_WRITER_SCALE_FLOOR));
    // 448 (1 + 2^-10) needs the next scale unless it becomes bf16, 448, first
    const float above = 448.f * (1 + 0x1p-10f);
    EXPECT_EQ(scale(above, 0), 128);
    EXPECT_EQ(scale(above, SMLA_WRITER_BF16_FIRST), 127);
}

// log2 is not exact there; the exponent's bits are.
TEST(MxRecords, ScalesNextToPowersOfTwo) {
    for (const smla_format format : kMxFp8)
        for (const smla_writer writer : writers_of(format))
            for (int e = -24; e < 119; ++e) {
                const float exact = std::ldexp(448.f, e);
                for (const float amax : {exact, std::nextafter(exact, 0.f), std::nextafter(exact, kInf)}) {
                    TestCache test(shape_of(format, 2, 1));
                    test.cache.writer = writer;
                    std::vector<float> values(512, 0.f);
                    values[511] = -amax;
                    test.view().encode(1, values.data());
                    expect_record(stored(test, 1), mx_record(values, writer), text(e, " writer ", writer));
                }
            }
}

// ------------------------------------------------------------------ every byte

TEST(MxRecords, AllScalesWithAllE4m3Codes) {
    for (const smla_format format : kMxFp8) {
        TestCache test(shape_of(format, 8, 16));
        for (int row = 0; row < 128; ++row) {
            const bool split = page_packed(format);
            uint8_t* page = test.page(row / 8);
            uint8_t* values = page + row % 8 * (split ? 512 : 528);
            uint8_t* scales = split ? page + 8 * 512 + row % 8 * 16 : values + 512;
            for (int i = 0; i < 512; ++i) values[i] = uint8_t(i + 32 * row);
            for (int t = 0; t < 16; ++t) scales[t] = uint8_t(2 * row + t * 17);
        }
        for (int row = 0; row < 128; ++row) {
            std::vector<double> got(512);
            std::vector<float> f32(512);
            test.view().decode(row, got.data());
            test.view().decode(row, f32.data());
            for (int i = 0; i < 512; ++i) {
                const int byte = (2 * row + i / 32 * 17) & 255, code = (i + 32 * row) & 255;
                const double scale = byte == 255 ? std::nan("") : std::ldexp(1., byte - 127);
                const double want = e4m3_by_formula(code) * scale;
                if (std::isnan(want)) EXPECT_TRUE(std::isnan(got[size_t(i)]) && std::isnan(f32[size_t(i)]));
                else
                    EXPECT_TRUE(got[size_t(i)] == want && f32[size_t(i)] == float(want))
                        << code << " " << byte;
            }
        }
    }
}

TEST(MxRecords, AllScalesWithAllE2m1Codes) {
    for (const smla_format format : kNvfp4) {
        TestCache test(shape_of(format, 4, 64));
        const int groups = groups_of(format), row_bytes = format == SMLA_NVFP4_384   ? 352
                                                          : format == SMLA_NVFP4_352 ? 320
                                                                                     : 256;
        const auto place = [&](int row, uint8_t*& values, uint8_t*& scales) {
            const bool split = page_packed(format);
            uint8_t* page = test.page(row / 4);
            values = page + row % 4 * (split ? row_bytes : row_bytes + 32);
            scales = split ? page + 4 * row_bytes + row % 4 * 32 : values + row_bytes;
        };
        uint8_t *values, *scales;
        for (int row = 0; row < 256; ++row) {
            place(row, values, scales);
            for (int i = 0; i < row_bytes; ++i) values[i] = uint8_t(i + row);
            for (int g = 0; g < 32; ++g) scales[g] = uint8_t(row + 8 * g);
        }
        for (int row = 0; row < 256; ++row) {
            std::vector<double> got(size_t(test.width()));
            test.view().decode(row, got.data());
            place(row, values, scales);
            for (int i = 0; i < 16 * groups; ++i) {
                const int code = values[i / 2] >> (4 * (i & 1)) & 15;
                const double scale = e4m3_by_formula(scales[scale_byte(format, i / 16)]);
                const double want = kE2m1[code & 7] * (code & 8 ? -1 : 1) * scale;
                if (std::isnan(want)) EXPECT_TRUE(std::isnan(got[size_t(i)]));
                else EXPECT_EQ(got[size_t(i)], want) << row << " " << i;
            }
        }
    }
}

// A group with its largest code in it comes back as it was: every code beside every scale that is no NaN.
TEST(MxRecords, BytesSurviveARoundTrip) {
    for (const smla_format format : kMxFp8)
        for (int scale = 0x73; scale < 247; ++scale) {  // above both floors, below infinity
            TestCache test(shape_of(format, 1, 1)), again(shape_of(format, 1, 1));
            for (int i = 0; i < 512; ++i) test.page(0)[i] = i % 32 == 0 ? 0x7e : uint8_t(i);
            for (int t = 0; t < 16; ++t) test.page(0)[512 + t] = uint8_t(scale);
            std::vector<float> values(512);
            test.view().decode(0, values.data());
            again.view().encode(0, values.data());
            EXPECT_EQ(std::memcmp(test.page(0), again.page(0), 528), 0) << scale;
        }
    for (const smla_format format : kNvfp4)
        for (int first = 0; first < 256; first += 32)
            for (const int scale : {1, 2, 7, 8, 9, 0x38, 0x3b, 0x7d, 0x7e}) {
                TestCache test(shape_of(format, 1, 1)), again(shape_of(format, 1, 1));
                std::memset(test.page(0), 0, size_t(test.record));
                const int groups = groups_of(format);
                for (int i = 0; i < 8 * groups; ++i)
                    test.page(0)[i] = i % 8 == 0 ? 0xf7 : uint8_t(first + i % 32);
                for (int g = 0; g < groups; ++g)
                    test.page(0)[test.record - 32 + scale_byte(format, g)] = uint8_t(scale);
                std::vector<float> values(size_t(test.width()));
                test.view().decode(0, values.data());
                again.view().encode(0, values.data());
                EXPECT_EQ(std::memcmp(test.page(0), again.page(0), size_t(test.record)), 0)
                    << test.view().format->name << " " << scale << " " << first;
            }
}

// ------------------------------------------------------------------ zeros, tiny groups, NaN, infinity

TEST(MxRecords, ZerosAndTinyGroups) {
    for (const smla_format format : every_format())
        for (const smla_writer writer : writers_of(format))
            for (const float tiny : {0.f, -0.f, 0x1p-149f, -1e-30f, 1e-10f, 0x1p-11f, 0x1p-10f, 5.9e-3f}) {
                TestCache test(shape_of(format, 1, 1));
                test.cache.writer = writer;
                std::vector<float> values(size_t(test.width()));
                for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 ? tiny : -tiny;
                test.view().encode(0, values.data());
                expect_record(stored(test, 0), record_by_rule(values, format, writer), text(double(tiny)));
            }
    // the bytes that stand for zeros
    const auto first_scale = [](smla_format format) {
        TestCache test(shape_of(format, 1, 1));
        test.view().encode(0, std::vector<float>(size_t(test.width())).data());
        return int(stored(test, 0).scales[0]);
    };
    EXPECT_EQ(first_scale(SMLA_NVFP4_288), 1);
    EXPECT_EQ(first_scale(SMLA_NVFP4_352), 1);
    EXPECT_EQ(first_scale(SMLA_NVFP4_384), 0);
}

// A group with a NaN is NaN as a whole: scale 0x7f and zeros as codes. Its neighbours do not see it.
TEST(MxRecords, NanOfAGroupOfE2m1) {
    for (const smla_format format : kNvfp4)
        for (const float nan : {kNan, -kNan}) {
            TestCache test(shape_of(format, 2, 1));
            std::vector<float> values = random_values(size_t(test.width()), 5);
            Record want = record_by_rule(values, format, 0);
            values[37] = nan;  // group 2
            values[40] = kInf;
            test.view().encode(1, values.data());
            want.scales[size_t(scale_byte(format, 2))] = 0x7f;
            std::fill(want.values.begin() + 16, want.values.begin() + 24, uint8_t(0));
            expect_record(stored(test, 1), want, test.view().format->name);
            std::vector<float> got(values.size());
            test.view().decode(1, got.data());
            for (int i = 0; i < 16 * groups_of(format); ++i)
                EXPECT_EQ(std::isnan(got[size_t(i)]), i / 16 == 2) << i;
        }
}

TEST(MxRecords, WhatIsTooLargeForE2m1Saturates) {
    for (const smla_format format : kNvfp4)
        for (const float large : {2688.f, 2689.f, 1e30f, kInf}) {
            TestCache test(shape_of(format, 1, 1));
            std::vector<float> values(size_t(test.width()), 1.5f), got(values.size());
            values[3] = large, values[5] = -large;
            test.view().encode(0, values.data());
            test.view().decode(0, got.data());
            EXPECT_EQ(got[3], 2688.f);
            EXPECT_EQ(got[5], -2688.f);
            EXPECT_EQ(got[4], 0.f);
            EXPECT_EQ(got[16], 1.5f);  // 1.5 / 6 is an e4m3
        }
}

}  // namespace
}  // namespace smla::testing
