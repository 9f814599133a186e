// Bugs that engines of this field had in sparse attention, as regression tests. Each names its public report.
#include "support.h"

#include "kit/mapped.h"
#include "ops/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace attend_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Spec v32(int64_t k, int64_t heads = 5) {
    Spec spec;
    spec.primary.format = SMLA_FP8_656;
    spec.primary.k = k;
    spec.heads = heads;
    return spec;
}
Spec v4(int64_t k, int64_t extra_k, int64_t heads = 5) {
    Spec spec;
    spec.width = 512;
    spec.heads = heads;
    spec.primary.format = spec.extra.format = SMLA_FP8_584;
    spec.primary.k = k;
    spec.extra.k = extra_k;
    return spec;
}

TEST(FieldBugs, T01_FirstTileWithoutAValidKey) {  // vllm#48364
    Problem problem(v32(300));
    for (int64_t j = 0; j < 300; ++j) {
        const int32_t hole = j % 2 ? -1 : 512;
        if (j < 290) problem.row(0, j) = hole;             // only the last tile
        if (j < 140 || j > 150) problem.row(1, j) = hole;  // only the middle
    }
    check_all(problem);
}

TEST(FieldBugs, T02_T03_NoValidKeyWithAnySink) {  // vllm#46076, #49054; NVIDIA/cudnn-frontend#333
    ThreadPool pool(4);                           // split over rows too
    for (const float sink : {kInfinity, -kInfinity, 1e4f, -1e4f, 0.f}) {
        Spec spec = v32(1100);
        spec.tokens = 1;
        spec.sink = true;
        Problem problem(spec);
        problem.sink.assign(problem.sink.size(), sink);
        for (auto& row : problem.primary_rows) row = -1;
        check_all(problem, &pool);
        EXPECT_EQ(problem.value(0, 0, 0), 0.f);
        EXPECT_EQ(problem.lse[0], -kInfinity);
        EXPECT_EQ(problem.max_logits[0], -kInfinity);
        problem.row(0, 800) = 5;  // a single key in one split
        if (!std::isinf(sink)) check_all(problem, &pool);
        for (const std::string& kernel : kernels(problem, best_env(&pool))) {
            problem.poison_outputs();
            run_kernel(kernel, problem, best_env(&pool));
            const std::vector<double> key = [&] {
                std::vector<double> v(576);
                problem.view(false).decode(5, v.data());
                return v;
            }();
            const double want = sink > 0 ? 0. : sink < 0 ? key[9] : std::nan("");
            if (sink != 0) {
                EXPECT_NEAR(problem.value(0, 2, 9), want, 4e-3 * std::fabs(key[9])) << kernel;
            }
            EXPECT_TRUE(std::isfinite(problem.lse[2])) << "the sink is not in it";
        }
    }
}

TEST(FieldBugs, T04_EitherPoolEmptyForAToken) {  // trt#16940
    Spec spec = v4(64, 64);
    spec.tokens = 4;
    spec.primary.lengths = spec.extra.lengths = true;
    Problem problem(spec);
    for (int t = 0; t < 4; ++t) {
        problem.primary_lengths[size_t(t)] = t & 1 ? 64 : 0;
        problem.extra_lengths[size_t(t)] = t & 2 ? 64 : 0;
    }
    check_all(problem);
}

TEST(FieldBugs, T05_ValidLookingRowsPastTheLengthInTwoCaches) {  // fi#5095: wrong only above 64 tokens
    for (const int64_t tokens : {1, 63, 64, 65, 128}) {
        Spec spec = v4(20, 24, 2);
        spec.tokens = tokens;
        spec.primary.lengths = spec.extra.lengths = true;
        Problem stale(spec), holes(spec);
        for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t j = holes.primary_lengths[size_t(t)]; j < 20; ++j) holes.row(t, j) = -1;
            for (int64_t j = holes.extra_lengths[size_t(t)]; j < 24; ++j)
                holes.extra_rows[size_t(t * 24 + j)] = -1;
        }
        for (const std::string& kernel : kernels(stale, best_env())) {
            run_kernel(kernel, stale, best_env());
            run_kernel(kernel, holes, best_env());
            ASSERT_TRUE(Bits(stale) == Bits(holes)) << kernel << " T" << tokens;
        }
    }
}

