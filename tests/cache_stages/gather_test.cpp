// gather: which cached token lands in which row of out, holes as zeros, and that nothing else is touched.
#include "formats/test_cache.h"
#include "kit/refused.h"
#include "ops/ops.h"

#include <cmath>
#include <functional>

namespace smla::testing {
namespace {

constexpr smla_format kGathered[] = {
    SMLA_ROW_F64,       SMLA_ROW_F32,         SMLA_ROW_BF16,    SMLA_FP8_656,
    SMLA_FP8_576,       SMLA_FP8_584,         SMLA_FP8_512,     SMLA_FP8_528,
    SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68,  SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT,
    SMLA_NVFP4_288,     SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384,   SMLA_NVFP4_352};
constexpr int32_t kPageTokens = 4;

// Two requests: the first in pages 2, 0, the second in page 1, then a hole, then a page past the cache.
const std::vector<int32_t> kTable = {2, 0, -1, 1, -5, 3};

struct Fixture {
    TestCache test;
    std::vector<int32_t> cu, starts;
    smla_gather_args args{};

    Fixture(const CacheShape& shape, std::vector<int32_t> cu, std::vector<int32_t> starts)
        : test(shape), cu(std::move(cu)), starts(std::move(starts)) {
        const CacheView view = test.view();
        for (int64_t row = 0; row < view.capacity; ++row)
            if (!view.hole(row)) view.encode(row, random_values(size_t(test.width()), uint32_t(row)).data());
        args.cache = test.cache;
        args.block_table = make_tensor(kTable.data(), SMLA_I32, {2, 3});
        args.cu = make_tensor(this->cu.data(), SMLA_I32, {3});
        if (!this->starts.empty()) args.starts = make_tensor(this->starts.data(), SMLA_I32, {2});
    }
    // The cached row of token p of request r, -1 for a hole: spelt out for kTable.
    int64_t row_of(int r, int64_t p) const {
        if (p < 0 || p >= 12) return -1;
        const int32_t page = kTable[size_t(3 * r + p / kPageTokens)];
        return page < 0 || page > 2 ? -1 : page * test.page_rows() + p % kPageTokens;
    }
    std::vector<double> value_of(int64_t row) const {
        std::vector<double> out(size_t(test.width()), 0.);
        if (row >= 0) test.view().decode(row, out.data());
        return out;
    }
};

CacheShape interleaved(smla_format format) {
    CacheShape shape = shape_of(format, kPageTokens, 3);
    shape.page_rows = 7;
    shape.page_gap = 1152;
    return shape;
}

TEST(Gather, EveryFormatDequantised) {
    for (const smla_format format : kGathered)
        for (const bool f64 : {false, true}) {
            // request 0: tokens 2..8 (page 0, then past its pages); request 1: -1..4
            Fixture f(interleaved(format), {1, 8, 14}, {2, -1});
            const int64_t rows = 17, width = f.test.width(), stride = width + 3;
            std::vector<double> out64(size_t(rows * stride), -77.);
            std::vector<float> out32(size_t(rows * stride), -77.f);
            f.args.out = make_tensor(f64 ? static_cast<void*>(out64.data()) : out32.data(),
                                     f64 ? SMLA_F64 : SMLA_F32, {rows, width});
            f.args.out.stride_elems[0] = stride;
            GatherOp::check(f.args);
            EXPECT_EQ(GatherOp::tasks(f.args), rows);
            for (int64_t i = rows; i-- > 0;)
                GatherOp::reference(f.args, i, i + 1);  // one row a task, backwards
            for (int64_t i = 0; i < rows; ++i) {
                const bool inside = i >= 1 && i < 14;
                const int64_t row = i < 8 ? f.row_of(0, 2 + i - 1) : f.row_of(1, -1 + i - 8);
                const std::vector<double> want = f.value_of(row);
                for (int64_t d = 0; d < stride; ++d) {
                    const double got =
                        f64 ? out64[size_t(i * stride + d)] : double(out32[size_t(i * stride + d)]);
                    const double value = inside && d < width ? want[size_t(d)] : -77.;
                    EXPECT_EQ(got, f64 ? value : double(float(value)))
                        << find_format(format)->name << " " << i << "," << d;
                }
            }
        }
}

TEST(Gather, RoundsOnceToTheTypeOfOut) {
    Fixture f(shape_of(SMLA_ROW_F32, kPageTokens, 3), {0, 8, 8}, {});
    std::vector<uint16_t> bf16(8 * 48), f16(8 * 48);
    f.args.out = make_tensor(bf16.data(), SMLA_BF16, {8, 48});
    GatherOp::check(f.args);
    GatherOp::reference(f.args, 0, 8);
    f.args.out = make_tensor(f16.data(), SMLA_F16, {8, 48});
    GatherOp::reference(f.args, 0, 8);
    for (int64_t i = 0; i < 8; ++i) {
        const std::vector<double> want = f.value_of(f.row_of(0, i));
        for (int64_t d = 0; d < 48; ++d) {
            EXPECT_EQ(bf16[size_t(i * 48 + d)], f32_to_bf16(float(want[size_t(d)])));
            EXPECT_EQ(f16[size_t(i * 48 + d)], f32_to_f16(float(want[size_t(d)])));
        }
    }
}

TEST(Gather, RawCodesAndScalesBitForBit) {
    Fixture f(interleaved(SMLA_INDEX_FP8_132), {1, 8, 14}, {2, -1});
    const int64_t rows = 15, stride = 128 + 8;
    std::vector<uint8_t> out(size_t(rows * stride), 0x5a);
    std::vector<uint32_t> scales(size_t(rows * 2), 0x5a5a5a5au);
    std::memset(f.test.page(0) + 2 * 128, 0xff,
                128);  // NaN codes and a NaN scale with a payload: bits are kept
    const uint32_t nan = 0x7fc01234u;
    std::memcpy(f.test.page(0) + 4 * 128 + 2 * 4, &nan, 4);
    f.args.raw = 1;
    f.args.out = make_tensor(out.data(), SMLA_E4M3, {rows, 128});
    f.args.out.stride_elems[0] = stride;
    f.args.scales = make_tensor(scales.data(), SMLA_F32, {rows});
    f.args.scales.stride_elems[0] = 2;
    GatherOp::check(f.args);
    for (int64_t i = 0; i < rows; i += 4) GatherOp::reference(f.args, i, std::min(i + 4, rows));
    bool met_nan = false;
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = i < 8 ? f.row_of(0, 2 + i - 1) : f.row_of(1, -1 + i - 8);
        std::vector<uint8_t> want(136, 0x5a);
        uint32_t scale = 0x5a5a5a5au;
        if (i >= 1 && i < 14) {
            std::fill(want.begin(), want.begin() + 128, uint8_t(0));
            scale = 0;
            if (row >= 0) {
                const uint8_t* page = f.test.page(row / 7);
                std::memcpy(want.data(), page + row % 7 * 128, 128);
                std::memcpy(&scale, page + 4 * 128 + row % 7 * 4, 4);
            }
        }
        EXPECT_EQ(std::memcmp(out.data() + i * stride, want.data(), 136), 0) << i;
        EXPECT_EQ(scales[size_t(2 * i)], scale) << i;
        EXPECT_EQ(scales[size_t(2 * i + 1)], 0x5a5a5a5au);
        met_nan |= scale == nan;
    }
    EXPECT_TRUE(met_nan);
}

// Bounds come from data: whatever cu and starts hold, only rows of out are written and only cached rows are
// read.
TEST(Gather, MalformedBoundsStayInside) {
    const std::vector<std::vector<int32_t>> bounds = {
        {0, 0, 0},   {5, 2, 1}, {-3, 4, 20}, {INT32_MIN, INT32_MAX, 3}, {9, INT32_MIN, INT32_MAX},
        {12, 40, 50}};
    for (const std::vector<int32_t>& cu : bounds)
        for (const int32_t start : {0, -100, 11, INT32_MAX, INT32_MIN}) {
            Fixture f(interleaved(SMLA_FP8_656), cu, {start, start});
            std::vector<float> memory(14 * 576, -77.f);
            f.args.out = make_tensor(memory.data() + 576, SMLA_F32, {12, 576});
            GatherOp::check(f.args);
            GatherOp::reference(f.args, 5, 12);
            GatherOp::reference(f.args, 0, 5);
            for (int64_t i = -1; i < 13; ++i) {
                std::vector<double> want(576, -77.);
                for (int r = 0; r < 2; ++r)  // the request listed last wins
                    if (i >= 0 && i < 12 && i >= cu[size_t(r)] && i < cu[size_t(r) + 1])
                        want = f.value_of(f.row_of(r, int64_t(start) + i - cu[size_t(r)]));
                for (int64_t d = 0; d < 576; ++d)
                    ASSERT_EQ(memory[size_t((i + 1) * 576 + d)], float(want[size_t(d)]))
                        << i << " start " << start;
            }
        }
}

TEST(Gather, EmptyThings) {
    Fixture f(shape_of(SMLA_FP8_656, kPageTokens, 3), {0, 2, 2}, {});
    std::vector<float> out(2 * 576, -1.f);
    f.args.out = make_tensor(out.data(), SMLA_F32, {2, 576});
    f.args.block_table.shape[1] = 0;  // no columns: every token is a hole
    GatherOp::check(f.args);
    GatherOp::reference(f.args, 0, 2);
    for (const float v : out) EXPECT_EQ(v, 0.f);

    const int32_t zero = 0;
    f.args.block_table.shape[0] = 0;
    f.args.cu = make_tensor(&zero, SMLA_I32, {1});
    out.assign(out.size(), -1.f);
    GatherOp::check(f.args);
    GatherOp::reference(f.args, 0, 2);
    for (const float v : out) EXPECT_EQ(v, -1.f);
}

TEST(GatherCheck, RefusalsNameTheField) {
    TestCache kv(shape_of(SMLA_FP8_656)), index(shape_of(SMLA_INDEX_FP8_132)),
        state(shape_of(SMLA_STATE_F32));
    std::vector<char> memory(4 * 576 * 8);
    const auto tensor = [&](smla_dtype dtype, std::initializer_list<int64_t> shape) {
        return make_tensor(memory.data(), dtype, shape);
    };
    smla_gather_args dense{};
    dense.cache = kv.cache;
    dense.block_table = tensor(SMLA_I32, {2, 3});
    dense.cu = tensor(SMLA_I32, {3});
    dense.out = tensor(SMLA_BF16, {4, 576});
    smla_gather_args raw = dense;
    raw.raw = 1;
    raw.cache = index.cache;
    raw.out = tensor(SMLA_E4M3, {4, 128});
    raw.scales = tensor(SMLA_F32, {4});
    using Args = smla_gather_args;
    const auto refused = [](Args args, const std::function<void(Args&)>& change) -> std::string {
        change(args);
        return kit::refused_field([&] { GatherOp::check(args); });
    };
    EXPECT_EQ(refused(dense, [](Args&) {}), "");
    EXPECT_EQ(refused(raw, [](Args&) {}), "");
    EXPECT_EQ(refused(dense, [](Args& a) { a.raw = 2; }), "args.raw");
    EXPECT_EQ(refused(dense, [&](Args& a) { a.cache = state.cache; }), "args.cache.format");
    EXPECT_EQ(refused(raw, [&](Args& a) { a.cache = kv.cache; }), "args.cache.format");
    EXPECT_EQ(refused(dense, [](Args& a) { a.cache.pages = -1; }), "args.cache.pages");
    EXPECT_EQ(refused(dense, [](Args& a) { a.block_table.dtype = SMLA_I64; }), "args.block_table.dtype");
    EXPECT_EQ(refused(dense, [](Args& a) { a.block_table.ndim = 1; }), "args.block_table.shape");
    EXPECT_EQ(refused(dense, [](Args& a) { a.cu.shape[0] = 2; }), "args.cu.shape");
    EXPECT_EQ(refused(dense, [](Args& a) { a.cu.data = nullptr; }), "args.cu.data");
    EXPECT_EQ(refused(dense, [&](Args& a) { a.starts = tensor(SMLA_I32, {3}); }), "args.starts.shape");
    EXPECT_EQ(refused(dense, [&](Args& a) { a.starts = tensor(SMLA_I32, {2}); }), "");
    EXPECT_EQ(refused(dense, [](Args& a) { a.out.dtype = SMLA_E4M3; }), "args.out.dtype");
    EXPECT_EQ(refused(dense, [](Args& a) { a.out.shape[1] = 512; }), "args.out.shape");
    EXPECT_EQ(refused(dense, [&](Args& a) { a.scales = tensor(SMLA_F32, {4}); }), "args.scales");
    EXPECT_EQ(refused(raw, [](Args& a) { a.out.dtype = SMLA_BF16; }), "args.out.dtype");
    EXPECT_EQ(refused(raw, [](Args& a) { a.out.stride_elems[1] = 2; }), "args.out.stride_elems[1]");
    EXPECT_EQ(refused(raw, [](Args& a) { a.scales.ndim = 0; }), "args.scales");
    EXPECT_EQ(refused(raw, [](Args& a) { a.scales.shape[0] = 3; }), "args.scales.shape");
}

}  // namespace
}  // namespace smla::testing
