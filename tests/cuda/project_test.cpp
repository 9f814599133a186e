// How products go to cuBLASLt: which, in how many parts, in how many passes, with how much scratch, and that
// what the library is told to compute is the product.
#include "engines/cuda/project/project.h"
#include "engines/cuda/project/split.h"
#include "ops/ops.h"
#include "support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace smla {
namespace {

smla_project_args product(smla_dtype x, smla_dtype w, smla_dtype out, int64_t tokens, int64_t groups,
                          int64_t outer, int64_t inner) {
    return {.x = shaped(x, {tokens, groups, inner}),
            .w = shaped(w, {groups, outer, inner}),
            .out = shaped(out, {tokens, groups, outer})};
}

TEST(CudaSplit, PartsOfAnF32AddUpToIt) {
    std::mt19937 random(1);
    for (int i = 0; i < 1000000; ++i) {
        float value = std::bit_cast<float>(uint32_t(random()));
        if (!std::isfinite(value) || std::fabs(value) < 0x1p-109f) value = float(random()) - 0x1p31f;
        float rest = value;
        const float a = bf16_to_f32(take_bf16(rest)), b = bf16_to_f32(take_bf16(rest)),
                    c = bf16_to_f32(take_bf16(rest));
        ASSERT_EQ(double(a) + double(b) + double(c), double(value));
        ASSERT_EQ(rest, 0.f);
    }
}

TEST(CudaSplit, TwoPartsHoldAnF16) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const float value = f16_to_f32(uint16_t(bits));
        if (!std::isfinite(value)) continue;
        float rest = value;
        const float a = bf16_to_f32(take_bf16(rest)), b = bf16_to_f32(take_bf16(rest));
        ASSERT_EQ(a + b, value) << bits;
    }
}

TEST(CudaSplit, TheLargestNumbersInfinitiesAndNanStayWhatTheyAre) {
    for (const float value : {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max()}) {
        float rest = value;
        const float a = bf16_to_f32(take_bf16(rest));
        EXPECT_TRUE(std::isfinite(a)) << "cut, not rounded up";
        EXPECT_EQ(double(a) + double(rest), double(value));
    }
    for (const float value : {INFINITY, -INFINITY, NAN, std::bit_cast<float>(0x7f800001u)}) {
        float rest = value;
        const float a = bf16_to_f32(take_bf16(rest));
        EXPECT_TRUE(a == value || (std::isnan(a) && std::isnan(value)));
        EXPECT_EQ(rest, 0.f) << "later parts add nothing";
    }
}

TEST(CudaProject, TypesDecideTheRoute) {
    struct Case {
        smla_dtype x, w, out;
        bool refused, converts, direct;
        int parts;
    };
    for (const Case& c : {Case{SMLA_F32, SMLA_F32, SMLA_F32, false, false, true, 1},
                          Case{SMLA_F32, SMLA_F32, SMLA_BF16, false, false, false, 1},
                          Case{SMLA_BF16, SMLA_F32, SMLA_F32, false, true, true, 1},
                          Case{SMLA_BF16, SMLA_BF16, SMLA_BF16, false, false, true, 1},
                          Case{SMLA_BF16, SMLA_BF16, SMLA_F32, false, false, true, 1},
                          Case{SMLA_BF16, SMLA_BF16, SMLA_F16, false, false, false, 1},
                          Case{SMLA_F32, SMLA_BF16, SMLA_F32, false, true, false, 3},
                          Case{SMLA_F16, SMLA_BF16, SMLA_F32, false, true, false, 2},
                          Case{SMLA_F16, SMLA_F16, SMLA_F16, false, false, true, 1},
                          Case{SMLA_F32, SMLA_F16, SMLA_F32, true, false, false, 1},
                          Case{SMLA_F64, SMLA_F64, SMLA_F64, true, false, false, 1}}) {
        const LtRoute route = lt_route(product(c.x, c.w, c.out, 5, 2, 64, 32), 0);
        SCOPED_TRACE(text(dtype_name(c.x), " ", dtype_name(c.w), " ", dtype_name(c.out)));
        EXPECT_EQ(!route.refusal.empty(), c.refused) << route.refusal;
        if (c.refused) continue;
        EXPECT_EQ(route.converts, c.converts);
        EXPECT_EQ(route.direct, c.direct);
        EXPECT_EQ(route.parts, c.parts);
        EXPECT_EQ(route.x_bytes > 0, c.converts);
        EXPECT_EQ(route.sum_bytes > 0, !c.direct);
    }
}

