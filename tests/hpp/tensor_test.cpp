// Tensors, caches and views.
#include <smla/smla.hpp>

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace {

static_assert(smla::dtype_of<float> == SMLA_F32 && smla::dtype_of<int64_t> == SMLA_I64);
static_assert(smla::Element<const double> && !smla::Element<uint16_t> && !smla::Element<char>);

template <class Memory>
concept MakesTensor = requires(Memory&& memory) {
    smla::tensor(static_cast<Memory&&>(memory), {1});
};
// A tensor of a temporary vector would dangle; a view of other memory may be a temporary.
static_assert(MakesTensor<std::vector<float>&> && MakesTensor<const std::vector<float>&>);
static_assert(!MakesTensor<std::vector<float>> && MakesTensor<std::span<float>>);
static_assert(!MakesTensor<std::vector<uint16_t>&>);  // bf16 or f16? The dtype has to be named

template <class Body>
smla::Error refusal(Body&& body) {
    try {
        body();
    } catch (const smla::Error& error) {
        return error;
    }
    ADD_FAILURE() << "nothing was refused";
    return smla::Error(SMLA_OK, "", "", "");
}

TEST(HppTensor, dense_strides_for_every_rank) {
    std::vector<float> memory(24);
    const smla_tensor four = smla::tensor(memory, {1, 2, 3, 4});
    EXPECT_EQ(four.data, memory.data());
    EXPECT_EQ(four.dtype, SMLA_F32);
    EXPECT_EQ(four.device_type, SMLA_CPU);
    ASSERT_EQ(four.ndim, 4);
    const int64_t shape[] = {1, 2, 3, 4}, strides[] = {24, 12, 4, 1};
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(four.shape[i], shape[i]);
        EXPECT_EQ(four.stride_elems[i], strides[i]);
    }
    const smla_tensor one = smla::tensor(memory);
    EXPECT_EQ(one.ndim, 1);
    EXPECT_EQ(one.shape[0], 24);
    EXPECT_EQ(one.stride_elems[0], 1);
    EXPECT_EQ(one.shape[1], 0);
}

TEST(HppTensor, dtype_follows_the_element_or_is_named) {
    std::vector<int32_t> i32(2);
    const std::array<double, 2> f64{};
    uint8_t u8[2] = {};
    std::vector<uint16_t> bf16(2);
    EXPECT_EQ(smla::tensor(i32).dtype, SMLA_I32);
    EXPECT_EQ(smla::tensor(f64).dtype, SMLA_F64);
    EXPECT_EQ(smla::tensor(u8).dtype, SMLA_U8);
    EXPECT_EQ(smla::tensor(i32.data(), {1, 2}).dtype, SMLA_I32);
    EXPECT_EQ(smla::tensor(bf16.data(), SMLA_BF16, {1, 2}).dtype, SMLA_BF16);
}

