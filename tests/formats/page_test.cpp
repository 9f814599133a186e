// Where bytes lie: page rules, strides, gaps, holes, interleaved pages, addresses past 2^32.
#include "formats/test_cache.h"
#include "kit/mapped.h"

#include <cmath>

namespace smla::testing {
namespace {

TEST(Pages, PackedBytes) {
    const struct {
        smla_format format;
        int32_t page_tokens;
        size_t bytes;
    } cases[] = {
        {SMLA_FP8_584, 64, 37440},           {SMLA_FP8_584, 2, 1728},     {SMLA_FP8_584, 1, 1152},
        {SMLA_FP8_584, 72, 42048},           {SMLA_FP8_656, 64, 41984},   {SMLA_FP8_528, 64, 33792},
        {SMLA_FP8_576, 32, 18432},           {SMLA_FP8_512, 64, 32768},   {SMLA_INDEX_FP8_132, 64, 8448},
        {SMLA_INDEX_MXFP4_68, 64, 4352},     {SMLA_FP8_528_G32, 3, 1584}, {SMLA_FP8_528_G32_SPLIT, 3, 2048},
        {SMLA_FP8_528_G32_SPLIT, 64, 33792}, {SMLA_NVFP4_288, 3, 864},    {SMLA_NVFP4_288_SPLIT, 3, 1024},
        {SMLA_NVFP4_288_SPLIT, 64, 18432},   {SMLA_NVFP4_384, 3, 1152},   {SMLA_NVFP4_352, 3, 1056},
    };
    for (const auto& c : cases) {
        TestCache test(shape_of(c.format, c.page_tokens, 3));
        EXPECT_EQ(packed_page_bytes(test.cache), c.bytes) << find_format(c.format)->name << c.page_tokens;
        EXPECT_EQ(cache_bytes(test.cache), 3 * c.bytes);
        test.cache.page_stride_bytes = int64_t(c.bytes) + 64;
        EXPECT_EQ(cache_bytes(test.cache), 3 * c.bytes + 128);
        test.cache.pages = 0;
        EXPECT_EQ(cache_bytes(test.cache), 0u);
    }
}

TEST(Pages, TheTableOfFormats) {
    EXPECT_EQ(all_formats().size(), std::size(kAllFormats));
    for (const smla_format id : kAllFormats) {
        const Format* format = find_format(id);
        ASSERT_TRUE(format);
        EXPECT_EQ(format->id, id);
        EXPECT_EQ(find_format(std::string_view(format->name)), format);
        EXPECT_EQ(format->width, width_of(id));
        EXPECT_EQ(format->packing == Packing::page, page_packed(id));
        EXPECT_EQ(format->scale == ScaleKind::per_tensor, per_tensor(id));
        for (const int32_t width : {2, 48, 576}) {
            const int32_t own = format->width ? format->width : width;
            EXPECT_EQ(int64_t(format->record_bytes(own)), record_of(id, own)) << format->name;
        }
    }
    EXPECT_EQ(find_format(SMLA_FORMAT_NONE), nullptr);
    EXPECT_EQ(find_format(smla_format(19)), nullptr);
    EXPECT_EQ(find_format(smla_format(99)), nullptr);
    EXPECT_EQ(find_format("fp8_ds_mla"), nullptr);  // V3.2 and V4 mean different records
    EXPECT_EQ(find_format("bf16_576"), &kRowBf16);
}

std::vector<CacheShape> hostile_shapes(smla_format format) {
    std::vector<CacheShape> out;
    for (const int32_t page_tokens : {1, 2, 5, 64}) {
        CacheShape shape = shape_of(format, page_tokens, 3);
        out.push_back(shape);
        shape.page_gap = 4032;
        out.push_back(shape);
        shape.page_rows = page_tokens + 3;
        out.push_back(shape);
        if (!page_packed(format)) {
            shape.row_gap = 24;
            out.push_back(shape);
        }
    }
    return out;
}

// Two caches that differ in every byte before: afterwards, a byte is the same in both exactly where it was
// written.
TEST(FieldBugs, T22_ARowOwnsItsBytesAndNothingElse) {
    for (const smla_format format : kAllFormats)
        for (const CacheShape& shape : hostile_shapes(format)) {
            TestCache ones(shape, 0xff), zeros(shape, 0x00);
            check_cache("args.cache", ones.cache, format_bit(format));
            const CacheView a = ones.view(), b = zeros.view();
            for (int64_t row = 0; row<a.capacity; row += a.capacity> 20 ? 13 : 1) {
                if (a.hole(row)) continue;
                std::fill(ones.memory.begin(), ones.memory.end(), uint8_t(0xff));
                std::fill(zeros.memory.begin(), zeros.memory.end(), uint8_t(0));
                const std::vector<float> values = random_values(size_t(ones.width()), uint32_t(row));
                a.encode(row, values.data());
                b.encode(row, values.data());
                std::vector<bool> owned(ones.memory.size());
                ones.mark(row, owned);
                int64_t wrong = 0;
                for (int64_t i = 0; i < 3 * ones.page_stride; ++i) {
                    const bool written =
                        ones.memory[size_t(ones.first + i)] == zeros.memory[size_t(zeros.first + i)];
                    wrong += written != owned[size_t(ones.first + i)];
                }
                EXPECT_EQ(wrong, 0) << a.format->name << " row " << row << " page_tokens "
                                    << shape.page_tokens;
                ones.expect_untouched_except({row});
                zeros.expect_untouched_except({row});

                std::vector<float> from_ones(values.size()), from_zeros(values.size());
                a.decode(row, from_ones.data());
                b.decode(row, from_zeros.data());
                EXPECT_EQ(from_ones, from_zeros) << "decode read bytes of others";
            }
        }
}

TEST(Pages, RowsDoNotOverlap) {
    for (const smla_format format : kAllFormats)
        for (const CacheShape& shape : hostile_shapes(format)) {
            TestCache test(shape);
            const CacheView view = test.view();
            for (int64_t row = 0; row < view.capacity; ++row)
                if (!view.hole(row))
                    view.encode(row, random_values(size_t(test.width()), uint32_t(row)).data());
            std::vector<int64_t> rows;
            TestCache alone(shape);
            for (int64_t row = 0; row < view.capacity; ++row) {
                if (view.hole(row)) continue;
                rows.push_back(row);
                alone.view().encode(row, random_values(size_t(test.width()), uint32_t(row)).data());
                std::vector<double> want(size_t(test.width())), got(want);
                alone.view().decode(row, want.data());
                view.decode(row, got.data());
                EXPECT_EQ(got, want) << view.format->name << " row " << row;
            }
            EXPECT_EQ(rows.size(), size_t(3 * shape.page_tokens));
            test.expect_untouched_except(rows);
        }
}

TEST(Pages, Holes) {
    CacheShape shape = shape_of(SMLA_FP8_656, 4, 3);
    shape.page_rows = 7;
    TestCache test(shape);
    const CacheView view = test.view();
    EXPECT_EQ(view.capacity, 2 * 7 + 4);
    for (const int64_t row : {0, 3, 7, 10, 14, 17}) EXPECT_FALSE(view.hole(row)) << row;
    for (const int64_t row : {-1, -4, 4, 6, 11, 13, 18, 1 << 30}) EXPECT_TRUE(view.hole(row)) << row;
    EXPECT_TRUE(view.hole(INT64_MIN));
    EXPECT_TRUE(view.hole(INT64_MAX));
    EXPECT_TRUE(view.hole((int64_t(1) << 32) + 1));  // must not be cut to 32 bits
    test.cache.pages = 0;
    EXPECT_TRUE(test.view().hole(0));
    EXPECT_EQ(test.view().capacity, 0);
}

// Three pages, 3 GiB apart: offsets past 2^31 and 2^32 bytes. Only the touched pages get memory.
TEST(FieldBugs, T20_OffsetsPast32Bits) {
    constexpr int64_t kStride = int64_t(3) << 30;
    const kit::SparseMemory memory(size_t(2 * kStride + (1 << 20)));
    if (!memory.taken()) GTEST_SKIP() << "no 6 GiB of address space here";
    for (const smla_format format : kAllFormats) {
        smla_cache cache{};
        cache.data = memory.data();
        cache.format = format;
        cache.width = width_of(format) ? 0 : 96;
        cache.page_tokens = 64;
        cache.pages = 3;
        cache.page_stride_bytes = kStride / 576 / 8 * 576 * 8;
        cache.scale = per_tensor(format) ? 1.f : 0.f;
        check_cache("args.cache", cache, format_bit(format));
        const CacheView view(cache);
        for (const int64_t row : {5, 64 + 7, 128 + 63}) {
            const std::vector<float> values = random_values(size_t(view.width), uint32_t(row));
            view.encode(row, values.data());
            const uint8_t* page =
                static_cast<const uint8_t*>(memory.data()) + row / 64 * cache.page_stride_bytes;
            TestCache small(shape_of(format, 64, 1));
            small.cache.width = cache.width;
            small.cache.scale = cache.scale;
            const int64_t stride = record_of(format, view.width);
            std::vector<uint8_t> packed(packed_page_bytes(small.cache) + 64);
            small.cache.data = packed.data() + (64 - reinterpret_cast<uintptr_t>(packed.data()) % 64) % 64;
            small.view().encode(row % 64, values.data());
            const uint8_t* want = static_cast<const uint8_t*>(small.cache.data);
            for (const auto& range : owned_bytes(format, view.width, 64, stride, row % 64))
                EXPECT_EQ(std::memcmp(page + range.first, want + range.first, size_t(range.second)), 0)
                    << row;
        }
        memory.forget();
    }
}

}  // namespace
}  // namespace smla::testing
