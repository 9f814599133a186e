// The attend kernels of cuda against the oracle of tests/attend, on random and hostile problems: every
// format, heads that fill no tile, holes, lengths, empty tiles, two sources, sinks, NaN and infinities, the
// work cut in every way, scratch between canaries, the same bits twice.
#include "gpu/attend_problem.h"

namespace {

using namespace smla;
using namespace attend_test;
using namespace gpu;

TEST_F(CudaAttend, FormatsAndHeads) {
    for (const int heads : {1, 8, 16, 40, 64, 128}) {
        for (const smla_format format : kWide)
            check_all_ways({.tokens = 3,
                            .heads = heads,
                            .primary = {.format = format, .k = 200},
                            .precision = SMLA_PRECISION_EXACT});
        for (const smla_format format : kNarrow)
            check_all_ways({.tokens = 3,
                            .heads = heads,
                            .width = 512,
                            .primary = {.format = format, .k = 200},
                            .out = SMLA_BF16,
                            .precision = SMLA_PRECISION_EXACT});
        if (HasFatalFailure()) return;
    }
}

TEST_F(CudaAttend, HolesLengthsSinkTwoSources) {
    uint32_t seed = 1;
    for (const int heads : {5, 17, 64, 130})
        for (const int64_t k : {1, 33, 640}) {
            for (const smla_format format : kWide)
                check_all_ways({.tokens = 4,
                                .heads = heads,
                                .primary = hostile(format, k),
                                .precision = SMLA_PRECISION_EXACT,
                                .base = SMLA_LSE_LOG2,
                                .sink = true,
                                .head_padding = 2,
                                .seed = ++seed});
            for (const smla_format format : kNarrow)
                check_all_ways({.tokens = 4,
                                .heads = heads,
                                .width = 512,
                                .primary = hostile(format, k),
                                .extra = hostile(beside(format), k + 7),
                                .out = SMLA_F16,
                                .precision = SMLA_PRECISION_EXACT,
                                .sink = true,
                                .head_padding = 2,
                                .seed = ++seed});
            if (HasFatalFailure()) return;
        }
}

// Most tiles of 32 rows hold no row at all, in one source or both.
TEST_F(CudaAttend, EmptyTiles) {
    uint32_t seed = 50;
    for (const int heads : {16, 64})
        for (const double primary : {0.9, 0.98, 0.9995})
            for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_584, SMLA_NVFP4_288}) {
                SourceSpec first = hostile(format, 1000), second = hostile(beside(format), 500);
                first.holes = primary;
                second.holes = primary > 0.95 ? 0.5 : 0.99;
                check_all_ways({.tokens = 5,
                                .heads = heads,
                                .width = 512,
                                .primary = first,
                                .extra = second,
                                .precision = SMLA_PRECISION_EXACT,
                                .seed = ++seed});
            }
}

TEST_F(CudaAttend, GenericTakesAnything) {
    uint32_t seed = 100;
    for (const smla_dtype q : {SMLA_F32, SMLA_BF16, SMLA_F16, SMLA_E4M3})
        for (const int64_t width : {7, 48, 100, 1000}) {
            const smla_dtype out = q == SMLA_E4M3 ? SMLA_BF16 : SMLA_F32;
            for (const smla_format format : {SMLA_ROW_F32, SMLA_ROW_BF16})
                check_all_ways({.tokens = 3,
                                .heads = 3,
                                .width = width,
                                .value_width = (width + 1) / 2,
                                .primary = hostile(format, 50),
                                .extra = hostile(SMLA_ROW_F32, 9),
                                .q = q,
                                .out = out,
                                .sink = true,
                                .seed = ++seed});
        }
    for (const smla_format format : kWide)
        check_all_ways({.tokens = 2,
                        .heads = 4,
                        .primary = hostile(format, 90),
                        .q = SMLA_F32,
                        .precision = SMLA_PRECISION_EXACT,
                        .seed = ++seed});
    for (const smla_format format : {SMLA_FP8_528, SMLA_FP8_512})
        check_all_ways({.tokens = 2,
                        .heads = 4,
                        .width = 512,
                        .primary = hostile(format, 90),
                        .extra = hostile(SMLA_FP8_584, 30),
                        .q = SMLA_BF16,
                        .precision = SMLA_PRECISION_EXACT,
                        .seed = ++seed});
}

