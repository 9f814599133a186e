// What forward of a backend refuses, by field and before anything is written.
#include "forward_world.h"
#include "kit/refused.h"

#include <cstring>
#include <functional>

namespace smla::test {
namespace {

TEST(BackendForward, Refusals) {
    const auto refused = [](const Backend& backend, auto spoil) {
        World world({.backend = &backend, .args = small_args(backend), .seed = 14});
        ForwardArgs args = world.args;
        spoil(args);
        const std::vector<uint8_t> kv = world.kv.memory, window = world.window.memory;
        std::vector<uint8_t> memory(1 << 22);
        auto* aligned = reinterpret_cast<void*>(round_up(reinterpret_cast<uintptr_t>(memory.data()), 64));
        Env env;
        const std::string field = kit::refused_field([&] {
            world.on.run(env, world.metadata.get(), args, {aligned, memory.size() - 64});
        });
        const bool untouched =
            world.out.bytes()[0] == 0xff && world.kv.memory == kv && world.window.memory == window;
        EXPECT_TRUE(field.empty() || untouched) << "something ran before the refusal of " << field;
        return field;
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
    EXPECT_EQ(latent([](A& a) { a.kv_cache.data = nullptr; }), "args.kv_cache.data");
    EXPECT_EQ(latent([](A& a) { a.kv_cache.width += 4; }), "args.kv_cache.width");
    EXPECT_EQ(latent([](A& a) { a.kv_cache.page_stride_bytes = 1; }), "args.kv_cache.page_stride_bytes");
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
    EXPECT_EQ(hybrid([](A& a) { a.kv_cache.data = nullptr; }), "args.kv_cache.data");
    EXPECT_EQ(hybrid([](A& a) { a.swa_cache.pages = -1; }), "args.swa_cache.pages");
    const auto sharing = [&](auto spoil) { return refused(kFlashMlaSparseDsv41, spoil); };
    EXPECT_EQ(sharing([](A&) {}), "");
    EXPECT_EQ(sharing([](A& a) { a.topk_indices = {}; }), "args.topk_indices");
    EXPECT_EQ(sharing([](A& a) { a.w_uk_t = a.q; }), "args.w_uk_t");
    EXPECT_EQ(sharing([](A& a) { a.kv_cache = {}; }), "args.kv_cache.format");
}

// Also where the step is known and no pass checks its stages' calls.
TEST(BackendForward, ResultsInMemoryOfSomethingElseAreRefused) {
    using Spoil = std::function<void(ForwardArgs&, void* workspace)>;
    const struct {
        const char *field, *other;
        Spoil spoil;
    } shared[] = {
        {"args.out", "args.kv_cache", [](ForwardArgs& a, void*) { a.out.data = a.kv_cache.data; }},
        {"args.out", "args.q", [](ForwardArgs& a, void*) { a.out.data = a.q.data; }},
        {"args.out", "args.lse", [](ForwardArgs& a, void*) { a.lse.data = a.out.data; }},
        {"args.lse", "args.topk_indices", [](ForwardArgs& a, void*) { a.lse.data = a.topk_indices.data; }},
        {"args.out", "the workspace", [](ForwardArgs& a, void* workspace) { a.out.data = workspace; }}};
    for (const Backend* backend : {&kFlashMlaSparse, &kFlashInferMlaSparseDsv4, &kFlashMlaSparseDsv41}) {
        World world({.backend = backend, .args = small_args(*backend), .seed = 14});
        smla_context_args args{.struct_size = sizeof args, .version = SMLA_VERSION, .threads = 1};
        Context context(args);
        std::vector<uint8_t> memory(1 << 22);
        void* const workspace =
            reinterpret_cast<void*>(round_up(reinterpret_cast<uintptr_t>(memory.data()), 64));
        const auto run = [&](const ForwardArgs& step) {
            world.on.run(context.env({}), world.metadata.get(), step, {workspace, memory.size() - 64});
        };
        for (const bool known : {false, true}) {
            if (known) run(world.args);
            const std::vector<uint8_t> kv = world.kv.memory, window = world.window.memory;
            for (const auto& [field, other, spoil] : shared) {
                ForwardArgs step = world.args;
                spoil(step, workspace);
                EXPECT_EQ(kit::refusal([&] { run(step); }),
                          text(field, ".data: got memory that overlaps ", other,
                               ", wanted memory that does not overlap"))
                    << backend->name << known;
            }
            EXPECT_TRUE(world.kv.memory == kv && world.window.memory == window) << backend->name << known;
        }
    }
}

TEST(BackendForward, AWorkspaceThatIsTooSmallIsRefusedWithBothSizes) {
    World world({.backend = &kFlashMlaSparse, .args = small_latent(), .seed = 14});
    Context context(smla_context_args{.struct_size = sizeof(smla_context_args), .version = SMLA_VERSION});
    std::vector<uint8_t> memory(world.on.workspace(context.env({}), world.args) + 64);
    void* const aligned = reinterpret_cast<void*>(round_up(reinterpret_cast<uintptr_t>(memory.data()), 64));
    const auto refusal_with = [&](size_t bytes) {
        return kit::refusal([&] {
            world.on.run(context.env({}), world.metadata.get(), world.args, {aligned, bytes});
        });
    };
    const std::string none = refusal_with(0), start = "workspace.bytes: got 0, wanted at least ";
    ASSERT_EQ(none.rfind(start, 0), 0u) << none;
    const size_t least = std::stoull(none.substr(start.size()));
    EXPECT_EQ(refusal_with(least - 1), text("workspace.bytes: got ", least - 1, ", wanted at least ", least));
    EXPECT_EQ(refusal_with(least), "");
}

TEST(BackendForward, WhatAStepDoesNotReadMayHoldAnything) {
    World listed({.backend = &kFlashMlaSparseDsv4, .args = small_hybrid(128), .seed = 14});
    listed.args.topk_indices = listed.args.out;
    EXPECT_EQ(kit::refused_field([&] { listed.run(); }), "");
    World written({.backend = &kFlashMlaSparse, .args = small_latent(), .seed = 14, .written = true});
    written.args.k_pe = written.args.out;
    EXPECT_EQ(kit::refused_field([&] { written.run(); }), "");
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
                    EXPECT_EQ(kit::refused_field([&] { run_in(memory, world); }),
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
        EXPECT_EQ(kit::refused_field([&] { world.run(); }), "args.out.stride_elems[0]");
        EXPECT_EQ(kit::refused_field([&] { world.on.run({}, nullptr, world.args, {}); }),
                  "args.out.stride_elems[0]");
    }
    World latent({.backend = &kFlashMlaSparse, .args = small_latent(), .seed = 14});
    latent.args.out.stride_elems[0] = 2 * 6;
    EXPECT_EQ(kit::refused_field([&] { latent.run(); }), "args.out.stride_elems[0]");
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
            EXPECT_EQ(kit::refused_field([&] { world.run(); }), "");
            cache.page_rows = 2 * page;
            EXPECT_EQ(kit::refused_field([&] { world.run(); }), text(field, ".page_rows"));
            cache.page_rows = 0;
            cache.page_tokens = page - 1;
            EXPECT_EQ(kit::refused_field([&] { world.run(); }), text(field, ".page_tokens"));
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

// A missing scale is never taken as 1, and one that nothing would read is refused: of every backend and type.
TEST(BackendForward, ScalesOfEveryCacheType) {
    int scaled = 0, others = 0;
    for (const Backend* backend : all_backends())
        for (const CacheType& type : backend->cache_types) {
            WorldSpec spec{.backend = backend, .args = backend_args(backend->family), .seed = 17};
            spec.args.kv_cache_dtype = type.name;
            const auto made = [&](double scale) {
                spec.args.kv_scale = scale;
                return kit::refused_field([&] { instance(*backend, spec.args); }, SMLA_INVALID_ARGUMENT);
            };
            SCOPED_TRACE(testing::Message() << backend->name << " " << type.name);
            EXPECT_EQ(made(0), "");
            EXPECT_EQ(made(1), "");
            const Format& record = *find_format(instance(*backend, spec.args).format);
            const bool has_one = record.scale == ScaleKind::per_tensor;
            EXPECT_EQ(made(0.5), has_one ? "" : "args.kv_scale");
            (has_one ? scaled : others) += 1;
            if (!has_one) continue;
            spec.args.kv_scale = 0;
            World world(spec);  // its caches have none of their own either
            const bool hybrid = backend->family != SMLA_FAMILY_DSA;
            const std::vector<uint8_t> kv = world.kv.memory, window = world.window.memory;
            EXPECT_EQ(kit::refused_field([&] { world.run(); }, SMLA_INVALID_ARGUMENT),
                      hybrid ? "args.swa_cache.scale" : "args.kv_cache.scale");
            EXPECT_TRUE(world.kv.memory == kv && world.window.memory == window);
            world.args.swa_cache.scale = hybrid ? 0.5f : 0;
            if (hybrid) {
                EXPECT_EQ(kit::refused_field([&] { world.run(); }, SMLA_INVALID_ARGUMENT),
                          "args.kv_cache.scale");
            }
            world.args.kv_cache.scale = 0.5f;
            EXPECT_EQ(kit::refused_field([&] { world.run(); }), "");
        }
    EXPECT_GE(scaled, 7);
    EXPECT_GE(others, 20);
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
        EXPECT_EQ(kit::refused_field([&] { world.run(); }), "args.q");
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
        return kit::refused_field([&] { world.run(); });
    };
    EXPECT_EQ(refused(SMLA_FP8_528_G32, SMLA_NVFP4_288), "");
    EXPECT_EQ(refused(SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288), "args.swa_cache.format");
    EXPECT_EQ(refused(SMLA_FP8_528_G32, SMLA_NVFP4_288_SPLIT), "args.kv_cache.format");
    EXPECT_EQ(refused(SMLA_FP8_528_G32, SMLA_FP8_528_G32), "args.kv_cache.format");
    EXPECT_EQ(refused(SMLA_NVFP4_288, SMLA_NVFP4_288), "args.swa_cache.format");
}

}  // namespace
}  // namespace smla::test
