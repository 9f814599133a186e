#include "ops/quant_index_q/quant_index_q.h"

#include "index/cases.h"
#include "kit/refused.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace smla::test {
namespace {

struct Quantized {
    std::vector<uint8_t> codes, scales;
    std::vector<float> w;
};

struct QuantCase {
    int64_t tokens = 1, heads = 1, width = 128;
    std::vector<float> q, w;
    double factor = 1, floor = 0;
    bool hadamard = false;

    explicit QuantCase(std::vector<float> row) : width(int64_t(row.size())), q(std::move(row)), w{1.f} {}
    QuantCase(int64_t tokens, int64_t heads, int64_t width, uint32_t seed)
        : tokens(tokens), heads(heads), width(width) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < tokens * heads * width; ++i) q.push_back(normal(random));
        for (int64_t i = 0; i < tokens * heads; ++i) w.push_back(normal(random));
    }

    Quantized run(smla_dtype out) const {
        Quantized got;
        const size_t n = size_t(tokens * heads);
        got.codes.assign(n * size_t(width) * size_t(dtype_bits(out)) / 8 + 16, 0xcd);
        got.scales.assign(n * size_t(width) / 32 + 1, 0xcd);
        got.w.assign(n, kCanary);
        smla_quant_index_q_args args{};
        args.hadamard = hadamard;
        args.factor = factor;
        args.amax_floor = floor;
        args.q = make_tensor(q.data(), SMLA_F32, {tokens, heads, width});
        args.w = make_tensor(w.data(), SMLA_F32, {tokens, heads});
        args.q_out = make_tensor(got.codes.data(), out, {tokens, heads, width});
        if (out == SMLA_E2M1)
            args.scales = make_tensor(got.scales.data(), SMLA_E8M0, {tokens, heads, width / 32});
        args.w_out = make_tensor(got.w.data(), SMLA_F32, {tokens, heads});
        run_stage<Stage::quant_index_q>(args, Runner(best_isa(), 2).env);
        for (size_t i = got.codes.size() - 16; i < got.codes.size(); ++i)
            EXPECT_EQ(got.codes[i], 0xcd) << "past q_out";
        EXPECT_EQ(got.scales.back(), 0xcd) << "past scales";
        return got;
    }
};

// The power of two that a scale must be, by search: the least one that brings `amax` within `limit`.
double least_power(double amax, double limit) {
    double scale = 0x1p-127;
    while (amax / scale > limit) scale *= 2;
    return scale;
}

TEST(QuantIndexQ, ScaleIsTheLeastPowerOfTwoThatFits) {
    for (const float amax : {448.f, std::nextafter(448.f, 1e9f), std::nextafter(448.f, 0.f), 447.f, 1.f,
                             1.75f, 1e-3f, 3.5e-4f, 100.f, 896.f, 897.f, 1e30f}) {
        std::vector<float> row(128, 0.f);
        row[7] = -amax;
        const Quantized got = QuantCase(row).run(SMLA_E4M3);
        const double scale = least_power(amax, 448);
        EXPECT_EQ(double(got.w[0]), scale) << amax;
        EXPECT_EQ(got.codes[7], f32_to_e4m3(float(-amax / scale))) << amax;
        EXPECT_EQ(got.codes[8], 0);
    }
}

TEST(QuantIndexQ, SmallRowsTakeTheFloor) {
    std::vector<float> row(128, 0.f);
    row[0] = 5e-5f;
    EXPECT_EQ(double(QuantCase(row).run(SMLA_E4M3).w[0]), least_power(1e-4, 448));
    QuantCase v32(row);
    v32.floor = 1e-10;
    EXPECT_EQ(double(v32.run(SMLA_E4M3).w[0]), least_power(5e-5, 448));
    row[0] = 0;
    EXPECT_EQ(double(QuantCase(row).run(SMLA_E4M3).w[0]), least_power(1e-4, 448));
}

TEST(QuantIndexQ, EveryBf16PatternIsRoundedLikeItself) {
    for (uint32_t first = 0; first < 65536; first += 128) {
        std::vector<float> row;
        for (uint32_t bits = first; bits < first + 128; ++bits) row.push_back(bf16_to_f32(uint16_t(bits)));
        double amax = 1e-4;
        for (const float value : row)
            if (!std::isnan(value)) amax = std::max(amax, std::fabs(double(value)));
        const double scale = std::isinf(amax) ? 0x1p127 : least_power(amax, 448);
        const Quantized got = QuantCase(row).run(SMLA_E4M3);
        ASSERT_EQ(double(got.w[0]), scale);
        for (size_t i = 0; i < row.size(); ++i) {
            if (std::isnan(row[i])) ASSERT_EQ(got.codes[i] & 0x7f, 0x7f);
            else ASSERT_EQ(got.codes[i], f32_to_e4m3(float(double(row[i]) / scale))) << row[i];
        }
    }
}