TEST_F(CudaAttend, Fp8Queries) {
    for (const int heads : {16, 64})
        for (const smla_format format : {SMLA_FP8_576, SMLA_FP8_656, SMLA_ROW_BF16})
            check_all_ways({.tokens = 3,
                            .heads = heads,
                            .primary = hostile(format, 300),
                            .q = SMLA_E4M3,
                            .out = SMLA_BF16,
                            .precision = SMLA_PRECISION_EXACT,
                            .sink = true});
    for (const int heads : {16, 64})
        check_all_ways({.tokens = 3,
                        .heads = heads,
                        .width = 512,
                        .primary = hostile(SMLA_FP8_528_G32, 300),
                        .extra = hostile(SMLA_NVFP4_288, 40),
                        .q = SMLA_E4M3,
                        .out = SMLA_BF16,
                        .precision = SMLA_PRECISION_EXACT,
                        .sink = true});
}

// Rows of queries that begin between two pieces of 16 bytes: pairs of values are aligned, no more.
TEST_F(CudaAttend, QueriesBetweenPieces) {
    for (const int heads : {16, 64})
        for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_584, SMLA_NVFP4_288}) {
            const int width = format == SMLA_FP8_584 || format == SMLA_NVFP4_288 ? 512 : 576;
            Problem problem(
                {.tokens = 3, .heads = heads, .width = width, .primary = hostile(format, 300), .sink = true});
            problem.q.insert(problem.q.begin(), 4, uint8_t(0xFF));
            problem.args.q.data = problem.q.data() + 4;
            check_all_ways(problem);
            if (HasFatalFailure()) return;
        }
}

// Nothing listed, nothing valid, empty caches, NaN and infinities in listed rows; one token in many splits.
TEST_F(CudaAttend, Edges) {
    check_all_ways({.tokens = 1, .heads = 100, .primary = hostile(SMLA_FP8_656, 3000), .sink = true});
    for (const int heads : {16, 128})
        for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_656}) {
            check_all_ways({.tokens = 2,
                            .heads = heads,
                            .primary = {.format = format, .k = 0},
                            .precision = SMLA_PRECISION_EXACT,
                            .sink = true});
            check_all_ways({.tokens = 2,
                            .heads = heads,
                            .primary = {.format = format, .k = 70, .pages = 0},
                            .precision = SMLA_PRECISION_EXACT});
            Problem nan({.tokens = 3,
                         .heads = heads,
                         .primary = {.format = format, .k = 300, .pages = 16},
                         .precision = SMLA_PRECISION_EXACT});
            const CacheView view = nan.view(false);
            std::vector<float> values(576, std::numeric_limits<float>::quiet_NaN());
            const int32_t victim = nan.row(1, 123);
            view.encode(victim, values.data());
            for (const int64_t t : {0, 2})
                for (int64_t j = 0; j < 300; ++j)
                    if (nan.row(t, j) == victim) nan.row(t, j) = -1;
            check_all_ways(nan);
            if (HasFatalFailure()) return;
        }
    Problem infinite({.tokens = 2, .heads = 64, .primary = {.format = SMLA_ROW_BF16, .k = 100, .pages = 16}});
    std::vector<float> values(576, 0.f);
    values[575] = std::numeric_limits<float>::infinity();  // in no value: every logit is +inf or -inf
    for (int64_t j = 0; j < 100; ++j) infinite.view(false).encode(infinite.row(1, j), values.data());
    for (int64_t j = 0; j < 100; ++j) infinite.row(0, j) = -1;
    check_all_ways(infinite);
}

TEST_F(CudaAttend, RoundedIsExact) {
    Problem problem({.tokens = 2,
                     .heads = 64,
                     .primary = {.format = SMLA_FP8_656, .k = 200},
                     .precision = SMLA_PRECISION_EXACT});
    expect_no_rounding(problem, "cuda_mma_attend");
}

}  // namespace
