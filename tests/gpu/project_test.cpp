// Products of f32 activations and bf16 weights by mma.sync: tails of every tile, both orders of weights,
// every bit of an activation, infinities, and bits that do not depend on the number of tokens.
#include "core/tensor.h"
#include "engines/context.h"
#include "gpu/needs_gpu.h"
#include "kit/context_args.h"
#include "kit/problem.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

namespace smla::test {

namespace {

struct Shape {
    int64_t tokens, groups, outer, inner;
    bool along_k = true;  // w is dense along k, else along n
    smla_dtype out = SMLA_F32;
};

class Product {
public:
    explicit Product(const Shape& shape)
        : shape(shape),
          x_(size_t(shape.tokens * shape.groups * shape.inner)),
          w_(size_t(shape.groups * shape.outer * shape.inner)) {}

    void fill_normal(uint32_t seed) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        for (float& x : x_) x = normal(random);
        for (uint16_t& w : w_) w = f32_to_bf16(normal(random));
    }
    float& x(int64_t token, int64_t group, int64_t k) {
        return x_[size_t((token * shape.groups + group) * shape.inner + k)];
    }
    uint16_t& w(int64_t group, int64_t n, int64_t k) {
        const int64_t place = shape.along_k ? n * shape.inner + k : k * shape.outer + n;
        return w_[size_t(group * shape.outer * shape.inner + place)];
    }
    std::vector<float>& all_x() { return x_; }

    // [tokens,G,N] of the first tokens. Nothing is written beside them.
    std::vector<float> run(const Env& env, int64_t tokens) {
        const int64_t pitch = shape.outer + kGap, rows = shape.tokens * shape.groups;
        std::vector<uint32_t> memory(size_t(rows * pitch), ~0u);
        smla_project_args args{};
        args.struct_size = sizeof args;
        args.x = make_tensor(x_.data(), SMLA_F32, {tokens, shape.groups, shape.inner});
        args.w = make_tensor(w_.data(), SMLA_BF16, {shape.groups, shape.outer, shape.inner});
        if (!shape.along_k) args.w.stride_elems[1] = 1, args.w.stride_elems[2] = shape.outer;
        args.out = make_tensor(memory.data(), shape.out, {tokens, shape.groups, shape.outer});
        args.out.stride_elems[1] = pitch, args.out.stride_elems[0] = pitch * shape.groups;
        kit::run_placed<Stage::project>(args, env);
        const auto* const halves = reinterpret_cast<const uint16_t*>(memory.data());
        const bool f32 = shape.out == SMLA_F32;
        std::vector<float> out;
        for (int64_t i = 0; i < rows * pitch; ++i) {
            const uint32_t bits = f32 ? memory[size_t(i)] : halves[i];
            if (i % pitch < shape.outer && i / pitch < tokens * shape.groups)
                out.push_back(f32 ? std::bit_cast<float>(bits) : bf16_to_f32(uint16_t(bits)));
            else EXPECT_EQ(bits, f32 ? ~0u : 0xffffu) << "written beside the results: " << i;
        }
        return out;
    }

    // Each result within the rounding of its sum and of its type.
    void expect_close(const std::vector<float>& got) {
        for (int64_t i = 0; i < int64_t(got.size()); ++i) {
            const int64_t n = i % shape.outer, token = i / shape.outer / shape.groups,
                          group = i / shape.outer % shape.groups;
            double sum = 0, size = 0;
            for (int64_t k = 0; k < shape.inner; ++k) {
                const double term = double(x(token, group, k)) * bf16_to_f32(w(group, n, k));
                sum += term, size += std::fabs(term);
            }
            ASSERT_NEAR(got[size_t(i)], sum,
                        kit::sum_error(shape.inner, false) * size + kit::rounding(shape.out) * std::fabs(sum))
                << "token " << token << " group " << group << " output " << n;
        }
    }

    const Shape shape;

private:
    static constexpr int64_t kGap = 8;  // between rows of results

