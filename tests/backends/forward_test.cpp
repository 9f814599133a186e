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

template <class Call>
std::string refused_field_of(const Call& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.field;
    }
    return "";
}

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
            spec.args.kv_scale = 0.25;
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
            spec.args.kv_scale = 0.25;
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

TEST(BackendForward, Refusals) {
    const auto refused = [](const Backend& backend, auto spoil) {
        World world({.backend = &backend, .args = small_args(backend), .seed = 14});
        ForwardArgs args = world.args;
        spoil(args);
        std::vector<uint8_t> memory(1 << 22);
        auto* aligned = reinterpret_cast<void*>(round_up(reinterpret_cast<uintptr_t>(memory.data()), 64));
        Env env;
        try {
            world.on.run(env, world.metadata.get(), args, {aligned, memory.size() - 64});
        } catch (const Error& error) {
            EXPECT_TRUE(world.out.bytes()[0] == 0xff) << "something ran before the refusal";
            return error.field;
        }
        return std::string();
    };
    using A = ForwardArgs;
    const auto latent = [&](auto spoil) { return refused(kFlashMlaSparse, spoil); };
    const auto hybrid = [&](auto spoil) { return refused(kFlashInferMlaSparseDsv4, spoil); };
    EXPECT_EQ(latent([](A&) {}), "");
    EXPECT_EQ(latent([](A& a) { a.q.shape[1] = 2; }), "args.q.shape");
    EXPECT_EQ(latent([](A& a) { a.q = {}; }), "args.q");
    EXPECT_EQ(latent([](A& a) { a.q.shape[1] = 0; }), "args.q.shape");
    EXPECT_EQ(latent([](A& a) { a.q_pe = a.q; }), "args.w_uk_t");
    EXPECT_EQ(latent([](A& a) { a.topk_indices.dtype = SMLA_I64; }), "args.topk_indices.dtype");
    EXPECT_EQ(latent([](A& a) { a.w_uv.shape[2] = 5; }), "args.w_uv.shape");
    EXPECT_EQ(latent([](A& a) { a.k_pe = {}; }), "args.k_pe");
    EXPECT_EQ(latent([](A& a) { a.lse.shape[1] = 2; }), "args.lse.shape");
    EXPECT_EQ(latent([](A& a) { a.lse.ndim = 1; }), "args.lse.shape");
    EXPECT_EQ(latent([](A& a) { a.out.stride_elems[1] = 5; }), "args.out.stride_elems[1]");
    EXPECT_EQ(latent([](A& a) { a.kv_cache.format = SMLA_FP8_656; }), "args.kv_cache.format");
    EXPECT_EQ(latent([](A& a) { a.kv_cache.page_tokens += 1; }), "args.kv_cache.page_tokens");
    EXPECT_EQ(latent([](A& a) { a.sink = a.q; }), "args.sink");
    EXPECT_EQ(latent([](A& a) { a.swa_cache = a.kv_cache; }), "args.swa_cache.format");
    EXPECT_EQ(hybrid([](A&) {}), "");
    EXPECT_EQ(hybrid([](A& a) { a.q.shape[2] = 19; }), "args.q.shape");
    EXPECT_EQ(hybrid([](A& a) { a.out.shape[1] = 2; }), "args.out.shape[1]");
    EXPECT_EQ(hybrid([](A& a) { a.q = {}; }), "args.q");
    EXPECT_EQ(hybrid([](A& a) { a.sink.shape[0] = 2; }), "args.sink.shape[0]");
    EXPECT_EQ(hybrid([](A& a) { a.w_uv = a.q; }), "args.w_uv");
    EXPECT_EQ(hybrid([](A& a) { a.topk_indices = {}; }), "args.topk_indices");
    EXPECT_EQ(hybrid([](A& a) { a.swa_cache.format = SMLA_FP8_584; }), "args.swa_cache.format");
    EXPECT_EQ(hybrid([](A& a) { a.kv_cache.page_tokens = 2; }), "args.kv_cache.page_tokens");
    const auto sharing = [&](auto spoil) { return refused(kFlashMlaSparseDsv41, spoil); };
    EXPECT_EQ(sharing([](A&) {}), "");
    EXPECT_EQ(sharing([](A& a) { a.topk_indices = {}; }), "args.topk_indices");
    EXPECT_EQ(sharing([](A& a) { a.w_uk_t = a.q; }), "args.w_uk_t");
    EXPECT_EQ(sharing([](A& a) { a.kv_cache = {}; }), "args.kv_cache.format");
}

