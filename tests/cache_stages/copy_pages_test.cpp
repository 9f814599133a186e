// copy_pages: records move bit for bit, gaps and everything else stay.
#include "formats/test_cache.h"
#include "kit/refused.h"
#include "ops/ops.h"

#include <functional>

namespace smla::testing {
namespace {

void fill_random(TestCache& test, uint32_t seed) {
    std::mt19937 engine(seed);
    for (uint8_t& byte : test.memory) byte = uint8_t(engine());
}

// What `target` must hold after the pairs, byte by byte, from the bytes that each row owns.
std::vector<uint8_t> expected_bytes(const TestCache& source, const TestCache& target,
                                    const std::vector<std::pair<int, int>>& pages) {
    std::vector<uint8_t> out = target.memory;
    const CacheShape& shape = target.shape;
    for (const auto& pair : pages)
        for (int64_t token = 0; token < shape.page_tokens; ++token) {
            const auto from =
                owned_bytes(shape.format, target.width(), shape.page_tokens, source.row_stride, token);
            const auto to =
                owned_bytes(shape.format, target.width(), shape.page_tokens, target.row_stride, token);
            for (size_t part = 0; part < from.size(); ++part)
                std::memcpy(
                    out.data() + target.first + pair.second * target.page_stride + to[part].first,
                    source.memory.data() + source.first + pair.first * source.page_stride + from[part].first,
                    size_t(from[part].second));
        }
    return out;
}

CacheShape strided(smla_format format, int64_t pages, int64_t page_gap, int64_t row_gap) {
    CacheShape shape = shape_of(format, 5, pages);
    shape.page_gap = page_gap;
    shape.row_gap = page_packed(format) ? 0 : row_gap;
    return shape;
}

smla_copy_pages_args copy_args(const TestCache& source, const TestCache& target,
                               const std::vector<int32_t>& pairs) {
    smla_copy_pages_args args{};
    args.source = source.cache;
    args.target = target.cache;
    args.pairs = make_tensor(pairs.data(), SMLA_I32, {int64_t(pairs.size() / 2), 2});
    return args;
}

TEST(CopyPages, BetweenCachesOfAnyStrides) {
    const std::pair<int64_t, int64_t> gaps[] = {{0, 0}, {1152, 0}, {576, 24}};
    for (const smla_format format : kAllFormats)
        for (const auto& from : gaps)
            for (const auto& to : gaps) {
                TestCache source(strided(format, 4, from.first, from.second)),
                    target(strided(format, 3, to.first, to.second));
                fill_random(source, 1);
                fill_random(target, 2);
                const std::vector<uint8_t> untouched = source.memory;
                const std::vector<uint8_t> want = expected_bytes(source, target, {{3, 0}, {1, 2}});
                const std::vector<int32_t> pairs = {3, 0, 1, 2};
                const smla_copy_pages_args args = copy_args(source, target, pairs);
                CopyPagesOp::check(args);
                EXPECT_EQ(CopyPagesOp::tasks(args), 2);
                CopyPagesOp::reference(args, 1, 2);
                CopyPagesOp::reference(args, 0, 1);
                EXPECT_EQ(target.memory, want) << find_format(format)->name;
                EXPECT_EQ(source.memory, untouched);
            }
}

TEST(CopyPages, WithinOneCache) {
    for (const smla_format format : kAllFormats) {
        TestCache test(strided(format, 4, 1152, 24));
        fill_random(test, 3);
        const std::vector<uint8_t> want = expected_bytes(test, test, {{1, 0}, {1, 3}});
        const std::vector<int32_t> pairs = {1, 0, 2, 2, 1, 3};  // one source twice; a page onto itself
        const smla_copy_pages_args args = copy_args(test, test, pairs);
        CopyPagesOp::check(args);
        CopyPagesOp::reference(args, 0, 3);
        EXPECT_EQ(test.memory, want) << find_format(format)->name;
    }
}

TEST(CopyPages, PagesOutOfRangeAreSkipped) {
    TestCache source(strided(SMLA_FP8_584, 2, 576, 0)), target(strided(SMLA_FP8_584, 3, 0, 0));
    fill_random(source, 4);
    fill_random(target, 5);
    const std::vector<uint8_t> want = expected_bytes(source, target, {{1, 2}});
    const std::vector<int32_t> pairs = {-1, 0, 0, -1, 2, 0, 0, 3, INT32_MIN, 1, 1, INT32_MAX, 1, 2};
    const smla_copy_pages_args args = copy_args(source, target, pairs);
    CopyPagesOp::check(args);
    CopyPagesOp::reference(args, 0, CopyPagesOp::tasks(args));
    EXPECT_EQ(target.memory, want);
}

TEST(CopyPages, NoPairs) {
    TestCache test(shape_of(SMLA_FP8_656));
    const smla_copy_pages_args args = copy_args(test, test, {});
    CopyPagesOp::check(args);
    CopyPagesOp::reference(args, 0, 0);
    test.expect_untouched_except({});
}

TEST(CopyPages, CopiedRowsDecodeTheSame) {
    TestCache source(strided(SMLA_FP8_584, 2, 0, 0)), target(strided(SMLA_FP8_584, 2, 4032, 0));
    for (int64_t row = 0; row < 5; ++row) source.view().encode(row, random_values(512, uint32_t(row)).data());
    const std::vector<int32_t> pairs = {0, 1};
    CopyPagesOp::reference(copy_args(source, target, pairs), 0, 1);
    for (int64_t row = 0; row < 5; ++row) {
        std::vector<float> want(512), got(512);
        source.view().decode(row, want.data());
        target.view().decode(5 + row, got.data());
        EXPECT_EQ(got, want);
    }
}

TEST(CopyPagesCheck, RefusalsNameTheField) {
    using Args = smla_copy_pages_args;
    TestCache a(shape_of(SMLA_ROW_BF16)), b(shape_of(SMLA_ROW_BF16)), fp8(shape_of(SMLA_FP8_576));
    const std::vector<int32_t> pairs = {0, 1};
    const Args rows = copy_args(a, b, pairs), scaled = copy_args(fp8, fp8, pairs);
    const auto refused = [](Args args, const std::function<void(Args&)>& change) -> std::string {
        change(args);
        return kit::refused_field([&] { CopyPagesOp::check(args); });
    };
    EXPECT_EQ(refused(rows, [](Args&) {}), "");
    EXPECT_EQ(refused(scaled, [](Args&) {}), "");
    EXPECT_EQ(refused(rows, [](Args& x) { x.reserved = 1; }), "args.reserved");
    EXPECT_EQ(refused(rows, [](Args& x) { x.source.page_tokens = 0; }), "args.source.page_tokens");
    EXPECT_EQ(refused(rows, [](Args& x) { x.target.data = nullptr; }), "args.target.data");
    EXPECT_EQ(refused(rows, [](Args& x) { x.target.format = SMLA_ROW_F32; }), "args.target.format");
    EXPECT_EQ(refused(rows, [](Args& x) { x.target.width = 47; }), "args.target.width");
    EXPECT_EQ(refused(rows, [](Args& x) { x.target.page_tokens = 3; }), "args.target.page_tokens");
    EXPECT_EQ(refused(scaled, [](Args& x) { x.target.scale = 2.f; }), "args.target.scale");
    EXPECT_EQ(refused(rows, [](Args& x) { x.pairs.dtype = SMLA_I64; }), "args.pairs.dtype");
    EXPECT_EQ(refused(rows, [](Args& x) { x.pairs.shape[1] = 3; }), "args.pairs.shape");
    const float scale = 0.5f;
    EXPECT_EQ(refused(scaled, [&](Args& x) { x.target.scale = 0, x.target.scale_device = &scale; }), "");
}

// Within one cache pages are the same or apart; two that partly overlap would be read while they are written.
TEST(CopyPagesCheck, CachesAreTheSamePagesOrApart) {
    using Args = smla_copy_pages_args;
    TestCache cache(shape_of(SMLA_ROW_BF16));
    const std::vector<int32_t> pairs = {0, 1};
    const int64_t page = int64_t(packed_page_bytes(cache.cache)), row = page / cache.cache.page_tokens;
    const auto refused = [&](int64_t shift, int64_t stride) -> std::string {
        Args args = copy_args(cache, cache, pairs);
        args.target.data = static_cast<char*>(args.target.data) + shift;
        args.target.pages = 1;
        args.target.page_stride_bytes = stride;
        return kit::refused_field([&] { check_own_memory(args, {}); });
    };
    for (const int64_t stride : {int64_t(0), page}) {
        EXPECT_EQ(refused(0, stride), "");
        EXPECT_EQ(refused(page, stride), "");
        EXPECT_EQ(refused(row, stride), "args.target.data");
    }
    EXPECT_EQ(refused(0, 2 * page), "args.target.data");
    EXPECT_EQ(refused(int64_t(cache_bytes(cache.cache)), 0), "");
}

}  // namespace
}  // namespace smla::testing