TEST(CudaProject, OverlappingRowsAndEmptySumsAreForTheLoops) {
    smla_project_args args = product(SMLA_F32, SMLA_F32, SMLA_F32, 5, 1, 64, 32);
    EXPECT_EQ(lt_route(args, 0).refusal, "");
    args.x.stride_elems[0] = 31;
    EXPECT_EQ(lt_route(args, 0).refusal, "rows of x overlap");
    args.x.stride_elems[0] = 32;
    args.w.stride_elems[1] = 16;
    EXPECT_EQ(lt_route(args, 0).refusal, "rows of w overlap");
    args = product(SMLA_F32, SMLA_F32, SMLA_F32, 5, 1, 64, 0);
    EXPECT_EQ(lt_route(args, 0).refusal, "the inner dimension is 0");
}

TEST(CudaProject, ScratchGrowsWithTokensAndKeepsBudgets) {
    for (const smla_dtype w : {SMLA_F32, SMLA_BF16}) {
        size_t before = 0;
        for (const int64_t tokens : {1, 2, 7, 8, 64, 500, 4096, 100000}) {
            const smla_project_args args = product(SMLA_F32, w, SMLA_F32, tokens, 4, 1000, 700);
            const LtRoute full = lt_route(args, 0);
            EXPECT_GE(full.scratch(), before) << tokens;
            before = full.scratch();
            for (const size_t budget : {size_t(1), size_t(100000), size_t(3) << 20, size_t(1) << 30}) {
                const LtRoute route = lt_route(args, budget);
                EXPECT_LE(route.scratch(), full.scratch());
                EXPECT_EQ(route.scratch() % kLtAlignment, 0u);
                const size_t needed = kWorkspaceHeader + kLtAlignment + route.scratch();
                if (route.pass_tokens > 1 && route.x_bytes + route.sum_bytes) {
                    EXPECT_LE(needed, budget);
                }
                const LtRoute again = lt_route(args, needed);  // a run with the memory that was asked for
                EXPECT_EQ(again.pass_tokens, route.pass_tokens);
                EXPECT_EQ(again.lt_bytes, route.lt_bytes);
            }
        }
    }
}

// Column-major products as the library documents them, in double.
double element_of(const std::vector<float>& data, int64_t at) { return data.at(size_t(at)); }
void multiply(const LtShape& s, const std::vector<float>& a, const std::vector<float>& b,
              std::vector<float>& d) {
    for (int64_t g = 0; g < s.batch; ++g)
        for (int64_t j = 0; j < s.n; ++j)
            for (int64_t i = 0; i < s.m; ++i) {
                double sum = 0;
                for (int64_t k = 0; k < s.k; ++k)
                    sum +=
                        element_of(a, g * s.step_a + (s.transposed ? i * s.lead_a + k : k * s.lead_a + i)) *
                        element_of(b, g * s.step_b + j * s.lead_b + k);
                d.at(size_t(g * s.step_d + j * s.lead_d + i)) = float(sum);
            }
}

Tensor strided(std::vector<float>& memory, std::initializer_list<int64_t> shape, int64_t gap, bool swapped,
               std::mt19937& random) {
    Tensor out = make_tensor(static_cast<void*>(nullptr), SMLA_F32, shape);
    out.stride_elems[1] += swapped ? 0 : gap;
    out.stride_elems[0] = out.stride_elems[1] * out.shape[1] + gap;
    memory.resize(size_t(out.stride_elems[0] * out.shape[0] + 1));
    for (float& value : memory) value = float(int(random() % 17) - 8);
    out.data = memory.data();
    return out;
}