// Without asking for sizes first, of which each argument would have to have as many rows as q.
void run_in(std::vector<uint8_t>& memory, World& world) {
    auto* aligned = reinterpret_cast<void*>(round_up(reinterpret_cast<uintptr_t>(memory.data()), 64));
    std::memset(aligned, 0, kWorkspaceHeader);
    world.on.run({}, world.metadata.get(), world.args, {aligned, memory.size() - 64});
}

TEST(BackendForward, EveryArgumentHasTheRowsOfTheStep) {
    std::vector<uint8_t> memory(1 << 22);
    const struct {
        const char* field;
        Tensor ForwardArgs::*tensor;
    } rows[] = {{"q", &ForwardArgs::q},     {"q_pe", &ForwardArgs::q_pe},
                {"k_c", &ForwardArgs::k_c}, {"k_pe", &ForwardArgs::k_pe},
                {"out", &ForwardArgs::out}, {"topk_indices", &ForwardArgs::topk_indices},
                {"lse", &ForwardArgs::lse}};
    for (const Backend* backend : {&kFlashMlaSparse, &kFlashInferMlaSparseDsv4, &kFlashMlaSparseDsv41})
        for (const bool pair : {false, true})
            for (const auto& [field, tensor] : rows) {
                if (pair && backend != &kFlashMlaSparse) continue;
                World world({.backend = backend, .args = small_args(*backend), .seed = 14, .pair = pair});
                if (!present(world.args.*tensor)) continue;
                const int64_t tokens = world.metadata->step().tokens;
                for (const int64_t given : {int64_t(0), int64_t(1), tokens - 1, tokens}) {
                    (world.args.*tensor).shape[0] = given;
                    EXPECT_EQ(refused_field_of([&] { run_in(memory, world); }),
                              given < tokens ? text("args.", field, ".shape[0]") : "")
                        << backend->name << " " << given;
                }
            }
}