    std::vector<float> x_;
    std::vector<uint16_t> w_;
};

class GpuMmaProject : public testing::Test {
protected:
    void SetUp() override {
        SMLA_NEEDS_GPU();
        context_ = std::make_unique<Context>(kit::context_args(SMLA_ENGINE_CUDA));
    }
    Env env() const {
        Env out = context_->env({});
        out.demanded[size_t(Stage::project)] = "cuda_mma_project";
        return out;
    }

private:
    std::unique_ptr<Context> context_;
};

// Tiles of 16 and 64 outputs, of 128 x 64; sums split between up to eight warps; parts of each at every end.
TEST_F(GpuMmaProject, TailsOfEveryTile) {
    for (Shape shape :
         {Shape{5, 110, 8, 8}, Shape{16, 1, 136, 2056}, Shape{9, 2, 77, 1000}, Shape{13, 110, 64, 264},
          Shape{8, 1, 6416, 520}, Shape{40, 1, 80, 2200}, Shape{17, 60, 136, 40}, Shape{65, 50, 129, 72},
          Shape{130, 12, 264, 264}, Shape{64, 110, 8, 0}})
        for (const bool along_k : {true, false})
            for (const smla_dtype out : {SMLA_F32, SMLA_BF16}) {
                if (!along_k && shape.outer % 8 != 0) continue;  // refused
                shape.along_k = along_k, shape.out = out;
                SCOPED_TRACE(text("T", shape.tokens, " G", shape.groups, " N", shape.outer, " K", shape.inner,
                                  along_k ? " along k" : " along n"));
                Product product(shape);
                product.fill_normal(uint32_t(shape.tokens * shape.outer));
                product.expect_close(product.run(env(), shape.tokens));
            }
}

// Weights of one 1 per output hand activations through.
TEST_F(GpuMmaProject, EveryBitOfAnActivationCounts) {
    constexpr int64_t groups = 60, width = 136;
    const auto from = [](int64_t n) { return (n * 5 + 3) % width; };
    std::mt19937 random(5);
    for (const int64_t tokens : {8, 70})
        for (const bool along_k : {true, false}) {
            Product product({tokens, groups, width, width, along_k});
            for (float& x : product.all_x())  // three parts of 8 bits
                x = std::ldexp(float(int32_t(random())), int(random() % 120) - 90);
            for (int64_t g = 0; g < groups; ++g)
                for (int64_t n = 0; n < width; ++n) product.w(g, n, from(n)) = f32_to_bf16(1);
            const std::vector<float> got = product.run(env(), tokens);
            for (int64_t i = 0; i < int64_t(got.size()); ++i)
                ASSERT_EQ(got[size_t(i)], product.x(i / width / groups, i / width % groups, from(i % width)));
        }
}

// An infinity is one where its weight is not zero, else NaN, as is a NaN; other tokens do not see them.
TEST_F(GpuMmaProject, InfinitiesAndNanStayInTheirToken) {
    constexpr int64_t width = 136, infinite = 35;
    for (const int64_t tokens : {8, 70})
        for (const bool along_k : {true, false}) {
            Product product({tokens, 60, width, 72, along_k});
            product.fill_normal(9);
            product.w(0, 11, infinite) = 0;
            const std::vector<float> before = product.run(env(), tokens);
            product.x(3, 0, infinite) = -INFINITY;
            product.x(5, 0, 70) = std::bit_cast<float>(0x7f800001u);  // its upper half is that of an infinity
            const std::vector<float> got = product.run(env(), tokens);
            for (int64_t i = 0; i < int64_t(got.size()); ++i) {
                const float value = got[size_t(i)], w = bf16_to_f32(product.w(0, i % width, infinite));
                const int64_t row = i / width;
                if (row == 3 * 60)
                    ASSERT_TRUE(w == 0 ? std::isnan(value) : value == std::copysign(INFINITY, -w)) << i;
                else if (row == 5 * 60) ASSERT_TRUE(std::isnan(value)) << i;
                else ASSERT_EQ(value, before[size_t(i)]) << i;
            }
        }
}

// Within each of the two kernels; the number of tokens decides which of them runs.
TEST_F(GpuMmaProject, BitsOfATokenDoNotDependOnOthers) {
    const auto expect_same = [](const std::vector<float>& part, const std::vector<float>& all) {
        EXPECT_EQ(std::memcmp(part.data(), all.data(), part.size() * sizeof(float)), 0);
    };
    for (const bool along_k : {true, false}) {
        Product product({150, 60, 200, 296, along_k});
        product.fill_normal(3);
        const std::vector<float> few = product.run(env(), 16), many = product.run(env(), 150);
        expect_same(product.run(env(), 7), few);
        expect_same(product.run(env(), 20), many);
        expect_same(product.run(env(), 150), many);
    }
}

}  // namespace

}  // namespace smla::test
