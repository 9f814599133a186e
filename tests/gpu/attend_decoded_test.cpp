// Records of V4.1 in the mma kernels of attend, which make rows of bf16 of them: every pair of formats, and
// every code with every scale at every place of a tile, exactly.
#include "gpu/attend_problem.h"

namespace {

using namespace smla;
using namespace attend_test;
using namespace gpu;

constexpr char kMma[] = "cuda_mma_attend";

TEST_F(CudaAttend, DecodedPairs) {
    uint32_t seed = 300;
    for (const int heads : {16, 32, 64})
        for (const smla_format window : kDecoded)
            for (const smla_format extra : kDecoded) {
                SourceSpec first = hostile(window, 128), second = hostile(extra, 200);
                second.page_tokens = 3, second.page_rows = 0, second.pages = 150;
                check_all_ways({.tokens = 2,
                                .heads = heads,
                                .width = 512,
                                .primary = first,
                                .extra = second,
                                .out = SMLA_BF16,
                                .precision = SMLA_PRECISION_EXACT,
                                .sink = true,
                                .seed = ++seed});
                if (HasFatalFailure()) return;
            }
    for (const smla_format format : kDecoded) {  // from the second source alone
        check_all_ways({.tokens = 3,
                        .heads = 40,
                        .width = 512,
                        .extra = hostile(format, 100),
                        .precision = SMLA_PRECISION_EXACT,
                        .seed = ++seed});
        // rows between gaps, where both parts of a record are together
        SourceSpec spread = hostile(format, 100);
        spread.page_gap = 0;
        if (find_format(format)->packing == Packing::row) spread.row_gap = 48;
        check_all_ways({.tokens = 3,
                        .heads = 64,
                        .width = 512,
                        .primary = spread,
                        .precision = SMLA_PRECISION_EXACT,
                        .seed = ++seed});
        if (HasFatalFailure()) return;
    }
}

// A record's bytes: values, then scales, in either arrangement.
struct Record {
    uint8_t *values, *scales;
    Record(const CacheView& cache, smla_format format, int64_t row) {
        const bool nvfp4 = format == SMLA_NVFP4_288 || format == SMLA_NVFP4_288_SPLIT;
        const int64_t value_bytes = nvfp4 ? 256 : 512, scale_bytes = nvfp4 ? 32 : 16;
        const int64_t token = row % cache.page_rows;
        char* const page = cache.data + row / cache.page_rows * cache.page_stride;
        const bool split = find_format(format)->packing == Packing::page;
        char* const at = page + token * (split ? value_bytes : cache.row_stride);
        values = reinterpret_cast<uint8_t*>(at);
        scales = reinterpret_cast<uint8_t*>(
            split ? page + cache.page_tokens * value_bytes + token * scale_bytes : at + value_bytes);
    }
};

// Codes and scales without NaN, all in turn: row r of 32 begins with other ones.
void fill_with_codes(const CacheView& cache, smla_format format, int64_t row) {
    const Record record(cache, format, row);
    const bool nvfp4 = format == SMLA_NVFP4_288 || format == SMLA_NVFP4_288_SPLIT;
    for (int i = 0; i < (nvfp4 ? 256 : 512); ++i) {
        const auto code = uint8_t(i + 37 * row);
        record.values[i] = !nvfp4 && (code & 127) == 127 ? uint8_t(code - 1) : code;
    }
    for (int i = 0; i < (nvfp4 ? 32 : 16); ++i) {
        const auto scale = uint8_t(32 * (row % 8) + i + row / 8);
        record.scales[i] = nvfp4 ? ((scale & 127) == 127 ? uint8_t(0) : scale)
                                 : uint8_t(std::clamp<int>(int(scale) * 200 / 255 + 20, 20, 220));
    }
}

// Token t lists one row, at place t of a tile, among holes that would be NaN, and all its weights are 1: the
// output is the row. Queries of another call are units: the largest logit is a value of the row.
TEST_F(CudaAttend, DecodedRowsAreExact) {
    for (const smla_format format : kDecoded)
        for (const int heads : {16, 32, 64}) {
            Problem problem({.tokens = 32,
                             .heads = heads,
                             .width = 512,
                             .primary = {.format = format, .k = 64, .page_tokens = 5, .pages = 8},
                             .precision = SMLA_PRECISION_EXACT});
            const CacheView cache = problem.view(false);
            std::fill(problem.primary_cache.begin(), problem.primary_cache.end(), uint8_t(0xFF));
            for (int64_t row = 0; row < 32; ++row) fill_with_codes(cache, format, row);
            for (int64_t t = 0; t < 32; ++t)
                for (int64_t j = 0; j < 64; ++j) problem.row(t, j) = j == t ? int32_t(t) : -1;
            auto* const q = reinterpret_cast<uint16_t*>(problem.args.q.data);
            problem.args.softmax_scale = 1;
            Context context = make_context(true, "attend=cuda_mma_attend");  // blocks of `heads`, no splits
            for (const bool units : {false, true}) {
                const auto column = [&](int64_t t, int64_t h) { return (t * heads + h) % 512; };
                for (int64_t t = 0; t < 32; ++t)
                    for (int64_t h = 0; h < heads; ++h)
                        for (int64_t d = 0; d < 512; ++d)
                            q[t * problem.args.q.stride_elems[0] + h * problem.args.q.stride_elems[1] + d] =
                                units && d == column(t, h) ? uint16_t(0x3f80) : uint16_t(0);
                OnDevice on(context.device(), problem);
                on.poison();
                run_guarded(context, on.args, 0, kMma);
                if (HasFatalFailure()) return;
                on.fetch_outputs();
                std::vector<double> key(512);
                for (int64_t t = 0; t < 32; ++t) {
                    cache.decode(t, key.data());
                    for (int64_t h = 0; h < heads; ++h) {
                        const double logit = units ? key[size_t(column(t, h))] : 0;
                        ASSERT_NEAR(problem.max_logits[size_t(t * heads + h)], logit, 1e-6 * std::fabs(logit))
                            << find_format(format)->name << " token " << t << " head " << h << " column "
                            << column(t, h);
                        if (units) continue;
                        for (int64_t d = 0; d < 512; ++d)
                            ASSERT_EQ(double(problem.value(t, h, d)), key[size_t(d)])
                                << find_format(format)->name << " token " << t << " head " << h << " column "
                                << d;
                    }
                }
            }
        }
}

// One record of a listed row has a scale or a code of NaN: its token's heads are NaN, and no others.
TEST_F(CudaAttend, DecodedNaN) {
    for (const int heads : {16, 32, 64})
        for (const smla_format format : kDecoded)
            for (const bool code : {false, true}) {
                const bool nvfp4 = format == SMLA_NVFP4_288 || format == SMLA_NVFP4_288_SPLIT;
                if (code && nvfp4) continue;  // e2m1 has none
                Problem problem({.tokens = 3,
                                 .heads = heads,
                                 .width = 512,
                                 .primary = {.format = format, .k = 300, .pages = 16},
                                 .precision = SMLA_PRECISION_EXACT});
                const int32_t victim = problem.row(1, 123);
                for (const int64_t t : {0, 2})
                    for (int64_t j = 0; j < 300; ++j)
                        if (problem.row(t, j) == victim) problem.row(t, j) = -1;
                const Record record(problem.view(false), format, victim);
                if (code) record.values[345] = 0x7f;
                else record.scales[nvfp4 ? 30 : 13] = nvfp4 ? 0xff : 255;
                check_all_ways(problem);
                if (HasFatalFailure()) return;
            }
}

// Scales far from those of other rows, of columns that no query looks at.
TEST_F(CudaAttend, DecodedScalesOfAnySize) {
    uint32_t seed = 400;
    for (const int heads : {16, 32, 64})
        for (const smla_format format : kDecoded) {
            Problem problem({.tokens = 4,
                             .heads = heads,
                             .width = 512,
                             .primary = hostile(format, 300),
                             .precision = SMLA_PRECISION_EXACT,
                             .seed = ++seed});
            const CacheView cache = problem.view(false);
            const bool nvfp4 = format == SMLA_NVFP4_288 || format == SMLA_NVFP4_288_SPLIT;
            for (int64_t row = 0; row < cache.capacity; row += 3) {
                if (cache.hole(row)) continue;
                uint8_t& scale = Record(cache, format, row).scales[nvfp4 ? 24 : 12];  // of column 384
                const int drawn = int(problem.rng() % 256);
                scale = nvfp4 ? uint8_t((drawn & 127) == 127 ? 0 : drawn) : uint8_t(87 + drawn % 81);
            }
            auto* const q = reinterpret_cast<uint16_t*>(problem.args.q.data);
            const auto& stride = problem.args.q.stride_elems;
            for (int64_t t = 0; t < 4; ++t)
                for (int64_t h = 0; h < heads; ++h)
                    std::fill_n(q + t * stride[0] + h * stride[1] + 384, 32, uint16_t(0));
            check_all_ways(problem);
            if (HasFatalFailure()) return;
        }
}

// Precision changes no bit of decoded records. Beside other forms of keys they go to the generic kernel.
TEST_F(CudaAttend, DecodedRoundedIsExact) {
    Problem problem({.tokens = 2,
                     .heads = 64,
                     .width = 512,
                     .primary = {.format = SMLA_FP8_528_G32, .k = 128},
                     .extra = {.format = SMLA_NVFP4_288, .k = 512},
                     .precision = SMLA_PRECISION_EXACT});
    expect_no_rounding(problem, kMma);
    for (const smla_format other : {SMLA_ROW_BF16, SMLA_FP8_584, SMLA_FP8_528})
        check_all_ways({.tokens = 2,
                        .heads = 16,
                        .width = 512,
                        .primary = hostile(other, 60),
                        .extra = hostile(SMLA_NVFP4_288, 60),
                        .precision = SMLA_PRECISION_EXACT});
}

}  // namespace
