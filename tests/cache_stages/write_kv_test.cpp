// write_kv: what lands in which row, and that nothing else is touched; what both write stages refuse.
#include "cache_stages/write_support.h"
#include "kit/refused.h"

#include <functional>

namespace smla::testing {
namespace {

constexpr smla_format kKv[] = {SMLA_ROW_F64,     SMLA_ROW_F32,           SMLA_ROW_BF16,  SMLA_FP8_656,
                               SMLA_FP8_576,     SMLA_FP8_584,           SMLA_FP8_512,   SMLA_FP8_528,
                               SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT,
                               SMLA_NVFP4_384,   SMLA_NVFP4_352};

TEST(WriteKv, HeadAndTailOfEveryDtypeIntoEveryFormat) {
    for (const smla_format format : kKv)
        for (const smla_dtype dtype : {SMLA_F32, SMLA_BF16, SMLA_F16, SMLA_F64})
            for (const int64_t tail : {0, 16}) {
                CacheShape shape = shape_of(format, 4, 3);
                shape.page_gap = 1152;
                TestCache test(shape);
                const Tokens tokens(5, test.width(), tail, dtype, 1);
                const std::vector<int64_t> slots = {11, 0, 6, -1, 3};
                smla_write_args args{};
                args.head = tokens.head;
                args.tail = tokens.tail;
                args.slots = slots_tensor(slots);
                args.cache = test.cache;
                run_in_pieces<WriteKvOp>(args);
                for (const int64_t t : {0, 1, 2, 4})
                    expect_row(test, slots[size_t(t)], tokens.row(t, test.width()));
                test.expect_untouched_except({11, 0, 6, 3});
            }
}

TEST(WriteKv, HolesWriteNothing) {
    for (const smla_format format : kKv) {
        CacheShape shape = shape_of(format, 4, 3);
        shape.page_rows = 6;
        shape.page_gap = 2304;
        TestCache test(shape);
        const Tokens tokens(10, test.width(), 0, SMLA_F32, 2);
        // negative, in the gap between pages, at and past the capacity (16), past 32 bits
        const std::vector<int64_t> slots = {-1, INT64_MIN, 4, 5, 10, 16, 17, INT64_MAX, int64_t(1) << 32, 15};
        smla_write_args args{};
        args.head = tokens.head;
        args.slots = slots_tensor(slots);
        args.cache = test.cache;
        run_in_pieces<WriteKvOp>(args);
        expect_row(test, 15, tokens.row(9, test.width()));
        test.expect_untouched_except({15});
    }
}

TEST(WriteKv, TokensPastTheSlotsArePadding) {
    TestCache test(shape_of(SMLA_FP8_656, 4, 2));
    Tokens tokens(6, 576, 64, SMLA_BF16, 3);
    const std::vector<int32_t> slots = {2, 7};
    std::memset(address(tokens.head, 2), 0xff, size_t(4 * tokens.head.stride_elems[0] * 2 - 16));
    smla_write_args args{};
    args.head = tokens.head;
    args.tail = tokens.tail;
    args.slots = slots_tensor(slots);
    args.cache = test.cache;
    EXPECT_EQ(WriteKvOp::tasks(args), 2);
    run_in_pieces<WriteKvOp>(args);
    expect_row(test, 2, tokens.row(0, 576));
    expect_row(test, 7, tokens.row(1, 576));
    test.expect_untouched_except({2, 7});
}

TEST(WriteKv, NoTokensAndNoPages) {
    TestCache test(shape_of(SMLA_FP8_584, 4, 1));
    smla_write_args args{};
    args.head = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {0, 512});
    args.slots = make_tensor(static_cast<void*>(nullptr), SMLA_I64, {0});
    args.cache = test.cache;
    run_in_pieces<WriteKvOp>(args);
    test.expect_untouched_except({});

