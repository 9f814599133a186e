// A cache in poisoned memory with guards on both sides, for the tests of formats and cache stages. Poison is
// 0xff: NaN as bf16, f32, f64, e4m3 and E8M0. What a token owns is spelt again here, from the published
// layouts and apart from the library's.
#pragma once

#include "core/tensor.h"
#include "formats/format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace smla::testing {

struct CacheShape {
    smla_format format = SMLA_ROW_BF16;
    int32_t page_tokens = 4;
    int64_t pages = 3;
    int32_t width = 0;
    int32_t page_rows = 0;
    int64_t page_gap = 0;  // bytes between packed pages
    int64_t row_gap = 0;   // bytes between records, row-packed formats
    float scale = 0.f;
};

constexpr smla_format kAllFormats[] = {
    SMLA_ROW_F64,         SMLA_ROW_F32,   SMLA_ROW_BF16,    SMLA_FP8_656,           SMLA_FP8_576,
    SMLA_FP8_584,         SMLA_FP8_512,   SMLA_FP8_528,     SMLA_INDEX_FP8_132,     SMLA_INDEX_MXFP4_68,
    SMLA_STATE_F32,       SMLA_STATE_F64, SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288,
    SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384, SMLA_NVFP4_352};
constexpr smla_format kFixedFormats[] = {
    SMLA_FP8_656,         SMLA_FP8_576,        SMLA_FP8_584,     SMLA_FP8_512,           SMLA_FP8_528,
    SMLA_INDEX_FP8_132,   SMLA_INDEX_MXFP4_68, SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288,
    SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384,      SMLA_NVFP4_352};

inline bool page_packed(smla_format f) {
    return f == SMLA_FP8_584 || f == SMLA_INDEX_FP8_132 || f == SMLA_INDEX_MXFP4_68 ||
           f == SMLA_FP8_528_G32_SPLIT || f == SMLA_NVFP4_288_SPLIT || f == SMLA_NVFP4_384;
}
// Bytes to a multiple of which packed pages are padded.
inline int64_t page_multiple(smla_format f) {
    return f == SMLA_FP8_584 ? 576 : f == SMLA_FP8_528_G32_SPLIT ? 512 : f == SMLA_NVFP4_288_SPLIT ? 256 : 1;
}
// Returns how many values share a NaN: e2m1 has none, so the scale of a group holds it.
inline int nan_group(smla_format f, int at) {
    const bool codes = f == SMLA_NVFP4_288 || f == SMLA_NVFP4_288_SPLIT ||
                       (f == SMLA_NVFP4_384 && at < 448) || (f == SMLA_NVFP4_352 && at < 512);
    return f == SMLA_INDEX_MXFP4_68 ? 32 : codes ? 16 : 1;
}
inline bool per_tensor(smla_format f) { return f == SMLA_FP8_576 || f == SMLA_FP8_512; }

inline int32_t width_of(smla_format f) {
    switch (f) {
        case SMLA_FP8_656:
        case SMLA_NVFP4_352:
        case SMLA_FP8_576: return 576;
        case SMLA_FP8_584:
        case SMLA_FP8_512:
        case SMLA_FP8_528_G32:
        case SMLA_FP8_528_G32_SPLIT:
        case SMLA_NVFP4_288:
        case SMLA_NVFP4_288_SPLIT:
        case SMLA_NVFP4_384:
        case SMLA_FP8_528: return 512;
        case SMLA_INDEX_FP8_132:
        case SMLA_INDEX_MXFP4_68: return 128;
        default: return 0;
    }
}

inline int64_t record_of(smla_format f, int64_t width) {
    switch (f) {
        case SMLA_ROW_F64:
        case SMLA_STATE_F64: return 8 * width;
        case SMLA_ROW_F32:
        case SMLA_STATE_F32: return 4 * width;
        case SMLA_ROW_BF16: return 2 * width;
        case SMLA_FP8_656: return 656;
        case SMLA_FP8_576: return 576;
        case SMLA_FP8_584: return 584;
        case SMLA_FP8_512: return 512;
        case SMLA_FP8_528_G32:
        case SMLA_FP8_528_G32_SPLIT:
        case SMLA_FP8_528: return 528;
        case SMLA_NVFP4_288:
        case SMLA_NVFP4_288_SPLIT: return 288;
        case SMLA_NVFP4_384: return 384;
        case SMLA_NVFP4_352: return 352;
        case SMLA_INDEX_FP8_132: return 132;
        default: return 68;
    }
}