TEST(QuantIndexQ, WeightsCarryScaleAndFactor) {
    QuantCase test(5, 7, 64, 3);
    test.factor = std::pow(7, -0.5) * std::pow(64, -0.5);
    const Quantized got = test.run(SMLA_E4M3);
    for (int64_t i = 0; i < 35; ++i) {
        double amax = 0;
        for (int64_t d = 0; d < 64; ++d) amax = std::max(amax, std::fabs(double(test.q[size_t(i * 64 + d)])));
        // two roundings: the factor to f32, and its product with w; the scale is a power of two
        const double want = double(test.w[size_t(i)]) * test.factor * least_power(amax, 448);
        EXPECT_NEAR(got.w[size_t(i)], want, std::fabs(want) * 0x1p-23);
    }
}

TEST(QuantIndexQ, Mxfp4GroupsHaveTheirOwnScales) {
    const QuantCase test(3, 2, 96, 5);
    const Quantized got = test.run(SMLA_E2M1);
    for (int64_t i = 0; i < 6; ++i) {
        EXPECT_EQ(got.w[size_t(i)], test.w[size_t(i)]);  // the scales stay with q
        for (int64_t group = 0; group < 3; ++group) {
            double amax = 0;
            for (int64_t d = 0; d < 32; ++d)
                amax = std::max(amax, std::fabs(double(test.q[size_t(i * 96 + group * 32 + d)])));
            const double scale = least_power(amax, 6);
            EXPECT_EQ(double(e8m0_to_f32(got.scales[size_t(i * 3 + group)])), scale);
            for (int64_t d = 0; d < 32; ++d) {
                const size_t at = size_t(i * 96 + group * 32 + d);
                const uint8_t code = uint8_t(got.codes[at / 2] >> (at % 2 * 4) & 15);
                EXPECT_EQ(code, f32_to_e2m1(float(test.q[at] / scale))) << at;
            }
        }
    }
    std::vector<float> row(64, 1.f);
    row[40] = std::nanf("");
    const Quantized nan = QuantCase(row).run(SMLA_E2M1);
    EXPECT_EQ(nan.scales[0], 127 - 2);  // 1 / 6 fits 2^-2
    EXPECT_EQ(nan.scales[1], 255);
}

TEST(QuantIndexQ, PlainOutputsAreCopies) {
    QuantCase test(2, 3, 10, 7);
    test.factor = 0.5;
    const Quantized f32 = test.run(SMLA_F32), bf16 = test.run(SMLA_BF16);
    EXPECT_EQ(std::memcmp(f32.codes.data(), test.q.data(), test.q.size() * 4), 0);
    for (size_t i = 0; i < test.q.size(); ++i) {
        uint16_t bits;
        std::memcpy(&bits, bf16.codes.data() + 2 * i, 2);
        EXPECT_EQ(bits, f32_to_bf16(test.q[i]));
    }
    for (size_t i = 0; i < test.w.size(); ++i) EXPECT_EQ(f32.w[i], test.w[i] * 0.5f);
}

// Both sides rotated: q . k is what it was, to 2^-24 per each of 2 * 7 + 3 roundings of terms of size |q||k|.
TEST(QuantIndexQ, HadamardKeepsDotProducts) {
    QuantCase q(1, 1, 128, 11), k(1, 1, 128, 12);
    q.hadamard = k.hadamard = true;
    const Quantized a = q.run(SMLA_F32), b = k.run(SMLA_F32);
    double plain = 0, rotated = 0, size_q = 0, size_k = 0, moved = 0;
    for (size_t d = 0; d < 128; ++d) {
        float x, y;
        std::memcpy(&x, a.codes.data() + 4 * d, 4);
        std::memcpy(&y, b.codes.data() + 4 * d, 4);
        plain += double(q.q[d]) * k.q[d];
        rotated += double(x) * y;
        size_q += double(q.q[d]) * q.q[d];
        size_k += double(k.q[d]) * k.q[d];
        moved += std::fabs(double(x) - q.q[d]);
    }
    EXPECT_NEAR(rotated, plain, 17 * 0x1p-24 * std::sqrt(size_q * size_k));
    EXPECT_GT(moved, 10);  // it did rotate
}