    // a profiling run: the cache is not there yet
    const Tokens tokens(2, 512, 0, SMLA_F32, 4);
    const std::vector<int64_t> slots = {0, 1};
    args.head = tokens.head;
    args.slots = slots_tensor(slots);
    args.cache.data = nullptr;
    args.cache.pages = 0;
    run_in_pieces<WriteKvOp>(args);
}

TEST(WriteKv, StridedColumnsAndMixedDtypes) {
    TestCache test(shape_of(SMLA_ROW_F32, 4, 1));
    std::vector<float> transposed(40 * 3), tail(3 * 8);
    for (size_t i = 0; i < transposed.size(); ++i) transposed[i] = float(i);
    std::vector<uint16_t> tail_bits;
    for (size_t i = 0; i < tail.size(); ++i) tail_bits.push_back(f32_to_bf16(tail[i] = -float(i)));
    smla_write_args args{};
    args.head = make_tensor(transposed.data(), SMLA_F32, {3, 40});
    args.head.stride_elems[0] = 1;
    args.head.stride_elems[1] = 3;
    args.tail = make_tensor(tail_bits.data(), SMLA_BF16, {3, 8});
    const std::vector<int32_t> slots = {1, 0, 3};
    args.slots = slots_tensor(slots);
    args.cache = test.cache;
    run_in_pieces<WriteKvOp>(args);
    std::vector<float> row(48);
    test.view().decode(3, row.data());
    for (int i = 0; i < 40; ++i) EXPECT_EQ(row[size_t(i)], float(3 * i + 2));
    for (int i = 0; i < 8; ++i) EXPECT_EQ(row[size_t(40 + i)], -float(16 + i));
}

TEST(WriteKv, DoublesKeepAllBitsInRowF64) {
    TestCache test(shape_of(SMLA_ROW_F64, 2, 1));
    std::vector<double> head, row(48);
    for (int i = 0; i < 48; ++i) head.push_back(1. / (3 + i));
    const std::vector<int64_t> slots = {1};
    smla_write_args args{};
    args.head = make_tensor(head.data(), SMLA_F64, {1, 48});
    args.slots = slots_tensor(slots);
    args.cache = test.cache;
    run_in_pieces<WriteKvOp>(args);
    test.view().decode(1, row.data());
    EXPECT_EQ(row, head);
}

template <class Op>
std::string refused_field(const smla_write_args& args) {
    return kit::refused_field([&] { Op::check(args); }, SMLA_INVALID_ARGUMENT);
}

// Four tokens for fp8_656, refused by nothing.
struct GoodWrite {
    TestCache kv{shape_of(SMLA_FP8_656)};
    std::vector<float> head = std::vector<float>(4 * 576);
    std::vector<int64_t> slots = std::vector<int64_t>(4);