TEST(CudaProject, WhatTheLibraryIsToldIsTheProduct) {
    std::mt19937 random(2);
    for (int i = 0; i < 300; ++i) {
        const auto upto = [&](int64_t most) { return int64_t(1 + random() % uint64_t(most)); };
        const int64_t tokens = upto(4), groups = upto(3), outer = upto(5), inner = upto(5);
        std::vector<float> x, w, out, want;
        const bool turned = random() % 2;
        smla_project_args args{};
        args.x = strided(x, {tokens, groups, inner}, int64_t(random() % 3), false, random);
        args.w = turned ? transposed(strided(w, {groups, inner, outer}, int64_t(random() % 3), true, random))
                        : strided(w, {groups, outer, inner}, int64_t(random() % 3), false, random);
        args.out = strided(out, {tokens, groups, outer}, int64_t(random() % 3), false, random);
        ProjectOp::check(args);
        want = out;
        smla_project_args expected = args;
        expected.out.data = want.data();
        ProjectOp::reference(expected, 0, tokens);
        const LtRoute route = lt_route(args, 0);
        ASSERT_EQ(route.refusal, "");
        ASSERT_TRUE(route.direct && !route.converts);
        multiply(lt_shape(args, route, 0, tokens), w, x, out);
        ASSERT_EQ(out, want) << "T" << tokens << " G" << groups << " N" << outer << " K" << inner;
    }
}

TEST(CudaProject, OurKernelsComeFirstThenTheLibraryAndTheLoopsTakeTheRest) {
    FactsOnly device;
    const Env env = facts_env(device);
    const auto table = cuda_candidates<Stage::absorb>();
    ASSERT_EQ(table.size(), 4u);
    EXPECT_STREQ(table[0].name, "cuda_mma_project");
    EXPECT_STREQ(table[1].name, "cuda_few_project");
    EXPECT_STREQ(table[2].name, "cuda_cublaslt_project");
    EXPECT_STREQ(table[3].name, "cuda_generic_project");
    for (const smla_dtype x : {SMLA_F32, SMLA_BF16, SMLA_F16})
        for (const smla_dtype w : {SMLA_F32, SMLA_BF16, SMLA_F16}) {
            const smla_project_args args = product(x, w, SMLA_BF16, 3, 2, 8, 8);
            EXPECT_EQ(table[3].refuse(args, env), "");
            EXPECT_EQ(table[3].workspace(args, env, 0), kWorkspaceHeader);
            if (cublaslt().library.empty() && lt_route(args, 0).refusal.empty()) {
                EXPECT_EQ(table[2].refuse(args, env), "no cuBLASLt library was found");
            }
        }
    EXPECT_NE(table[3].refuse(product(SMLA_F64, SMLA_F64, SMLA_F64, 3, 2, 8, 8), env), "");
}

TEST(CudaProject, TheKernelOfFewTokensSaysWhatItDoesNotTake) {
    FactsOnly device;
    const Env env = facts_env(device);
    const auto refusal = [&](const smla_project_args& args) { return kFewTokensProject.refuse(args, env); };
    const auto sent_on = [&](const smla_project_args& args, const char* why) {
        EXPECT_NE(refusal(args).find(why), std::string::npos) << refusal(args);
    };
    for (const smla_dtype x : {SMLA_F32, SMLA_BF16, SMLA_F16}) {
        EXPECT_EQ(refusal(product(x, SMLA_BF16, SMLA_F32, 8, 2, 7, 64)), "");
        EXPECT_EQ(refusal(product(x, SMLA_F32, SMLA_BF16, 2, 2, 7, 64)), "");
        EXPECT_EQ(kFewTokensProject.workspace(product(x, SMLA_BF16, SMLA_F32, 8, 2, 7, 64), env, 0),
                  kWorkspaceHeader);
    }
    sent_on(product(SMLA_F32, SMLA_BF16, SMLA_F32, 9, 2, 7, 64), "9 tokens exceed the limit of 8");
    sent_on(product(SMLA_F32, SMLA_F32, SMLA_F32, 3, 2, 7, 64), "3 tokens exceed the limit of 2");
    sent_on(product(SMLA_F16, SMLA_F16, SMLA_F32, 1, 2, 7, 64), "weights must be f32 or bf16");
    sent_on(product(SMLA_F64, SMLA_BF16, SMLA_F64, 1, 2, 7, 64), "x and out must be f32, bf16 or f16");
    sent_on(product(SMLA_F32, SMLA_BF16, SMLA_F32, 1, 2, 7, 60), "aligned to 16 bytes");
    smla_project_args apart = product(SMLA_F32, SMLA_BF16, SMLA_F32, 2, 2, 7, 64);
    apart.x.stride_elems[0] += 2;  // 8 bytes
    sent_on(apart, "aligned to 16 bytes");

    const auto along_n = [](int64_t outer, int64_t inner) {
        smla_project_args args = product(SMLA_F32, SMLA_BF16, SMLA_F32, 4, 2, outer, inner);
        args.w.stride_elems[1] = 1, args.w.stride_elems[2] = outer;
        return args;
    };
    EXPECT_EQ(refusal(along_n(64, 1001)), "");
    sent_on(along_n(60, 128), "w must be contiguous along k or n");
    sent_on(along_n(64, 1025), "does not fit in shared memory");

    Env invariant = env;
    invariant.batch_invariant = true;
    const smla_project_args good = product(SMLA_F32, SMLA_BF16, SMLA_F32, 1, 2, 7, 64);
    EXPECT_NE(kFewTokensProject.refuse(good, invariant).find("batch-invariant"), std::string::npos);
}