TEST(QuantIndexQ, DoubleIn) {
    const std::vector<double> q = {448.0000001, 1, 0, -3}, w = {3};
    std::vector<uint8_t> codes(4);
    std::vector<double> out(1);
    smla_quant_index_q_args args{};
    args.factor = 0.1;
    args.q = make_tensor(q.data(), SMLA_F64, {1, 1, 4});
    args.w = make_tensor(w.data(), SMLA_F64, {1, 1});
    args.q_out = make_tensor(codes.data(), SMLA_E4M3, {1, 1, 4});
    args.w_out = make_tensor(out.data(), SMLA_F64, {1, 1});
    run_stage<Stage::quant_index_q>(args, Runner().env);
    EXPECT_EQ(out[0], 3 * 0.1 * 2);  // in f32 the first value would be 448 and the scale 1
    EXPECT_EQ(codes[0], f32_to_e4m3(224));
}

TEST(QuantIndexQ, BadArgumentsAreRefusedByName) {
    const auto refusal = [](const std::function<void(smla_quant_index_q_args&)>& change) {
        std::vector<float> q(64), w(1), w_out(1);
        std::vector<uint8_t> codes(64), scales(2);
        smla_quant_index_q_args args{};
        args.factor = 1;
        args.q = make_tensor(q.data(), SMLA_F32, {1, 1, 64});
        args.w = make_tensor(w.data(), SMLA_F32, {1, 1});
        args.q_out = make_tensor(codes.data(), SMLA_E4M3, {1, 1, 64});
        args.w_out = make_tensor(w_out.data(), SMLA_F32, {1, 1});
        change(args);
        return kit::refused_field([&] { run_stage<Stage::quant_index_q>(args, Runner().env); });
    };
    using Args = smla_quant_index_q_args;
    EXPECT_EQ(refusal([](Args&) {}), "");
    EXPECT_EQ(refusal([](Args& a) { a.hadamard = 2; }), "args.hadamard");
    EXPECT_EQ(refusal([](Args& a) { a.factor = 0; }), "args.factor");
    EXPECT_EQ(refusal([](Args& a) { a.amax_floor = -1; }), "args.amax_floor");
    EXPECT_EQ(refusal([](Args& a) { a.q_out.dtype = SMLA_I32; }), "args.q_out.dtype");
    EXPECT_EQ(refusal([](Args& a) { a.q_out.dtype = SMLA_E2M1; }), "args.scales");
    EXPECT_EQ(refusal([](Args& a) { a.scales = a.w; }), "args.scales");
    EXPECT_EQ(refusal([](Args& a) { a.w_out.dtype = SMLA_BF16; }), "args.w_out.dtype");
    EXPECT_EQ(refusal([](Args& a) {
                  a.hadamard = 1;
                  a.q.shape[2] = a.q_out.shape[2] = 48;
              }),
              "args.q.shape[2]");
    std::vector<double> frequencies(40);
    int32_t positions[2] = {1, 2};
    const auto turned = [&](const std::function<void(smla_quant_index_q_args&)>& change) {
        return refusal([&](Args& a) {
            a.positions = make_tensor(positions, SMLA_I32, {1});
            a.frequencies = make_tensor(frequencies.data(), SMLA_F64, {32});
            change(a);
        });
    };
    EXPECT_EQ(turned([](Args&) {}), "");
    EXPECT_EQ(turned([](Args& a) { a.rope_style = 2; }), "args.rope_style");
    EXPECT_EQ(turned([](Args& a) { a.rope_first = 1; }), "args.rope_first");
    EXPECT_EQ(turned([](Args& a) { a.frequencies.shape[0] = 33; }), "args.frequencies.shape[0]");
    EXPECT_EQ(turned([](Args& a) { a.frequencies = {}; }), "args.frequencies");
    EXPECT_EQ(turned([](Args& a) { a.positions.shape[0] = 2; }), "args.positions.shape");
    std::vector<float> rotated(64);
    EXPECT_EQ(turned([&](Args& a) { a.rotated = make_tensor(rotated.data(), SMLA_F32, {1, 1, 64}); }), "");
    EXPECT_EQ(turned([&](Args& a) {
                  a.rotated = make_tensor(rotated.data(), SMLA_F32, {1, 1, 63});
              }),
              "args.rotated.shape");
}

}  // namespace
}  // namespace smla::test