    smla_write_args args() {
        smla_write_args out{};
        out.head = make_tensor(head.data(), SMLA_F32, {4, 512});
        out.tail = make_tensor(head.data(), SMLA_F32, {4, 64});
        out.slots = make_tensor(slots.data(), SMLA_I64, {4});
        out.cache = kv.cache;
        return out;
    }
};

TEST(WriteCheck, RefusalsNameTheField) {
    GoodWrite write;
    smla_write_args good = write.args();
    TestCache index(shape_of(SMLA_INDEX_FP8_132)), odd(shape_of(SMLA_ROW_F32));
    EXPECT_EQ(refused_field<WriteKvOp>(good), "");
    EXPECT_EQ(refused_field<WriteIndexOp>(good), "args.cache.format");

    const auto refused = [&](const std::function<void(smla_write_args&)>& change) {
        smla_write_args args = good;
        change(args);
        return refused_field<WriteKvOp>(args);
    };
    using Args = smla_write_args;
    EXPECT_EQ(refused([](Args& a) { a.hadamard = 1; }), "args.hadamard");
    EXPECT_EQ(refused([&](Args& a) { a.cache = index.cache; }), "args.cache.format");
    EXPECT_EQ(refused([](Args& a) { a.cache.data = nullptr; }), "args.cache.data");
    EXPECT_EQ(refused([](Args& a) { a.head.ndim = 0; }), "args.head");
    EXPECT_EQ(refused([](Args& a) { a.head.dtype = SMLA_E4M3; }), "args.head.dtype");
    EXPECT_EQ(refused([](Args& a) { a.head.ndim = 3; }), "args.head.shape");
    EXPECT_EQ(refused([](Args& a) { a.head.data = nullptr; }), "args.head.data");
    EXPECT_EQ(refused([](Args& a) { a.head.shape[1] = 511; }), "args.head.shape[1] + args.tail.shape[1]");
    EXPECT_EQ(refused([](Args& a) { a.tail.ndim = 0; }), "args.head.shape[1]");
    EXPECT_EQ(refused([](Args& a) { a.tail.shape[0] = 3; }), "args.tail.shape");
    EXPECT_EQ(refused([](Args& a) { a.tail.dtype = SMLA_I32; }), "args.tail.dtype");
    EXPECT_EQ(refused([](Args& a) { a.slots.dtype = SMLA_F32; }), "args.slots.dtype");
    EXPECT_EQ(refused([](Args& a) { a.slots.ndim = 2; }), "args.slots.shape");
    EXPECT_EQ(refused([](Args& a) { a.slots.shape[0] = 5; }), "args.slots.shape[0]");
    EXPECT_EQ(refused([](Args& a) { a.slots.data = nullptr; }), "args.slots.data");
    EXPECT_EQ(refused([](Args& a) { a.slots.shape[0] = 3; }), "");

    good.head.shape[1] = 128;
    good.tail.ndim = 0;
    good.cache = index.cache;
    good.hadamard = 1;
    EXPECT_EQ(refused_field<WriteIndexOp>(good), "");
    good.hadamard = 2;
    EXPECT_EQ(refused_field<WriteIndexOp>(good), "args.hadamard");
    good.hadamard = 1;
    good.cache = odd.cache;  // 48 channels
    good.head.shape[1] = 48;
    EXPECT_EQ(refused_field<WriteIndexOp>(good), "args.cache.width");
    good.hadamard = 0;
    EXPECT_EQ(refused_field<WriteIndexOp>(good), "");
}

TEST(WriteCheck, RefusalsOfNormAndRotationNameTheField) {
    GoodWrite write;
    const smla_write_args good = write.args();
    using Args = smla_write_args;
    std::vector<double> frequencies(32);
    const Tensor vector = make_tensor(write.head.data(), SMLA_F32, {512}),
                 positions = make_tensor(write.slots.data(), SMLA_I64, {4}),
                 of_pairs = make_tensor(frequencies.data(), SMLA_F64, {32});
    const auto normed = [&](const std::function<void(smla_write_args&)>& change) {
        Args a = good;
        a.norm_weight = vector;
        a.eps = 1e-6;
        a.positions = positions;
        a.frequencies = of_pairs;
        a.rope_first = 512;
        change(a);
        return refused_field<WriteKvOp>(a);
    };
    EXPECT_EQ(normed([](Args&) {}), "");
    EXPECT_EQ(normed([](Args& a) { a.reserved = 1; }), "args.reserved");
    EXPECT_EQ(normed([](Args& a) { a.norm_kind = 2; }), "args.norm_kind");
    EXPECT_EQ(normed([](Args& a) { a.rope_style = -1; }), "args.rope_style");
    EXPECT_EQ(normed([](Args& a) { a.eps = 0; }), "args.eps");
    EXPECT_EQ(normed([](Args& a) { a.eps = 1e-60; }), "args.eps");
    EXPECT_EQ(normed([](Args& a) { a.norm_weight.shape[0] = 511; }), "args.norm_weight.shape");
    EXPECT_EQ(normed([&](Args& a) { a.norm_bias = vector; }), "args.norm_bias");
    EXPECT_EQ(normed([&](Args& a) {
                  a.norm_bias = vector;
                  a.norm_kind = SMLA_NORM_LAYER;
              }),
              "");
    EXPECT_EQ(normed([&](Args& a) {
                  a.norm_weight = {};
                  a.norm_bias = vector;
                  a.norm_kind = SMLA_NORM_LAYER;
              }),
              "args.norm_bias");
    EXPECT_EQ(normed([](Args& a) { a.frequencies = {}; }), "args.frequencies");
    EXPECT_EQ(normed([](Args& a) { a.positions = {}; }), "args.frequencies");
    EXPECT_EQ(normed([](Args& a) { a.positions.shape[0] = 3; }), "args.positions.shape");
    EXPECT_EQ(normed([](Args& a) { a.rope_first = 513; }), "args.rope_first");
    EXPECT_EQ(normed([](Args& a) { a.rope_first = -1; }), "args.rope_first");
    EXPECT_EQ(normed([](Args& a) { a.frequencies.shape[0] = 289; }), "args.frequencies.shape[0]");
    std::vector<float> values(4 * 576);
    EXPECT_EQ(normed([&](Args& a) { a.values = make_tensor(values.data(), SMLA_F32, {4, 576}); }), "");
    EXPECT_EQ(normed([&](Args& a) {
                  a.values = make_tensor(values.data(), SMLA_F32, {4, 575});
              }),
              "args.values.shape[1]");
    EXPECT_EQ(normed([&](Args& a) {
                  a.values = make_tensor(values.data(), SMLA_F64, {2, 576});
              }),
              "args.values.shape");
    EXPECT_EQ(normed([&](Args& a) {
                  a.values = make_tensor(values.data(), SMLA_F32, {4, 576});
                  a.values.dtype = SMLA_F64;
              }),
              "args.values.dtype");
}

}  // namespace
}  // namespace smla::testing
