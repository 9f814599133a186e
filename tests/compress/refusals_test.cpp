// What compress and save_state refuse, by field.
#include "kit/refused.h"
#include "ops/compress/compress.h"
#include "ops/ops.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

namespace smla {
namespace {

double memory[4096];

Tensor tensor(smla_dtype dtype, std::initializer_list<int64_t> shape) {
    return make_tensor(static_cast<void*>(memory), dtype, shape);
}

smla_cache cache_of(smla_format format, int32_t width) {
    smla_cache cache{};
    cache.data = memory;
    cache.format = format;
    cache.width = width;
    cache.page_tokens = 4;
    cache.pages = 2;
    return cache;
}

// ratio 4, D 8: 6 tokens, 2 requests
smla_compress_args compress_args() {
    smla_compress_args args{};
    args.struct_size = sizeof args;
    args.ratio = 4;
    args.eps = 1e-6;
    args.state = cache_of(SMLA_STATE_F32, 32);
    args.state_table = tensor(SMLA_I32, {2, 3});
    args.request_of_token = tensor(SMLA_I32, {6});
    args.positions = tensor(SMLA_I64, {6});
    args.slots = tensor(SMLA_I64, {6});
    args.norm_weight = tensor(SMLA_BF16, {8});
    args.frequencies = tensor(SMLA_F64, {2});
    args.cache = cache_of(SMLA_ROW_BF16, 8);
    args.entries = tensor(SMLA_F32, {6, 8});
    return args;
}

std::string refused(const std::function<void(smla_compress_args&)>& spoil) {
    smla_compress_args args = compress_args();
    spoil(args);
    return kit::refused_field([&] { CompressOp::check(args); }, SMLA_INVALID_ARGUMENT);
}

TEST(CompressRefusals, Numbers) {
    using A = smla_compress_args;
    EXPECT_EQ(refused([](A&) {}), "");
    EXPECT_EQ(refused([](A& a) { a.ratio = 0; }), "args.ratio");
    EXPECT_EQ(refused([](A& a) { a.ratio = -4; }), "args.ratio");
    EXPECT_EQ(refused([](A& a) { a.no_overlap = 2; }), "args.no_overlap");
    EXPECT_EQ(refused([](A& a) { a.no_overlap = 1; }), "args.state.width");
    EXPECT_EQ(refused([](A& a) { a.no_overlap = 1, a.state.width = 16; }), "");
    EXPECT_EQ(refused([](A& a) { a.eps = 0; }), "args.eps");
    EXPECT_EQ(refused([](A& a) { a.eps = 0, a.norm_weight = {}; }), "");
    EXPECT_EQ(refused([](A& a) { a.eps = std::numeric_limits<double>::quiet_NaN(); }), "args.eps");
    EXPECT_EQ(refused([](A& a) { a.hadamard = 2; }), "args.hadamard");
    EXPECT_EQ(refused([](A& a) { a.hadamard = 1; }), "");
}

TEST(CompressRefusals, Caches) {
    using A = smla_compress_args;
    EXPECT_EQ(refused([](A& a) { a.state.format = SMLA_ROW_F32; }), "args.state.format");
    EXPECT_EQ(refused([](A& a) { a.state.width = 16; }), "args.state.width");
    EXPECT_EQ(refused([](A& a) { a.ratio = 128; }), "args.state.width");
    EXPECT_EQ(refused([](A& a) { a.ratio = 128, a.state.width = 16; }), "");
    EXPECT_EQ(refused([](A& a) { a.cache.format = SMLA_STATE_F32; }), "args.cache.format");
    EXPECT_EQ(refused([](A& a) { a.cache.format = SMLA_ROW_F64; }), "args.cache.format");
    EXPECT_EQ(refused([](A& a) { a.cache.format = SMLA_ROW_F64, a.state.format = SMLA_STATE_F64; }), "");
    EXPECT_EQ(refused([](A& a) { a.cache.width = 16; }), "args.norm_weight.shape");
    EXPECT_EQ(refused([](A& a) { a.cache.data = nullptr; }), "args.cache.data");
    const auto wide = [](A& a, smla_format format, int32_t width) {
        a.cache = cache_of(format, 0);
        a.state.width = 4 * width;
        a.norm_weight = tensor(SMLA_F32, {width});
        a.entries = {};
    };
    EXPECT_EQ(refused([&](A& a) { wide(a, SMLA_FP8_584, 512); }), "");
    EXPECT_EQ(refused([&](A& a) { wide(a, SMLA_FP8_584, 512), a.hadamard = 1; }), "args.hadamard");
    EXPECT_EQ(refused([&](A& a) { wide(a, SMLA_FP8_512, 512); }), "args.cache.scale");
    EXPECT_EQ(refused([&](A& a) { wide(a, SMLA_INDEX_FP8_132, 128), a.hadamard = 1; }), "");
    EXPECT_EQ(refused([](A& a) {
                  a.hadamard = 1;
                  a.cache.width = 12;
                  a.state.width = 48;
                  a.norm_weight = tensor(SMLA_F32, {12});
                  a.entries = {};
              }),
              "args.hadamard");
}

TEST(CompressRefusals, Tensors) {
    using A = smla_compress_args;
    EXPECT_EQ(refused([](A& a) { a.entries = {}; }), "");
    EXPECT_EQ(refused([](A& a) { a.entries = tensor(SMLA_F32, {5, 8}); }), "args.entries.shape");
    EXPECT_EQ(refused([](A& a) { a.entries.dtype = SMLA_F64; }), "args.entries.dtype");
    EXPECT_EQ(refused([](A& a) { a.slots = tensor(SMLA_I32, {4}); }), "");
    EXPECT_EQ(refused([](A& a) { a.slots = tensor(SMLA_I32, {7}); }), "args.slots.shape[0]");
    EXPECT_EQ(refused([](A& a) { a.slots.dtype = SMLA_F32; }), "args.slots.dtype");
    EXPECT_EQ(refused([](A& a) { a.positions.dtype = SMLA_F32; }), "args.positions.dtype");
    EXPECT_EQ(refused([](A& a) { a.request_of_token = tensor(SMLA_I32, {5}); }),
              "args.request_of_token.shape");
    EXPECT_EQ(refused([](A& a) { a.state_table = {}; }), "args.state_table");
    EXPECT_EQ(refused([](A& a) { a.norm_weight = tensor(SMLA_F32, {9}); }), "args.norm_weight.shape");
    EXPECT_EQ(refused([](A& a) { a.frequencies.dtype = SMLA_F32; }), "args.frequencies.dtype");
    EXPECT_EQ(refused([](A& a) { a.frequencies = tensor(SMLA_F64, {4}); }), "");
    EXPECT_EQ(refused([](A& a) { a.frequencies = tensor(SMLA_F64, {5}); }), "args.frequencies.shape[0]");
    EXPECT_EQ(refused([](A& a) { a.frequencies.stride_elems[0] = 2; }), "args.frequencies.stride_elems[0]");
}

std::string refused_save(const std::function<void(smla_save_state_args&)>& spoil) {
    smla_save_state_args args{};
    args.struct_size = sizeof args;
    args.kv = tensor(SMLA_BF16, {6, 16});
    args.score = tensor(SMLA_F32, {6, 16});
    args.ape = tensor(SMLA_F32, {4, 16});
    args.positions = tensor(SMLA_I32, {6});
    args.slots = tensor(SMLA_I64, {6});
    args.state = cache_of(SMLA_STATE_F32, 32);
    spoil(args);
    return kit::refused_field([&] { SaveStateOp::check(args); }, SMLA_INVALID_ARGUMENT);
}

TEST(SaveStateRefusals, ByField) {
    using A = smla_save_state_args;
    EXPECT_EQ(refused_save([](A&) {}), "");
    EXPECT_EQ(refused_save([](A& a) { a.state.format = SMLA_STATE_F64; }), "");
    EXPECT_EQ(refused_save([](A& a) { a.state.format = SMLA_ROW_BF16; }), "args.state.format");
    EXPECT_EQ(refused_save([](A& a) { a.state.width = 16; }), "args.state.width");
    EXPECT_EQ(refused_save([](A& a) { a.kv.dtype = SMLA_F64; }), "args.kv.dtype");
    EXPECT_EQ(refused_save([](A& a) { a.kv.dtype = SMLA_F64, a.state.format = SMLA_STATE_F64; }), "");
    EXPECT_EQ(refused_save([](A& a) { a.score = tensor(SMLA_F32, {6, 15}); }), "args.score.shape");
    EXPECT_EQ(refused_save([](A& a) { a.ape.dtype = SMLA_BF16; }), "args.ape.dtype");
    EXPECT_EQ(refused_save([](A& a) { a.ape = {}; }), "");
    EXPECT_EQ(refused_save([](A& a) { a.ape = tensor(SMLA_F32, {0, 16}); }), "args.ape.shape[0]");
    EXPECT_EQ(refused_save([](A& a) { a.ape = tensor(SMLA_F32, {4, 15}); }), "args.ape.shape");
    EXPECT_EQ(refused_save([](A& a) { a.positions = tensor(SMLA_I32, {5}); }), "args.positions.shape");
    EXPECT_EQ(refused_save([](A& a) { a.slots = tensor(SMLA_I64, {7}); }), "args.slots.shape[0]");
    EXPECT_EQ(refused_save([](A& a) { a.slots = tensor(SMLA_I64, {0}); }), "");
}

}  // namespace
}  // namespace smla
