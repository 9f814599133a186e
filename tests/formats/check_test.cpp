// What check_cache refuses, and that it names the field.
#include "formats/test_cache.h"
#include "kit/refused.h"

#include <cmath>
#include <functional>
#include <limits>

namespace smla::testing {
namespace {

constexpr uint32_t kEveryFormat = kKvFormats | kIndexFormats | kStateFormats;

// Empty: accepted. Else the field that the refusal names; its texts must say something.
std::string refused_field(const smla_cache& cache, uint32_t allowed = kEveryFormat,
                          const CheckContext& context = {}) {
    return kit::refused_field([&] { check_cache("args.cache", cache, allowed, context); },
                              SMLA_INVALID_ARGUMENT);
}

using Change = std::function<void(smla_cache&)>;
std::string refused_field(smla_format format, const Change& change) {
    TestCache test(shape_of(format, 4, 3));
    smla_cache cache = test.cache;
    change(cache);
    return refused_field(cache);
}

TEST(CheckCache, AcceptsEveryFormatPackedAndStrided) {
    for (const smla_format format : kAllFormats) {
        EXPECT_EQ(refused_field(format, [](smla_cache&) {}), "");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.page_rows = 9; }), "");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.pages = 0, c.data = nullptr; }), "");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.page_stride_bytes = 1 << 20; }), "");
        if (width_of(format)) {
            EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.width = width_of(format); }), "");
        }
        if (!page_packed(format)) {
            EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.row_stride_bytes = 8192; }), "");
        }
    }
}

TEST(CheckCache, Format) {
    TestCache test(shape_of(SMLA_FP8_656));
    EXPECT_EQ(refused_field(test.cache, kIndexFormats), "args.cache.format");
    EXPECT_EQ(refused_field(test.cache, kKvFormats), "");
    for (const smla_format unknown : {0, 19, 31, 32, 36, -1}) {
        test.cache.format = unknown;
        EXPECT_EQ(refused_field(test.cache, 0xffffffffu), "args.cache.format") << unknown;
    }
}

TEST(CheckCache, Width) {
    for (const smla_format format : kFixedFormats)
        for (const int32_t width : {-1, 1, 64, width_of(format) - 1, width_of(format) + 1})
            EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.width = width; }), "args.cache.width")
                << width;
    for (const smla_format format : {SMLA_ROW_F64, SMLA_ROW_F32, SMLA_ROW_BF16}) {
        for (const int32_t width : {-1, 0, 1025})
            EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.width = width; }), "args.cache.width")
                << width;
        for (const int32_t width : {1, 7, 1024})
            EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.width = width; }), "") << width;
    }
    for (const smla_format format : {SMLA_STATE_F32, SMLA_STATE_F64}) {
        for (const int32_t width : {-2, 0, 1, 511, 4098})
            EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.width = width; }), "args.cache.width")
                << width;
        for (const int32_t width : {2, 512, 1024, 2048, 4096})
            EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.width = width; }), "") << width;
    }
}

TEST(CheckCache, Pages) {
    for (const smla_format format : kAllFormats) {
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.page_tokens = 0; }), "args.cache.page_tokens");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.page_tokens = -4; }), "args.cache.page_tokens");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.page_rows = 3; }), "args.cache.page_rows");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.page_rows = -1; }), "args.cache.page_rows");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.pages = -1; }), "args.cache.pages");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.pages = INT64_MAX; }), "args.cache.pages");
        const bool floors = format == SMLA_FP8_528_G32 || format == SMLA_FP8_528_G32_SPLIT;
        const bool rounds = floors || format == SMLA_NVFP4_288 || format == SMLA_NVFP4_288_SPLIT;
        const bool ties = format == SMLA_INDEX_MXFP4_68;
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.writer = SMLA_WRITER_SCALE_FLOOR; }),
                  floors || ties ? "" : "args.cache.writer");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.writer = SMLA_WRITER_TIES_TO_ZERO; }),
                  ties ? "" : "args.cache.writer");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.writer = SMLA_WRITER_BF16_POOLED; }),
                  rounds ? "" : "args.cache.writer");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.writer = SMLA_WRITER_BF16_FIRST; }),
                  rounds ? "" : "args.cache.writer");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.writer = 3; }),
                  floors ? "" : "args.cache.writer");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.writer = SMLA_WRITER_FP4_VALUES; }),
                  floors ? "" : "args.cache.writer");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.writer = 32; }), "args.cache.writer");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.writer = -1; }), "args.cache.writer");
    }
    // rows are int32: 2^31 of them is the last count whose ids fit
    EXPECT_EQ(refused_field(SMLA_FP8_512, [](smla_cache& c) { c.pages = (int64_t(1) << 31) / 4; }), "");
    EXPECT_EQ(refused_field(SMLA_FP8_512, [](smla_cache& c) { c.pages = (int64_t(1) << 31) / 4 + 1; }),
              "args.cache.pages");
    const Change single = [](smla_cache& c) { c.page_tokens = 1, c.pages = int64_t(1) << 31; };
    EXPECT_EQ(refused_field(SMLA_FP8_512, single), "");
    EXPECT_EQ(refused_field(SMLA_FP8_512, [&](smla_cache& c) { single(c), ++c.pages; }), "args.cache.pages");
    const Change sparse = [](smla_cache& c) { c.page_rows = 1 << 30, c.pages = 2; };
    EXPECT_EQ(refused_field(SMLA_FP8_512, sparse), "");
    EXPECT_EQ(refused_field(SMLA_FP8_512, [&](smla_cache& c) { sparse(c), c.pages = 3; }),
              "args.cache.pages");
    EXPECT_EQ(refused_field(SMLA_FP8_512,
                            [](smla_cache& c) { c.page_stride_bytes = int64_t(1) << 55, c.pages = 4; }),
              "args.cache.pages");
}