TEST(CudaProject, TheKernelByMmaSaysWhatItDoesNotTake) {
    FactsOnly device;
    const Env env = facts_env(device);
    const auto refusal = [&](const smla_project_args& args) { return kMmaProject.refuse(args, env); };
    const auto sent_on = [&](const smla_project_args& args, const char* why) {
        EXPECT_NE(refusal(args).find(why), std::string::npos) << refusal(args);
    };
    const auto f32_by_bf16 = [](int64_t tokens, int64_t groups, int64_t outer, int64_t inner) {
        return product(SMLA_F32, SMLA_BF16, SMLA_F32, tokens, groups, outer, inner);
    };
    // few tokens; some of few outputs; more of many outputs and short sums
    for (const auto& args :
         {f32_by_bf16(5, 128, 512, 128), f32_by_bf16(9, 1, 8, 8), f32_by_bf16(16, 1, 7168, 16384),
          f32_by_bf16(64, 1, 576, 7168), f32_by_bf16(17, 128, 128, 512), f32_by_bf16(4096, 1, 24576, 1536)}) {
        EXPECT_EQ(refusal(args), "");
        EXPECT_EQ(kMmaProject.workspace(args, env, 0), kWorkspaceHeader);
    }
    sent_on(f32_by_bf16(4, 128, 512, 128), "cuda_few_project is faster");
    sent_on(f32_by_bf16(8, 1, 576, 7168), "cuda_few_project is faster");
    for (const auto& args : {f32_by_bf16(17, 1, 7168, 16384), f32_by_bf16(65, 1, 576, 1024)})
        if (cublaslt().library.empty()) EXPECT_EQ(refusal(args), "") << "faster than the loops";
        else sent_on(args, "cuda_cublaslt_project is faster");
    sent_on(product(SMLA_BF16, SMLA_BF16, SMLA_F32, 16, 2, 8, 64), "x must be f32 and w bf16");
    sent_on(product(SMLA_F32, SMLA_F32, SMLA_F32, 16, 2, 8, 64), "x must be f32 and w bf16");
    sent_on(product(SMLA_F32, SMLA_BF16, SMLA_F64, 16, 2, 8, 64), "out must be f32, bf16 or f16");
    sent_on(f32_by_bf16(16, 2, 7, 64), "at least 8 outputs, got 7");
    sent_on(f32_by_bf16(16, 2, 8, 60), "aligned to 16 bytes");
    smla_project_args apart = f32_by_bf16(16, 2, 8, 64);
    apart.x.stride_elems[0] += 2;  // 8 bytes
    sent_on(apart, "rows of x must be contiguous and aligned to 16 bytes");
    smla_project_args along_n = f32_by_bf16(16, 2, 12, 64);
    along_n.w.stride_elems[1] = 1, along_n.w.stride_elems[2] = 12;
    sent_on(along_n, "w must be contiguous along k or n");
    smla_project_args odd_rows = f32_by_bf16(16, 2, 8, 64);
    odd_rows.w.stride_elems[1] += 4, odd_rows.w.stride_elems[0] = 8 * odd_rows.w.stride_elems[1];
    sent_on(odd_rows, "rows of w must be aligned to 16 bytes");

    Env invariant = env;
    invariant.batch_invariant = true;
    EXPECT_NE(kMmaProject.refuse(f32_by_bf16(16, 2, 8, 64), invariant).find("batch-invariant"),
              std::string::npos);
}

}  // namespace
}  // namespace smla