TEST(FieldBugs, T06_T26_EveryKindOfInvalidRow) {  // fmla#109, trt#15783, ROCm/ATOM#1831
    Problem problem(v32(12));
    const int32_t capacity = int32_t(problem.view(false).capacity);
    const int32_t rows[] = {
        -1, INT32_MIN, capacity, capacity - 1, 2147480000, INT32_MAX, 0, capacity + 1, -64, 1, 2, 3};
    for (int64_t t = 0; t < 2; ++t)
        for (int64_t j = 0; j < 12; ++j) problem.row(t, j) = rows[j];
    check_all(problem);
}

// One problem's rows over `ranks` owners, then merged: T-07 (owner-filtered lists), sgl#22688.
void check_ranks(smla_lse_base base, smla_dtype partial_type, int ranks) {
    Spec spec = v32(90, 6);
    spec.tokens = 3;
    spec.sink = true;
    spec.base = base;
    Problem whole(spec);
    for (int64_t j = 0; j < 90; ++j) whole.row(2, j) = whole.row(2, j) / ranks * ranks;  // all on rank 0
    const Expected expected = oracle(whole);
    spec.out = partial_type;
    for (const std::string& kernel : kernels(whole, best_env())) {
        std::vector<uint8_t> partials;
        std::vector<float> lse;
        for (int rank = 0; rank < ranks; ++rank) {
            Problem part(spec);
            part.args.sink = {};
            part.primary_rows = whole.primary_rows;
            part.args.primary.rows.data = part.primary_rows.data();
            for (auto& row : part.primary_rows)
                if (row % ranks != rank) row = -1;
            run_kernel(kernel, part, best_env());
            const uint8_t* data = static_cast<const uint8_t*>(part.args.out.data);
            partials.insert(partials.end(), data,
                            data + size_t(3 * 6 * 512) * size_t(dtype_bits(partial_type)) / 8);
            lse.insert(lse.end(), part.lse.begin(), part.lse.end() - 1);
            if (rank > 0) {
                ASSERT_EQ(part.lse[12], -kInfinity);
            }
        }
        // what an empty part holds must not matter
        const size_t bytes = size_t(dtype_bits(partial_type)) / 8;
        std::memset(partials.data() + size_t((3 * 6 + 12) * 512) * bytes, 0xFF, 6 * 512 * bytes);
        std::vector<float> lse_out(3 * 6);
        smla_merge_args merge{};
        merge.lse_base = base;
        merge.partials = make_tensor(partials.data(), partial_type, {ranks, 3, 6, 512});
        merge.lse = make_tensor(lse.data(), SMLA_F32, {ranks, 3, 6});
        merge.sink = whole.args.sink;
        merge.out = whole.args.out;
        merge.lse_out = make_tensor(whole.lse.data(), SMLA_F32, {3, 6});
        whole.poison_outputs();
        MergeOp::check(merge);
        MergeOp::reference(merge, 0, MergeOp::tasks(merge));
        for (size_t i = 0; i < 3 * 6; ++i) whole.max_logits[i] = float(expected.max_logits[i]);
        expect_close(kernel, whole, expected, partial_type == SMLA_BF16 ? 0x1p-8 : 0);
        if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(FieldBugs, T07_T11_RanksMergedWithTheSinkOnce) {
    for (const smla_lse_base base : {SMLA_LSE_LN, SMLA_LSE_LOG2})
        for (const smla_dtype type : {SMLA_F32, SMLA_BF16}) check_ranks(base, type, 3);
}

TEST(FieldBugs, T07_OrderDoesNotMatter) {  // sgl#31821: holes scattered, rows unsorted
    Spec spec = v32(200);
    spec.primary.holes = 0.6;
    Problem problem(spec);
    const Expected expected = oracle(problem);
    for (int64_t t = 0; t < 2; ++t) std::reverse(&problem.row(t, 0), &problem.row(t, 0) + 200);
    for (const std::string& kernel : kernels(problem, best_env())) {
        problem.poison_outputs();
        run_kernel(kernel, problem, best_env());
        expect_close(kernel, problem, expected);
    }
}

TEST(FieldBugs, T08_T16_ViewsOfPaddedHeads) {  // vllm#36616, #44550, #57673: the other heads are NaN
    for (const int64_t heads : {8, 16}) {
        Spec spec = v32(70, heads);
        spec.head_padding = 64 - heads;
        spec.out = SMLA_BF16;
        check_all(spec);
        Problem problem(spec);
        for (const std::string& kernel : kernels(problem, best_env())) {  // a dim-0 slice of the views
            smla_attend_args args = problem.args;
            for (Tensor* tensor : {&args.q, &args.out, &args.primary.rows, &args.lse, &args.max_logits})
                *tensor = slice(*tensor, 0, 1, 2);
            problem.poison_outputs();
            run_kernel(kernel, args, best_env());
            EXPECT_TRUE(std::isnan(problem.value(0, 0, 0)));
            EXPECT_FALSE(std::isnan(problem.value(1, heads - 1, 511)));
        }
    }
}

TEST(FieldBugs, T09_T18_ListsThatAreNoMultipleOfATile) {  // tl#2066; ikawrakow/ik_llama.cpp#2031
    for (const int64_t k :
         {1, 2, 31, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 143, 144, 145, 192, 240, 241, 1000}) {
        Spec spec = v32(k, 2);
        spec.tokens = 1;
        check_all(spec);
    }
}

TEST(FieldBugs, T10_DuplicatesCountAsOftenAsListed) {
    Spec spec = v32(3, 1);
    spec.tokens = 2;
    Problem problem(spec);
    const int32_t rows[] = {7, 7, 9, 7, 9, -1};
    for (int64_t i = 0; i < 6; ++i) problem.row(i / 3, i % 3) = rows[i];
    std::fill(problem.q.begin(), problem.q.end(), uint8_t(0));  // all logits 0: weights count rows
    check_all(problem);
    EXPECT_NEAR(problem.lse[0], std::log(3.), 1e-5);
    EXPECT_NEAR(problem.lse[1], std::log(2.), 1e-5);
}

TEST(FieldBugs, T12_NothingToDo) {  // vllm#51106
    ThreadPool pool(3);
    for (Spec spec : {v32(0), v4(0, 0), v4(10, 0), v4(0, 10)}) check_all(spec, &pool);
    Spec none = v32(16);
    none.tokens = 0;
    check_all(none, &pool);
    Spec empty = v32(16);
    empty.primary.pages = 0;
    check_all(empty, &pool);
}

TEST(FieldBugs, T13_ShapesThatFailed) {  // fi#4336, vllm#50720, #55526, fi#3834, #5135
    for (const auto& [heads, k, tokens] : {std::tuple<int64_t, int64_t, int64_t>{16, 256, 5},
                                           {32, 256, 2},
                                           {64, 192, 1},
                                           {8, 128, 4},
                                           {22, 192, 1},
                                           {16, 512, 1}}) {
        Spec spec = v32(k, heads);
        spec.tokens = tokens;
        spec.out = SMLA_BF16;
        check_all(spec);
    }
}

TEST(FieldBugs, T14_PageSizes) {  // fi#5244, sgl#27455, fi#5095
    for (const int extra_page : {1, 2, 3, 64, 128, 256})
        for (const int page : {64, 256, 7}) {
            Spec spec = v4(30, 50, 2);
            spec.primary.page_tokens = page;
            spec.extra.page_tokens = extra_page;
            spec.extra.pages = 512 / extra_page;
            check_all(spec);
        }
}

// A cache whose last byte is followed by a page that cannot be read, a first byte preceded by one.
TEST(FieldBugs, T17_NothingBeyondTheCacheIsRead) {  // vllm#53906, #57134
    for (const auto& [format, width] : {std::pair<smla_format, int64_t>{SMLA_ROW_BF16, 512},
                                        {SMLA_FP8_512, 512},
                                        {SMLA_FP8_528, 512},
                                        {SMLA_FP8_584, 512},
                                        {SMLA_FP8_656, 576},
                                        {SMLA_FP8_576, 576},
                                        {SMLA_ROW_F32, 576},
                                        {SMLA_ROW_BF16, 448},
                                        {SMLA_ROW_BF16, 72},
                                        {SMLA_ROW_F32, 72}}) {
        Spec spec = v32(20, 3);
        spec.width = width;
        spec.value_width = std::min<int64_t>(width, 512);
        spec.primary.format = format;
        spec.primary.page_tokens = 9;
        spec.primary.pages = 2;
        Problem problem(spec);
        const size_t bytes = cache_bytes(problem.args.primary.cache);
        // pages padded for packing end at their last record here
        const size_t used = format == SMLA_FP8_584 ? bytes - (bytes / 2 - 9 * 584) : bytes;
        const kit::Walled walled(used);
        for (const bool end : {true, false}) {
            char* at = end ? walled.data() : walled.behind_the_first_wall();
            std::memcpy(at, problem.primary_cache.data(), used);
            problem.args.primary.cache.data = at;
            problem.row(0, 0) = 17;
            problem.row(0, 1) = 0;
            check_all(problem);
        }
    }
}

TEST(FieldBugs, T19_TwoTokensOfEightHeadsAndLongLists) {  // pengcuo/FlashMLA-ETAP#2
    ThreadPool pool(2);
    check_all(v32(1500, 8), &pool);
}

TEST(FieldBugs, T20_PagesBeyondFourGigabytes) {  // fi#3130, #3136; b12x#266
    for (const auto& [format, width] :
         {std::pair<smla_format, int64_t>{SMLA_FP8_656, 576}, {SMLA_FP8_584, 512}}) {
        Spec spec = v32(20, 3);
        spec.width = width;
        spec.primary.format = format;
        spec.primary.pages = 4;
        Problem problem(spec);
        smla_cache& cache = problem.args.primary.cache;
        const int64_t stride = (int64_t(1) << 31) + 576 * 64;
        const kit::SparseMemory memory(size_t(4 * stride));
        if (!memory.taken()) GTEST_SKIP() << "no 8 GiB of address space";
        const size_t page = packed_page_bytes(cache);
        for (int64_t p = 0; p < 4; ++p)
            std::memcpy(static_cast<char*>(memory.data()) + p * stride,
                        problem.primary_cache.data() + size_t(p) * page, page);
        cache.data = memory.data();
        cache.page_stride_bytes = stride;
        problem.row(0, 0) = 3 * 64 + 63;
        check_all(problem);
    }
}

TEST(FieldBugs, T21_QueriesBeyondTwoGigabytes) {  // vllm#57134
    Spec spec = v32(20, 3);
    spec.tokens = 3;
    Problem problem(spec);
    Tensor& q = problem.args.q;
    const int64_t stride = (int64_t(1) << 31) + 64;  // elements
    const kit::SparseMemory memory(size_t(2 * (2 * stride + 4096)));
    if (!memory.taken()) GTEST_SKIP() << "no 8 GiB of address space";
    for (int64_t t = 0; t < 3; ++t)
        std::memcpy(static_cast<uint16_t*>(memory.data()) + t * stride, address(q, t), size_t(3 * 576) * 2);
    q.data = memory.data();
    q.stride_elems[0] = stride;
    check_all(problem);
}

TEST(FieldBugs, T37_AMissingScaleIsAnError) {  // trt#16916
    Spec spec = v32(4);
    spec.primary.format = SMLA_FP8_576;
    Problem problem(spec);
    problem.args.primary.cache.scale = 0;
    try {
        AttendOp::check(problem.args);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.field, "args.primary.cache.scale");
    }
}

TEST(FieldBugs, T40_Fp8AndBf16CachesOfTheSameValuesAgree) {  // fmla#192
    for (const auto& [format, width] :
         {std::pair<smla_format, int64_t>{SMLA_FP8_656, 576}, {SMLA_FP8_584, 512}}) {
        Spec spec = v32(400, 20);
        spec.width = width;
        spec.primary.format = format;
        spec.primary.odd_scales = false;  // then bf16 holds every value exactly
        Problem fp8(spec);
        spec.primary.format = SMLA_ROW_BF16;
        Problem bf16(spec);
        bf16.primary_rows = fp8.primary_rows;
        bf16.args.primary.rows.data = bf16.primary_rows.data();
        std::vector<float> values(static_cast<size_t>(width));
        for (int64_t r = 0; r < fp8.view(false).capacity; ++r) {
            fp8.view(false).decode(r, values.data());
            bf16.view(false).encode(r, values.data());
        }
        bf16.q = fp8.q;
        for (const std::string& kernel : kernels(fp8, best_env())) {
            run_kernel(kernel, fp8, best_env());
            run_kernel(kernel, bf16, best_env());
            EXPECT_TRUE(Bits(fp8) == Bits(bf16)) << kernel;
        }
    }
}

TEST(FieldBugs, T41_TheBaseOfLse) {  // xtuner#2081, sgl#39330
    for (const smla_lse_base base : {SMLA_LSE_LN, SMLA_LSE_LOG2}) {
        Spec spec = v32(50);
        spec.base = base;
        spec.sink = true;
        check_all(spec);
    }
}

}  // namespace
}  // namespace attend_test
