// forward of every backend against plain loops in double.
#include "forward_world.h"

#include <cmath>
#include <cstring>

namespace smla::test {
namespace {

void check(const WorldSpec& spec, double bound, smla_engine engine = SMLA_ENGINE_CPU) {
    SCOPED_TRACE(testing::Message() << spec.backend->name << " seed " << spec.seed << " ratio "
                                    << spec.args.ratio);
    World world(spec);
    world.run(engine);
    world.expect_close(bound);
    if (!spec.written) world.expect_written();
    world.expect_untouched();
}

// Sums of at most a few hundred f32 products, each rounded by 2^-24: 600 * 2^-24 = 3.6e-5; exp adds a few
// more of the largest score (below 10), so 1e-4 of the sum of magnitudes.
constexpr double kF32 = 1e-4;
// bf16 operands: queries and probabilities are rounded by 2^-9 each. Scores stay below 4, so a rounded query
// shifts a weight by 4 * 2^-9 at most, numerator and denominator both: 2 * 4 * 2^-9 + 2^-9 < 0.02, and out
// 2^-9.
constexpr double kBf16 = 0.02;

const Backend* const kLatent[] = {&kFlashMlaSparse, &kSparseMlaSm120, &kTritonMlaSparse};
const Backend* const kHybrid[] = {&kFlashMlaSparseDsv4, &kDsv4SparseMlaSm120, &kFlashInferMlaSparseDsv4,
                                  &kFlashMlaSparseDsv41, &kFlashInferMlaSparseDsv41};

TEST(BackendForward, LatentSteps) {
    for (const Backend* backend : kLatent)
        for (uint32_t seed = 0; seed < 12; ++seed) {
            WorldSpec spec{.backend = backend, .args = small_latent(), .seed = seed};
            check(spec, kF32);
            if (testing::Test::HasFatalFailure()) return;
        }
}

TEST(BackendForward, LatentForms) {
    for (uint32_t seed = 0; seed < 6; ++seed) {
        WorldSpec spec{.backend = &kSparseMlaSm120, .args = small_latent(), .seed = 100 + seed};
        spec.pair = true;  // (absorbed q, q_pe), projected up
        check(spec, kF32);
        spec.latent_out = true;  // ... or as forward_mqa returns it
        check(spec, kF32);
        spec.pair = false;  // one absorbed tensor
        check(spec, kF32);
        spec.written = true;
        check(spec, kF32);
        spec.latent_out = false;
        check(spec, kF32);
    }
}

TEST(BackendForward, LatentWithoutRope) {
    for (uint32_t seed = 0; seed < 4; ++seed) {
        WorldSpec spec{.backend = &kTritonMlaSparse, .args = small_latent(), .seed = 40 + seed};
        spec.args.rope_dim = -1;
        check(spec, kF32);
        spec.args = backend_args(SMLA_FAMILY_DSA);
        spec.args.rope_dim = -1;
        spec.args.heads = 2;
        spec.args.dtype = SMLA_F32;
        spec.args.kv_cache_dtype = "fp8";
        spec.args.ratio = seed % 2 ? 16 : 0;  // index_kpool: lists hold tokens all the same
        EXPECT_EQ(World(spec).on.format, SMLA_FP8_528);
        check(spec, kF32);
    }
}

TEST(BackendForward, LatentRecordsOfV32) {
    for (const char* type : {"auto", "fp8_ds_mla", "fp8", "bfloat16"})
        for (const smla_dtype dtype : {SMLA_F32, SMLA_BF16}) {
            SCOPED_TRACE(type);
            WorldSpec spec{.backend = &kFlashMlaSparse, .args = backend_args(SMLA_FAMILY_DSA), .seed = 21};
            spec.args.heads = 5;  // no divisor of 64, nor a power of two
            spec.args.softmax_scale = 0.03;
            spec.args.kv_cache_dtype = type;
            spec.args.dtype = dtype;
            check(spec, dtype == SMLA_BF16 ? kBf16 : kF32);
        }
}

TEST(BackendForward, HybridSteps) {
    for (const Backend* backend : kHybrid)
        for (const int32_t ratio : ratios(*backend))
            for (uint32_t seed = 0; seed < 12; ++seed) {
                WorldSpec spec{.backend = backend, .args = small_args(*backend, ratio), .seed = seed};
                spec.padded_heads = seed % 3;
                spec.sink = seed % 4 != 1;
                spec.written = seed % 5 == 2;
                check(spec, kF32);
                if (testing::Test::HasFatalFailure()) return;
            }
}

TEST(BackendForward, HybridRecordsOfV4) {
    const struct {
        const Backend* backend;
        const char* type;
        smla_dtype dtype;
        smla_format format;
    } cases[] = {{&kFlashMlaSparseDsv4, "auto", SMLA_F32, SMLA_FP8_584},
                 {&kDsv4SparseMlaSm120, "fp8", SMLA_BF16, SMLA_FP8_584},
                 {&kFlashInferMlaSparseDsv4, "auto", SMLA_BF16, SMLA_ROW_BF16},
                 {&kFlashInferMlaSparseDsv4, "fp8", SMLA_BF16, SMLA_FP8_512},
                 {&kFlashInferMlaSparseDsv4, "fp8_e4m3", SMLA_E4M3, SMLA_FP8_512}};
    for (const auto& each : cases)
        for (const int32_t ratio : {0, 4, 128}) {
            WorldSpec spec{
                .backend = each.backend, .args = backend_args(SMLA_FAMILY_HYBRID, ratio), .seed = 31};
            spec.args.heads = 2;
            spec.args.dtype = each.dtype;
            spec.args.kv_cache_dtype = each.type;
            spec.args.softmax_scale = 0.02;
            spec.args.q_scale =
                0.125;  // both scales enter: bmm1 = scale * q_scale * kv_scale, bmm2 = kv_scale
            spec.args.kv_scale = each.format == SMLA_FP8_512 ? 0.25 : 0;
            spec.out = each.dtype == SMLA_E4M3 ? SMLA_BF16 : SMLA_F32;
            EXPECT_EQ(World(spec).on.format, each.format);
            check(spec, each.dtype == SMLA_F32 ? kF32 : kBf16);
        }
}

// The published record in both caches, and entries in four bits beside it; each backend has the arrangement
// of its kernels.
TEST(BackendForward, HybridRecordsOfV41) {
    const struct {
        const Backend* backend;
        const char* type;
        smla_dtype dtype;
        smla_format window, entries;
    } cases[] = {{&kFlashMlaSparseDsv41, "auto", SMLA_F32, SMLA_FP8_528_G32, SMLA_FP8_528_G32},
                 {&kFlashMlaSparseDsv41, "fp8_ds_mla", SMLA_BF16, SMLA_FP8_528_G32, SMLA_FP8_528_G32},
                 {&kFlashMlaSparseDsv41, "nvfp4_ds_mla", SMLA_F32, SMLA_FP8_528_G32, SMLA_NVFP4_288},
                 {&kFlashMlaSparseDsv41, "nvfp4_288", SMLA_BF16, SMLA_FP8_528_G32, SMLA_NVFP4_288},
                 {&kFlashMlaSparseDsv41, "fp8_584", SMLA_F32, SMLA_FP8_584, SMLA_FP8_584},
                 {&kFlashInferMlaSparseDsv41, "fp8_528_g32_split", SMLA_F32, SMLA_FP8_528_G32_SPLIT,
                  SMLA_FP8_528_G32_SPLIT},
                 {&kFlashInferMlaSparseDsv41, "nvfp4_288_split", SMLA_BF16, SMLA_FP8_528_G32_SPLIT,
                  SMLA_NVFP4_288_SPLIT},
                 {&kFlashInferMlaSparseDsv41, "auto", SMLA_BF16, SMLA_ROW_BF16, SMLA_ROW_BF16},
                 {&kFlashInferMlaSparseDsv41, "fp8", SMLA_E4M3, SMLA_FP8_512, SMLA_FP8_512}};
    for (const auto& each : cases)
        for (const int32_t ratio : {0, 1, 2}) {
            SCOPED_TRACE(each.type);
            WorldSpec spec{.backend = each.backend,
                           .args = backend_args(SMLA_FAMILY_HYBRID_SHARED, ratio),
                           .seed = 32 + uint32_t(ratio)};
            spec.args.heads = 2;
            spec.args.dtype = each.dtype;
            spec.args.kv_cache_dtype = each.type;
            spec.args.softmax_scale = 0.02;
            spec.args.kv_scale = each.window == SMLA_FP8_512 ? 0.25 : 0;
            spec.out = each.dtype == SMLA_E4M3 ? SMLA_BF16 : SMLA_F32;
            const World world(spec);
            EXPECT_EQ(world.on.format, each.window);
            EXPECT_EQ(world.on.entry_format, ratio ? each.entries : SMLA_FORMAT_NONE);
            check(spec, each.dtype == SMLA_F32 ? kF32 : kBf16);
        }
}

// A token sees the entries that end at or before it: at ratio 1 its own, which is in the cache before
// forward.
TEST(BackendForward, EntriesOfOneTokenAreNoWindow) {
    const auto out = [](const Backend& backend, int32_t ratio) {
        World world({.backend = &backend, .args = small_hybrid(ratio, backend.family), .seed = 33});
        EXPECT_EQ(present(world.args.topk_indices), ratio && backend.family == SMLA_FAMILY_HYBRID_SHARED);
        world.run();
        return world.out.bytes();
    };
    EXPECT_TRUE(out(kFlashMlaSparseDsv4, 1) == out(kFlashMlaSparseDsv4, 0));
    EXPECT_FALSE(out(kFlashMlaSparseDsv41, 1) == out(kFlashMlaSparseDsv41, 0));
}

TEST(BackendForward, ReferenceEngineInF64) {
    WorldSpec latent{.backend = &kFlashMlaSparse, .args = small_latent(), .seed = 5, .out = SMLA_F64};
    latent.args.dtype = SMLA_F64;
    latent.args.kv_cache_dtype = "auto";
    check(latent, 1e-12, SMLA_ENGINE_REFERENCE);
    for (const Backend* backend : {&kFlashInferMlaSparseDsv4, &kFlashInferMlaSparseDsv41})
        for (const int32_t ratio : ratios(*backend)) {
            WorldSpec hybrid{
                .backend = backend, .args = small_args(*backend, ratio), .seed = 6, .out = SMLA_F64};
            hybrid.args.dtype = SMLA_F64;
            hybrid.args.kv_cache_dtype = "auto";
            hybrid.sink = false;  // sinks are f32 here
            check(hybrid, 1e-12, SMLA_ENGINE_REFERENCE);
        }
}

// The backends of V4, and those of V4.1, differ in layout and metadata only.
TEST(BackendForward, HybridBackendsAgreeBitForBit) {
    for (const Backend* first : {&kFlashMlaSparseDsv4, &kFlashMlaSparseDsv41})
        for (const int32_t ratio : ratios(*first))
            for (uint32_t seed = 60; seed < 66; ++seed) {
                std::vector<std::vector<uint8_t>> outs;
                for (const Backend* backend : kHybrid) {
                    if (backend->family != first->family) continue;
                    World world({.backend = backend, .args = small_args(*backend, ratio), .seed = seed});
                    world.run();
                    outs.push_back(world.out.bytes());
                }
                EXPECT_GE(outs.size(), 2u);
                for (const auto& out : outs) EXPECT_TRUE(out == outs[0]) << ratio << " " << seed;
            }
}

TEST(BackendForward, WarmUpZeroesTheOutputAndLeavesCaches) {
    for (const Backend* backend : {&kFlashMlaSparse, &kFlashInferMlaSparseDsv4, &kFlashMlaSparseDsv41}) {
        World world({.backend = backend, .args = small_args(*backend), .seed = 7});
        const auto window = world.window.memory, kv = world.kv.memory;
        Env env;
        world.on.run(env, nullptr, world.args, {});
        for (const uint8_t byte : world.out.bytes()) ASSERT_EQ(byte, 0);  // rows behind the tokens too
        EXPECT_TRUE(world.window.memory == window && world.kv.memory == kv);
    }
}

// No cache yet (profiling): nothing is written, and no row can be read.
TEST(BackendForward, EmptyCaches) {
    for (const Backend* backend : {&kFlashMlaSparse, &kFlashMlaSparseDsv4, &kFlashInferMlaSparseDsv41}) {
        World world({.backend = backend, .args = small_args(*backend), .seed = 8});
        for (smla_cache* cache : {&world.args.kv_cache, &world.args.swa_cache}) {
            cache->pages = 0;
            cache->data = nullptr;
        }
        world.run();
        const int64_t tokens = world.batch.query_tokens();
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t d = 0; d < world.out.view().shape[2]; ++d) ASSERT_EQ(world.out.at(t, 0, d), 0);
    }
}

// Output as [N, H * v], and as a view of a wider buffer.
TEST(BackendForward, FlatOutput) {
    World world({.backend = &kSparseMlaSm120, .args = small_latent(), .seed = 9});
    world.args.out = reshape(world.out.view(), {world.out.view().shape[0], 3 * 6});
    world.run();
    world.expect_close(kF32);
}

TEST(BackendForward, WindowOnlyLayersIgnoreTheCompressedCache) {
    World world({.backend = &kDsv4SparseMlaSm120, .args = small_hybrid(0), .seed = 12});
    world.args.kv_cache = {};
    world.args.kv_cache.format = 99;
    world.args.kv_cache.page_tokens = -5;
    world.run();
    world.expect_close(kF32);
}

TEST(BackendForward, ABudgetKeepsScratchSmall) {
    World world({.backend = &kFlashMlaSparse, .args = small_latent(), .seed = 10});
    Env env;
    const size_t free_size = world.on.workspace(env, world.args);
    world.args.stage_budget = 8192;
    EXPECT_LE(world.on.workspace(env, world.args), free_size);
    world.run();
    world.expect_close(kF32);
}

TEST(BackendForward, RowsWithGapsBetweenHeads) {
    World dense({.backend = &kFlashMlaSparse, .args = small_latent(), .seed = 15}),
        gaps({.backend = &kFlashMlaSparse, .args = small_latent(), .seed = 15});
    const int64_t rows = dense.out.view().shape[0];
    Floats out(SMLA_F32, {rows, 3, 6 + 2}), k_pe(SMLA_F32, {rows, 8, 2});
    for (int64_t t = 0; t < rows; ++t)
        for (int64_t d = 0; d < 8; ++d) k_pe.set(t, d, 0, float(gaps.k_pe.at(t, 0, d)));
    gaps.args.out = slice(out.view(), 2, 0, 6);
    gaps.args.k_pe = k_pe.view();
    gaps.args.k_pe.shape[1] = 1;
    gaps.args.k_pe.shape[2] = 8;
    gaps.args.k_pe.stride_elems[2] = 2;
    dense.run();
    gaps.run();
    for (int64_t t = 0; t < dense.batch.query_tokens(); ++t)
        for (int64_t h = 0; h < 3; ++h) {
            for (int64_t v = 0; v < 6; ++v) ASSERT_EQ(out.at(t, h, v), dense.out.at(t, h, v)) << t;
            for (int64_t v = 6; v < 8; ++v) ASSERT_TRUE(std::isnan(out.at(t, h, v))) << t;
        }
    EXPECT_TRUE(dense.kv.memory == gaps.kv.memory);
}

}  // namespace
}  // namespace smla::test
