#include "model/dequantise.h"
#include "core/workspace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace smla {
namespace {

TEST(Dequantise, ByHandWithPartialBlocks) {
    // 3 x 5 in blocks of 2 x 4: the last row block has 1 row, the last column block 1 column
    const uint8_t codes[3][5] = {{0x38, 0x40, 0xb8, 0x00, 0x7e},   // 1, 2, -1, 0 | 448
                                 {0x01, 0x30, 0x38, 0x48, 0xfe},   // 2^-9, 0.5, 1, 4 | -448
                                 {0x38, 0x39, 0x3f, 0xc0, 0x38}};  // 1, 1.125, 1.875, -2 | 1
    const float scales[2][2] = {{0.5f, 0.25f}, {3.f, 0.1f}};
    const float expected[3][5] = {{0.5f, 1.f, -0.5f, 0.f, 112.f},
                                  {0x1p-10f, 0.25f, 0.5f, 2.f, -112.f},
                                  {3.f, 3.375f, 5.625f, -6.f, 0.1f}};
    const Tensor c = make_tensor(codes, SMLA_E4M3, {3, 5}), s = make_tensor(scales, SMLA_F32, {2, 2});
    const HostTensor f32 = dequantise(c, s, {2, 4}, SMLA_F32), f64 = dequantise(c, s, {2, 4}, SMLA_F64),
                     bf16 = dequantise(c, s, {2, 4}, SMLA_BF16);
    for (int64_t i = 0; i < 3; ++i)
        for (int64_t j = 0; j < 5; ++j) {
            EXPECT_EQ(load_one<float>(f32.view, i, j), expected[i][j]) << i << "," << j;
            EXPECT_EQ(load_one<float>(bf16.view, i, j), round_to_bf16(expected[i][j])) << i << "," << j;
        }
    EXPECT_EQ(load_one<double>(f64.view, 2, 4), double(0.1f));
    EXPECT_EQ(scale_shape(c, {2, 4}).rows, 2);
    EXPECT_EQ(scale_shape(c, {2, 4}).columns, 2);
    EXPECT_EQ(scale_shape(c, {3, 5}).rows, 1);
    EXPECT_EQ(scale_shape(c, {1, 2}).columns, 3);
}

TEST(Dequantise, PowersOfTwoAsE8m0) {
    const uint8_t codes[4] = {0x38, 0x38, 0xb9, 0x7e};
    const uint8_t scales[2] = {120, 130};  // 2^-7, 2^3
    const HostTensor out = dequantise(make_tensor(codes, SMLA_E4M3, {1, 4}),
                                      make_tensor(scales, SMLA_E8M0, {1, 2}), {128, 2}, SMLA_F32);
    const float expected[4] = {0x1p-7f, 0x1p-7f, -9.f, 3584.f};
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(load_one<float>(out.view, 0, i), expected[i]);
}

// 448 rows a head are no multiple of 128: the blocks run through the heads.
TEST(Dequantise, GlmHeadsStraddleBlocks) {
    std::mt19937 random(5);
    const int64_t rows = 896, columns = 130;
    std::vector<uint8_t> codes(size_t(rows * columns));
    for (uint8_t& code : codes) code = uint8_t(random() % 0x7f);
    std::vector<float> scales(7 * 2);
    for (float& scale : scales)
        scale = std::ldexp(1.f + float(random() % 1000) / 1000.f, int(random() % 9) - 12);
    const HostTensor out = dequantise(make_tensor(codes.data(), SMLA_E4M3, {rows, columns}),
                                      make_tensor(scales.data(), SMLA_F32, {7, 2}), {128, 128}, SMLA_F64);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
            ASSERT_EQ(load_one<double>(out.view, r, c), double(e4m3_to_f32(codes[size_t(r * columns + c)])) *
                                                            double(scales[size_t(r / 128 * 2 + c / 128)]))
                << r << "," << c;
}

TEST(ConvertWeight, RoundsOnceOrNotAtAll) {
    std::vector<float> values(2500);
    std::mt19937 random(7);
    for (float& value : values)
        value = std::ldexp(float(int(random() % 200001) - 100000), int(random() % 30) - 20);
    HostTensor stored;
    stored.view = make_tensor(values.data(), SMLA_F32, {50, 50});
    EXPECT_EQ(convert_weight(stored, SMLA_F32).view.data, values.data());
    const HostTensor f64 = convert_weight(stored, SMLA_F64), bf16 = convert_weight(stored, SMLA_BF16);
    for (int64_t i = 0; i < 2500; ++i) {
        EXPECT_EQ(load_one<double>(f64.view, i / 50, i % 50), double(values[size_t(i)]));
        EXPECT_EQ(load_one<float>(bf16.view, i / 50, i % 50), round_to_bf16(values[size_t(i)]));
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(f64.view.data) % kCacheLine, 0u);
}

}  // namespace
}  // namespace smla