TEST(HppTensor, a_shape_of_other_size_than_the_memory_is_refused) {
    std::vector<float> memory(12);
    const smla::Error error = refusal([&] { smla::tensor(memory, {3, 5}); });
    EXPECT_EQ(error.code, SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(error.field, "tensor.shape");
    EXPECT_NE(error.got.find("15"), std::string::npos);
    EXPECT_NE(error.wanted.find("12"), std::string::npos);
    EXPECT_EQ(refusal([&] { smla::tensor(memory, {3, 3}); }).field, "tensor.shape");
    EXPECT_EQ(refusal([&] { smla::tensor(memory.data(), {1, 1, 1, 1, 12}); }).field, "tensor.shape");
    EXPECT_NO_THROW(smla::tensor(std::span(memory).first(6), {2, 3}));
}

TEST(HppTensor, impossible_dimensions_are_refused) {
    std::vector<float> memory(12);
    const int64_t most = int64_t(1) << 48;
    EXPECT_EQ(refusal([&] { smla::tensor(memory, {-3, -4}); }).field, "tensor.shape[0]");
    EXPECT_EQ(refusal([&] { smla::tensor(memory, {12, -1}); }).got, "-1");
    EXPECT_EQ(refusal([&] { smla::tensor(memory, {1, 1, 1, 1, 12}); }).field, "tensor.shape");
    EXPECT_EQ(refusal([&] { smla::tensor(memory.data(), {-1}); }).field, "tensor.shape[0]");
    EXPECT_EQ(refusal([&] { smla::tensor(nullptr, SMLA_BF16, {2, most}); }).field, "tensor.shape[1]");
    EXPECT_EQ(refusal([&] { smla::tensor(nullptr, SMLA_BF16, {INT64_MAX}); }).field, "tensor.shape[0]");
    EXPECT_EQ(refusal([&] { smla::tensor(memory, {most, most}); }).field, "tensor.shape[1]");
    EXPECT_EQ(smla::tensor(nullptr, SMLA_BF16, {most}).shape[0], most);
    EXPECT_EQ(refusal([] { smla::Cpu().tensor<float>({2, -1}); }).field, "tensor.shape[1]");
}

TEST(HppTensor, bytes_of_caches) {
    // 656 bytes a record; page-packed fp8_584 pads its page to whole rows of 576 bytes: 64 * 584 = 37376 ->
    // 37440.
    EXPECT_EQ(smla::cache_bytes(smla::cache(nullptr, SMLA_FP8_656, 3, 64)), 3u * 64 * 656);
    EXPECT_EQ(smla::cache_bytes(smla::cache(nullptr, SMLA_FP8_584, 2, 64)), 2u * 37440);
    EXPECT_EQ(smla::cache_bytes(smla::cache(nullptr, SMLA_ROW_BF16, 5, 16, 576)), 5u * 16 * 1152);
    EXPECT_EQ(smla::cache_bytes(smla::cache(nullptr, SMLA_FP8_576, 1, 64)),
              64u * 576);  // its scale is not asked for
    EXPECT_EQ(smla::cache_bytes(smla::cache(nullptr, SMLA_ROW_F32, 0, 16, 4)), 0u);
    smla_cache strided = smla::cache(nullptr, SMLA_ROW_F32, 2, 4, 8);
    strided.page_stride_bytes = 1024;
    EXPECT_EQ(smla::cache_bytes(strided), 1024u + 4 * 8 * 4);

    EXPECT_EQ(refusal([] { smla::cache_bytes(smla::cache(nullptr, SMLA_ROW_F32, 1, 16)); }).field,
              "cache.width");
    EXPECT_EQ(refusal([] { smla::cache_bytes(smla::cache(nullptr, 99, 1, 16)); }).field, "cache.format");
    EXPECT_EQ(smla_cache_bytes(nullptr, nullptr), SMLA_INVALID_ARGUMENT);
    smla_cache fine = smla::cache(nullptr, SMLA_FP8_656, 1, 1);
    EXPECT_EQ(smla_cache_bytes(&fine, nullptr), SMLA_INVALID_ARGUMENT);
}

TEST(HppTensor, bytes_of_tensors) {
    smla_tensor tensor = smla::tensor(nullptr, SMLA_BF16, {3, 4});
    EXPECT_EQ(smla::tensor_bytes(tensor), 24u);
    tensor.stride_elems[0] = 10;  // rows apart: to the end of the last
    EXPECT_EQ(smla::tensor_bytes(tensor), 2u * (2 * 10 + 4));
    EXPECT_EQ(smla::tensor_bytes(smla::tensor(nullptr, SMLA_E2M1, {2, 3, 6})), 18u);
    EXPECT_EQ(smla::tensor_bytes(smla::tensor(nullptr, SMLA_I64, {2, 0, 6, 5})), 0u);
    EXPECT_EQ(smla::tensor_bytes({}), 0u);
    tensor.ndim = 5;
    EXPECT_EQ(refusal([&] { smla::tensor_bytes(tensor); }).field, "tensor.ndim");
    EXPECT_EQ(refusal([&] { smla::tensor_bytes(smla::tensor(nullptr, 77, {2})); }).field, "tensor.dtype");
    EXPECT_EQ(smla_tensor_bytes(nullptr, nullptr), SMLA_INVALID_ARGUMENT);
}

TEST(HppTensor, the_c_helper_makes_dense_tensors) {
    float memory[24];
    const smla_tensor four = smla_dense(memory, SMLA_F32, 4, 1, 2, 3, 4);
    const int64_t strides[] = {24, 12, 4, 1};
    for (int i = 0; i < 4; ++i) EXPECT_EQ(four.stride_elems[i], strides[i]);
    const smla_tensor two = smla_dense_on(SMLA_CUDA, 3, memory, SMLA_I32, 2, 4, 6, 99, 99);
    EXPECT_EQ(two.device_type, SMLA_CUDA);
    EXPECT_EQ(two.device_index, 3);
    EXPECT_EQ(two.ndim, 2);
    EXPECT_EQ(two.stride_elems[0], 6);
    EXPECT_EQ(two.shape[2], 0);
    EXPECT_EQ(smla_dense(memory, SMLA_F32, 0, 1, 1, 1, 1).ndim, 0);
    EXPECT_EQ(refusal([&] { smla::tensor_bytes(smla_dense(memory, SMLA_F32, 9, 1, 1, 1, 1)); }).field,
              "tensor.ndim");
}

TEST(HppFormat, a_format_tells_what_its_caches_take) {
    const smla_format_info v4 = smla::format_info(SMLA_FP8_584);
    EXPECT_STREQ(v4.name, "fp8_584");
    EXPECT_EQ(v4.width, 512);
    EXPECT_EQ(v4.packing, SMLA_PACKING_PAGE);
    EXPECT_EQ(v4.scale, SMLA_SCALE_E8M0);
    EXPECT_EQ(v4.values_per_scale, 64);
    EXPECT_EQ(v4.token_bytes, 584);
    EXPECT_EQ(v4.page_multiple_bytes, 576);
    const smla_format_info v3 = smla::format_info(SMLA_FP8_656, 576);
    EXPECT_EQ(v3.packing, SMLA_PACKING_ROW);
    EXPECT_EQ(v3.scale, SMLA_SCALE_F32);
    EXPECT_EQ(v3.values_per_scale, 128);
    EXPECT_EQ(v3.alignment_bytes, 4);
    EXPECT_EQ(smla::format_info(SMLA_INDEX_FP8_132).values_per_scale, 128);  // one per token
    EXPECT_EQ(smla::format_info(SMLA_INDEX_MXFP4_68).values_per_scale, 32);
    EXPECT_EQ(smla::format_info(SMLA_FP8_576).scale, SMLA_SCALE_PER_CACHE);
    const smla_format_info row = smla::format_info(SMLA_ROW_BF16, 576);
    EXPECT_EQ(row.token_bytes, 1152);
    EXPECT_EQ(row.max_width, 1024);
    EXPECT_EQ(row.scale, SMLA_SCALE_NONE);
    EXPECT_EQ(row.values_per_scale, 0);
    EXPECT_EQ(smla::format_info(SMLA_STATE_F32, 6).width_multiple, 2);
}

// What the header says of pages is what caches take, for every format and page size.
TEST(HppFormat, pages_follow_the_rule_of_the_header) {
    for (smla_format format = SMLA_ROW_F64; format <= SMLA_NVFP4_352; ++format) {
        const bool own_width = format >= SMLA_FP8_656 && format != SMLA_STATE_F32 && format != SMLA_STATE_F64;
        const smla_format_info info = smla::format_info(format, own_width ? 0 : 70);
        EXPECT_EQ(smla::format_by_name(info.name), format);
        for (const int64_t tokens : {1, 2, 3, 64, 71, 256}) {
            const int64_t records = tokens * info.token_bytes, multiple = info.page_multiple_bytes;
            EXPECT_EQ(smla::cache_bytes(smla::cache(nullptr, format, 1, int32_t(tokens), info.width)),
                      size_t((records + multiple - 1) / multiple * multiple))
                << info.name << " " << tokens;
        }
    }
}

TEST(HppFormat, what_a_format_does_not_take_is_refused) {
    EXPECT_EQ(refusal([] { smla::format_info(0); }).field, "format");
    EXPECT_EQ(refusal([] { smla::format_info(99); }).field, "format");
    EXPECT_EQ(refusal([] { smla::format_info(SMLA_FP8_656, 512); }).field, "width");
    EXPECT_EQ(refusal([] { smla::format_info(SMLA_ROW_F32); }).field, "width");
    EXPECT_EQ(refusal([] { smla::format_info(SMLA_ROW_F32, 1025); }).field, "width");
    EXPECT_EQ(refusal([] { smla::format_info(SMLA_STATE_F32, 7); }).field, "width");
    EXPECT_EQ(smla::format_by_name("bf16_576"), SMLA_ROW_BF16);
    const smla::Error unknown = refusal([] { smla::format_by_name("fp8_ds_mla"); });
    EXPECT_EQ(unknown.field, "name");
    EXPECT_NE(unknown.wanted.find("fp8_656"), std::string::npos);
    const smla::Error hostile = refusal([] { smla::format_by_name("a\n\x1b[2J\xc2\x9b\x7f"); });
    EXPECT_EQ(hostile.got, "a\\x0a\\x1b[2J\xc2\\x9b\\x7f");
    EXPECT_EQ(std::string(hostile.what()).find_first_of("\n\x1b\x7f"), std::string::npos);
    smla_format_info small{};
    small.struct_size = 8;
    EXPECT_EQ(smla_format_get_info(SMLA_FP8_656, 0, &small), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(smla_format_get_info(SMLA_FP8_656, 0, nullptr), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(smla_format_by_name(nullptr, nullptr), SMLA_INVALID_ARGUMENT);
}

TEST(HppView, rows_and_values) {
    std::vector<int32_t> memory{1, 2, 3, 4, 5, 6};
    const smla::View<int32_t> view("x", smla::tensor(memory, {2, 3}));
    EXPECT_EQ(view.rows(), 2);
    EXPECT_EQ(view.columns(), 3);
    EXPECT_EQ(view.row(1)[0], 4);
    EXPECT_EQ(view[5], 6);
    EXPECT_EQ(std::vector<int32_t>(view.begin(), view.end()), memory);
    view[0] = 7;
    EXPECT_EQ(memory[0], 7);
    EXPECT_TRUE(smla::View<int32_t>("absent", smla_tensor{}).empty());
    EXPECT_TRUE(smla::View<int32_t>().values().empty());
}

TEST(HppView, what_is_not_a_dense_array_of_the_type_is_refused) {
    std::vector<int32_t> memory(12);
    smla_tensor tensor = smla::tensor(memory, {3, 4});
    EXPECT_STREQ(refusal([&] { smla::View<int64_t>("x", tensor); }).what(), "x.dtype: got i32, wanted i64");
    EXPECT_EQ(refusal([&] { smla::View<double>("x", smla::tensor(&memory, SMLA_E8M0, {3})); }).got, "e8m0");
    EXPECT_EQ(refusal([&] { smla::View<double>("x", smla::tensor(&memory, 77, {3})); }).got,
              "unknown dtype 77");
    EXPECT_EQ(refusal([&] { smla::View<int32_t>("x", smla::tensor(memory, {1, 3, 4})); }).field, "x.ndim");
    smla_tensor spread = tensor;
    spread.shape[1] = 2;
    EXPECT_EQ(refusal([&] { smla::View<int32_t>("x", spread); }).field, "x.stride_elems[0]");
    smla_tensor crossed = tensor;
    crossed.shape[0] = 1, crossed.stride_elems[1] = 3;
    EXPECT_EQ(refusal([&] { smla::View<int32_t>("x", crossed); }).field, "x.stride_elems[1]");
    smla_tensor elsewhere = tensor;
    elsewhere.device_type = SMLA_CUDA;
    EXPECT_STREQ(refusal([&] { smla::View<int32_t>("x", elsewhere); }).what(),
                 "x.device_type: got cuda, wanted cpu");
}

}  // namespace