// [first byte in the page, length] of everything that token `offset` owns.
inline std::vector<std::pair<int64_t, int64_t>> owned_bytes(smla_format f, int64_t width, int64_t page_tokens,
                                                            int64_t row_stride, int64_t offset) {
    switch (f) {
        case SMLA_FP8_584: return {{offset * 576, 576}, {page_tokens * 576 + offset * 8, 8}};
        case SMLA_FP8_528_G32_SPLIT: return {{offset * 512, 512}, {page_tokens * 512 + offset * 16, 16}};
        case SMLA_NVFP4_288_SPLIT: return {{offset * 256, 256}, {page_tokens * 256 + offset * 32, 32}};
        case SMLA_NVFP4_384: return {{offset * 352, 352}, {page_tokens * 352 + offset * 32, 32}};
        case SMLA_INDEX_FP8_132: return {{offset * 128, 128}, {page_tokens * 128 + offset * 4, 4}};
        case SMLA_INDEX_MXFP4_68: return {{offset * 64, 64}, {page_tokens * 64 + offset * 4, 4}};
        default: return {{offset * row_stride, record_of(f, width)}};
    }
}

class TestCache {
public:
    static constexpr int64_t kGuard = 512;

    explicit TestCache(const CacheShape& shape, uint8_t poison = 0xff) : shape(shape), poison(poison) {
        const int64_t width = shape.width ? shape.width : width_of(shape.format);
        record = record_of(shape.format, width);
        row_stride = record + shape.row_gap;
        int64_t packed = row_stride * shape.page_tokens;
        const int64_t multiple = page_multiple(shape.format);
        packed = (packed + multiple - 1) / multiple * multiple;
        page_stride = packed + shape.page_gap;
        memory.assign(size_t(page_stride * shape.pages + 2 * kGuard + 64), poison);
        first = kGuard + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        cache = {};
        cache.data = memory.data() + first;
        cache.format = shape.format;
        cache.width = shape.width;
        cache.page_tokens = shape.page_tokens;
        cache.page_rows = shape.page_rows;
        cache.pages = shape.pages;
        if (shape.page_gap) cache.page_stride_bytes = page_stride;
        if (shape.row_gap) cache.row_stride_bytes = row_stride;
        cache.scale = per_tensor(shape.format) && shape.scale == 0.f ? 0.5f : shape.scale;
    }
    TestCache(const TestCache&) = delete;
    TestCache& operator=(const TestCache&) = delete;

    CacheView view() const { return CacheView(cache); }
    int32_t width() const { return shape.width ? shape.width : width_of(shape.format); }
    int64_t page_rows() const { return shape.page_rows ? shape.page_rows : shape.page_tokens; }
    uint8_t* page(int64_t p) { return memory.data() + first + p * page_stride; }

    // Marks the bytes of `row` in a map of the whole memory.
    void mark(int64_t row, std::vector<bool>& map) const {
        map.resize(memory.size());
        for (const auto& range :
             owned_bytes(shape.format, width(), shape.page_tokens, row_stride, row % page_rows()))
            for (int64_t i = 0; i < range.second; ++i)
                map[size_t(first + row / page_rows() * page_stride + range.first + i)] = true;
    }
    // Every byte outside the rows still holds the poison.
    void expect_untouched_except(const std::vector<int64_t>& rows) const {
        std::vector<bool> owned(memory.size());
        for (const int64_t row : rows) mark(row, owned);
        int64_t wrong = 0;
        for (size_t i = 0; i < memory.size(); ++i) wrong += !owned[i] && memory[i] != poison;
        EXPECT_EQ(wrong, 0) << "bytes written outside the rows, format " << shape.format;
    }

    CacheShape shape;
    uint8_t poison;
    int64_t record, row_stride, page_stride;
    std::vector<uint8_t> memory;
    int64_t first;
    smla_cache cache;
};

inline CacheShape shape_of(smla_format format, int32_t page_tokens = 4, int64_t pages = 3) {
    CacheShape shape;
    shape.format = format;
    shape.page_tokens = page_tokens;
    shape.pages = pages;
    if (width_of(format) == 0) shape.width = 48;
    return shape;
}

// Normal values with outliers (x 1000), zeros and tiny ones (x 1e-6) mixed in.
inline std::vector<float> random_values(size_t n, uint32_t seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float& v : out) {
        const uint32_t kind = engine() % 64;
        v = normal(engine) * (kind == 0 ? 1000.f : kind < 4 ? 1e-6f : 1.f);
        if (kind == 4) v = 0.f;
    }
    return out;
}

// The e4m3 and e2m1 values by the formula of the formats, apart from the library's bit tricks.
inline double e4m3_by_formula(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    if (exponent == 15 && mantissa == 7) return std::nan("");
    const double magnitude = exponent ? std::pow(2., exponent - 7) * (1 + mantissa / 8.) : mantissa / 512.;
    return code & 128 ? -magnitude : magnitude;
}

}  // namespace smla::testing