// A padded head that lies in the next token's row would become 0 after that row was written.
TEST(BackendForward, HeadsOfTheOutputLieApart) {
    for (const Backend* backend : {&kFlashMlaSparseDsv4, &kFlashMlaSparseDsv41}) {
        World world({.backend = backend, .args = small_args(*backend), .seed = 14, .padded_heads = 2});
        world.args.out.stride_elems[0] = 3 * 20;
        EXPECT_EQ(refused_field_of([&] { world.run(); }), "args.out.stride_elems[0]");
        EXPECT_EQ(refused_field_of([&] { world.on.run({}, nullptr, world.args, {}); }),
                  "args.out.stride_elems[0]");
    }
    World latent({.backend = &kFlashMlaSparse, .args = small_latent(), .seed = 14});
    latent.args.out.stride_elems[0] = 2 * 6;
    EXPECT_EQ(refused_field_of([&] { latent.run(); }), "args.out.stride_elems[0]");
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

// Metadata number rows by the pages of the batch; a cache with other gaps has other rows.
TEST(BackendForward, PagesOfACacheAreThoseOfTheMetadata) {
    const struct {
        const char* field;
        smla_cache ForwardArgs::*cache;
    } caches[] = {{"args.kv_cache", &ForwardArgs::kv_cache}, {"args.swa_cache", &ForwardArgs::swa_cache}};
    for (const Backend* backend : {&kFlashMlaSparse, &kFlashMlaSparseDsv4, &kFlashMlaSparseDsv41})
        for (const auto& [field, member] : caches) {
            World world({.backend = backend, .args = small_args(*backend), .seed = 14});
            smla_cache& cache = world.args.*member;
            if (cache.format == SMLA_FORMAT_NONE) continue;
            const int32_t page = cache.page_tokens;
            cache.page_rows = page;
            EXPECT_EQ(refused_field_of([&] { world.run(); }), "");
            cache.page_rows = 2 * page;
            EXPECT_EQ(refused_field_of([&] { world.run(); }), text(field, ".page_rows"));
            cache.page_rows = 0;
            cache.page_tokens = page - 1;
            EXPECT_EQ(refused_field_of([&] { world.run(); }), text(field, ".page_tokens"));
        }
}

// A per-tensor cache without a scale of its own has that of the backend.
TEST(BackendForward, ScalesOfCachesThatHaveNone) {
    const auto out = [](float kv_scale, float own) {
        WorldSpec spec{
            .backend = &kFlashInferMlaSparseDsv4, .args = backend_args(SMLA_FAMILY_HYBRID), .seed = 16};
        spec.args.heads = 2;
        spec.args.kv_cache_dtype = "fp8";
        spec.args.kv_scale = kv_scale;
        spec.out = SMLA_F32;
        World world(spec);
        world.args.kv_cache.scale = world.args.swa_cache.scale = own;
        world.run();
        return std::pair(world.out.bytes(), world.window.memory);
    };
    EXPECT_TRUE(out(0.25f, 0) == out(0.25f, 0.25f));
    EXPECT_FALSE(out(0.25f, 0) == out(0.25f, 0.5f));  // its own comes first
}

TEST(BackendForward, AStepOfNoTokensIsChecked) {
    for (const Backend* backend : {&kFlashMlaSparse, &kFlashMlaSparseDsv4, &kFlashMlaSparseDsv41}) {
        World world({.backend = backend, .args = small_args(*backend), .seed = 14});
        Batch none = world.batch;
        for (int32_t& start : none.starts) start = 0;
        none.tokens = 0;
        for (Group& group : none.groups) group.slots.clear();
        world.metadata->build(none.view());
        ASSERT_EQ(world.metadata->step().tokens, 0);
        const auto window = world.window.memory, kv = world.kv.memory, out = world.out.bytes();
        world.run();
        world.args.q.shape[0] = 0;
        world.run();
        EXPECT_TRUE(world.window.memory == window && world.kv.memory == kv && world.out.bytes() == out);
        world.args.q = {};
        EXPECT_EQ(refused_field_of([&] { world.run(); }), "args.q");
    }
}

// Caches in another record or arrangement than the backend's: nothing is read as what it is not.
TEST(BackendForward, ARecordOfAnotherArrangementIsRefused) {
    const auto refused = [](smla_format window, smla_format entries) {
        WorldSpec spec{
            .backend = &kFlashMlaSparseDsv41, .args = backend_args(SMLA_FAMILY_HYBRID_SHARED), .seed = 34};
        spec.args.kv_cache_dtype = "nvfp4_ds_mla";
        World world(spec);
        world.args.swa_cache.format = window;
        world.args.kv_cache.format = entries;
        try {
            world.run();
        } catch (const Error& error) {
            return error.field;
        }
        return std::string();
    };
    EXPECT_EQ(refused(SMLA_FP8_528_G32, SMLA_NVFP4_288), "");
    EXPECT_EQ(refused(SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288), "args.swa_cache.format");
    EXPECT_EQ(refused(SMLA_FP8_528_G32, SMLA_NVFP4_288_SPLIT), "args.kv_cache.format");
    EXPECT_EQ(refused(SMLA_FP8_528_G32, SMLA_FP8_528_G32), "args.kv_cache.format");
    EXPECT_EQ(refused(SMLA_NVFP4_288, SMLA_NVFP4_288), "args.swa_cache.format");
}

}  // namespace
}  // namespace smla::test