// sgl-project/sglang #18931: a record of 576 bytes bound where 656 are meant. vllm-project/vllm #55221
// likewise.
TEST(FieldBugs, T38_WrongRecordIsRefusedByName) {
    EXPECT_EQ(refused_field(SMLA_FP8_656, [](smla_cache& c) { c.row_stride_bytes = 576; }),
              "args.cache.row_stride_bytes");
    EXPECT_EQ(refused_field(SMLA_FP8_656, [](smla_cache& c) { c.page_stride_bytes = 4 * 576; }),
              "args.cache.page_stride_bytes");
    EXPECT_EQ(refused_field(SMLA_FP8_656, [](smla_cache& c) { c.width = 656; }), "args.cache.width");
    EXPECT_EQ(refused_field(SMLA_FP8_584, [](smla_cache& c) { c.width = 584; }), "args.cache.width");
    EXPECT_EQ(refused_field(SMLA_FP8_576, [](smla_cache& c) { c.width = 512; }), "args.cache.width");
}

TEST(CheckCache, RowStride) {
    for (const smla_format format : kAllFormats) {
        TestCache test(shape_of(format));
        if (page_packed(format)) {
            for (const int64_t stride : {test.record, int64_t(1024)})
                EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.row_stride_bytes = stride; }),
                          "args.cache.row_stride_bytes");
            continue;
        }
        const int64_t alignment = find_format(format)->alignment;
        for (const int64_t stride : {test.record - alignment, int64_t(-1024), int64_t(1) << 31})
            EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.row_stride_bytes = stride; }),
                      "args.cache.row_stride_bytes")
                << stride;
        if (alignment > 1) {
            EXPECT_EQ(refused_field(format,
                                    [&](smla_cache& c) { c.row_stride_bytes = test.record + alignment / 2; }),
                      "args.cache.row_stride_bytes");
        }
        EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.row_stride_bytes = test.record + alignment; }),
                  "");
    }
}

TEST(CheckCache, PageStride) {
    for (const smla_format format : kAllFormats) {
        TestCache test(shape_of(format));
        const int64_t packed = test.record * test.cache.page_tokens,  // padding is not needed
            alignment = find_format(format)->alignment;
        EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.page_stride_bytes = packed; }), "");
        for (const int64_t stride : {packed - alignment, int64_t(-64), int64_t(1) << 56})
            EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.page_stride_bytes = stride; }),
                      "args.cache.page_stride_bytes")
                << stride;
        if (alignment > 1) {
            EXPECT_EQ(
                refused_field(format, [&](smla_cache& c) { c.page_stride_bytes = packed + alignment / 2; }),
                "args.cache.page_stride_bytes");
        }
        EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.page_stride_bytes = packed + alignment; }),
                  "");
    }
    // a row stride widens the page it needs
    EXPECT_EQ(refused_field(SMLA_FP8_656,
                            [](smla_cache& c) { c.row_stride_bytes = 1024, c.page_stride_bytes = 4 * 656; }),
              "args.cache.page_stride_bytes");
}

TEST(CheckCache, Data) {
    for (const smla_format format : kAllFormats) {
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.data = nullptr; }), "args.cache.data");
        const uint32_t alignment = find_format(format)->alignment;
        if (alignment == 1) continue;
        const Change misalign = [&](smla_cache& c) { c.data = static_cast<char*>(c.data) + alignment / 2; };
        EXPECT_EQ(refused_field(format, misalign), "args.cache.data") << find_format(format)->name;
    }
}

// A stride that is large enough is not told to be larger.
TEST(CheckCache, StridesHaveAnUpperBoundThatTheRefusalNames) {
    TestCache test(shape_of(SMLA_ROW_BF16));
    const auto wanted = [&](int64_t smla_cache::*member, int64_t bytes) -> std::string {
        smla_cache cache = test.cache;
        cache.*member = bytes;
        try {
            check_cache("args.cache", cache, kEveryFormat);
            return "";
        } catch (const Error& error) {
            return error.wanted;
        }
    };
    EXPECT_NE(wanted(&smla_cache::row_stride_bytes, int64_t(1) << 31).find("below 2^31"), std::string::npos);
    EXPECT_NE(wanted(&smla_cache::page_stride_bytes, int64_t(1) << 56).find("below 2^56"), std::string::npos);
}

TEST(CheckCache, Device) {
    TestCache test(shape_of(SMLA_FP8_656));
    EXPECT_EQ(refused_field(test.cache, kEveryFormat, kOnHost), "");
    test.cache.device_type = SMLA_CUDA;
    EXPECT_EQ(refused_field(test.cache, kEveryFormat, kOnHost), "args.cache.device");
    EXPECT_EQ(refused_field(test.cache), "");
}

// NVIDIA/TensorRT-LLM #16916: no scale given, taken as 1, and accuracy decays with the length of the output.
TEST(FieldBugs, T37_NullScaleIsAnError) {
    for (const smla_format format : {SMLA_FP8_576, SMLA_FP8_512}) {
        for (const float scale : {0.f, -1.f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
            EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.scale = scale; }), "args.cache.scale")
                << scale;
            const Change by_pointer = [&](smla_cache& c) { c.scale = 1.f, c.scale_device = &scale; };
            EXPECT_EQ(refused_field(format, by_pointer), "args.cache.scale_device") << scale;
        }
        const float good = 0.25f;
        EXPECT_EQ(refused_field(format, [&](smla_cache& c) { c.scale = 0.f, c.scale_device = &good; }), "");
        EXPECT_EQ(refused_field(format, [](smla_cache& c) { c.scale = 0x1p-149f; }), "");
    }
}

}  // namespace
}  // namespace smla::testing
