// forward() of every backend on a GPU against plain loops in double: the worlds of tests/backends, their
// memory on the device.
#include "kit/refused.h"
#include "there.h"

#include <cmath>

namespace smla::test {
namespace {

// As in tests/backends/forward_test.cpp: f32 queries run in f32 arithmetic, bf16 ones round queries and
// weights to bf16.
constexpr double kF32 = 1e-4, kBf16 = 0.02;

const Backend* const kLatent[] = {&kFlashMlaSparse, &kSparseMlaSm120, &kTritonMlaSparse};
const Backend* const kHybrid[] = {&kFlashMlaSparseDsv4, &kDsv4SparseMlaSm120, &kFlashInferMlaSparseDsv4,
                                  &kFlashMlaSparseDsv41, &kFlashInferMlaSparseDsv41};

class GpuBackendForward : public GpuBackends {
protected:
    void check(WorldSpec spec, double bound) {
        SCOPED_TRACE(testing::Message()
                     << spec.backend->name << " seed " << spec.seed << " ratio " << spec.args.ratio);
        spec.args = here(spec.args);
        spec.context = context.get();
        World world(spec);
        There there(device());
        const ForwardArgs args = there.put(world.args);
        const Scratch scratch(device(), world.on.workspace(context->env({}), args));
        world.on.run(context->env({}), world.metadata.get(), args, scratch.get());
        there.get(world.args);
        EXPECT_EQ(scratch.complaint(), "");
        world.expect_close(bound);
        if (!spec.written) world.expect_written();
        world.expect_untouched();
    }
};

TEST_F(GpuBackendForward, LatentSteps) {
    for (const Backend* backend : kLatent)
        for (uint32_t seed = 0; seed < 8; ++seed) {
            check({.backend = backend, .args = small_latent(), .seed = seed}, kF32);
            if (HasFatalFailure()) return;
        }
}

TEST_F(GpuBackendForward, LatentForms) {
    for (uint32_t seed = 100; seed < 104; ++seed) {
        WorldSpec spec{.backend = &kSparseMlaSm120, .args = small_latent(), .seed = seed};
        spec.pair = true;
        check(spec, kF32);
        spec.latent_out = true;
        check(spec, kF32);
        spec.pair = false;
        check(spec, kF32);
        spec.written = true;
        check(spec, kF32);
        spec.latent_out = false;
        check(spec, kF32);
        spec.args.rope_dim = -1;
        check(spec, kF32);
    }
}

TEST_F(GpuBackendForward, LatentRecordsOfV32) {
    for (const char* type : {"auto", "fp8_ds_mla", "fp8_e4m3"})
        for (const int32_t heads : {5, 64}) {
            SCOPED_TRACE(type);
            WorldSpec spec{.backend = &kFlashMlaSparse, .args = backend_args(SMLA_FAMILY_DSA), .seed = 21};
            spec.args.heads = heads;
            spec.args.softmax_scale = 0.03;
            spec.args.kv_cache_dtype = type;
            spec.args.kv_scale = std::string(type) == "fp8_e4m3" ? 0.25 : 0;
            spec.args.dtype = SMLA_BF16;
            check(spec, kBf16);
            spec.latent_out = true;
            check(spec, kBf16);
        }
}

TEST_F(GpuBackendForward, HybridSteps) {
    for (const Backend* backend : kHybrid)
        for (const int32_t ratio : ratios(*backend))
            for (uint32_t seed = 0; seed < 6; ++seed) {
                WorldSpec spec{.backend = backend, .args = small_args(*backend, ratio), .seed = seed};
                spec.padded_heads = seed % 3;
                spec.view_heads = seed % 2;
                spec.sink = seed % 4 != 1;
                spec.written = seed % 5 == 2;
                check(spec, kF32);
                if (HasFatalFailure()) return;
            }
}

TEST_F(GpuBackendForward, HybridRecordsOfV4AndV41) {
    const struct {
        const Backend* backend;
        const char* type;
        smla_dtype dtype;
    } cases[] = {{&kFlashMlaSparseDsv4, "auto", SMLA_BF16},
                 {&kDsv4SparseMlaSm120, "fp8", SMLA_BF16},
                 {&kFlashInferMlaSparseDsv4, "auto", SMLA_BF16},
                 {&kFlashInferMlaSparseDsv4, "fp8", SMLA_BF16},
                 {&kFlashInferMlaSparseDsv4, "fp8_e4m3", SMLA_E4M3},
                 {&kFlashMlaSparseDsv41, "fp8_528_g32", SMLA_BF16},
                 {&kFlashMlaSparseDsv41, "nvfp4_ds_mla", SMLA_BF16},
                 {&kFlashInferMlaSparseDsv41, "fp8", SMLA_BF16},
                 {&kFlashInferMlaSparseDsv41, "fp8_528_g32_split", SMLA_BF16},
                 {&kFlashInferMlaSparseDsv41, "nvfp4_288_split", SMLA_BF16}};
    for (const auto& each : cases)
        for (const int32_t ratio : ratios(*each.backend)) {
            WorldSpec spec{
                .backend = each.backend, .args = backend_args(each.backend->family, ratio), .seed = 31};
            spec.args.heads = 8;
            spec.args.dtype = each.dtype;
            spec.args.kv_cache_dtype = each.type;
            spec.args.softmax_scale = 0.02;
            spec.args.q_scale = 0.125;
            const smla_format window = instance(*each.backend, here(spec.args)).format;
            spec.args.kv_scale = window == SMLA_FP8_512 ? 0.25 : 0;
            spec.out = each.dtype == SMLA_E4M3 ? SMLA_BF16 : SMLA_F32;
            check(spec, kBf16);
        }
}

TEST_F(GpuBackendForward, WarmUpZeroesTheOutputAndLeavesCaches) {
    for (const Backend* backend : {&kFlashMlaSparse, &kFlashInferMlaSparseDsv4}) {
        World world(
            {.backend = backend, .args = here(small_args(*backend)), .seed = 7, .context = context.get()});
        const auto window = world.window.memory, kv = world.kv.memory;
        There there(device());
        world.on.run(context->env({}), nullptr, there.put(world.args), {});
        there.get(world.args);
        for (const uint8_t byte : world.out.bytes()) ASSERT_EQ(byte, 0);
        EXPECT_TRUE(world.window.memory == window && world.kv.memory == kv);
    }
}

// A graph captured once serves every later decode step: lengths, slots, tables, lists and values change.
TEST_F(GpuBackendForward, AGraphServesLaterSteps) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    for (const Backend* backend : all_backends())
        for (const int32_t ratio : ratios(*backend)) {
            SCOPED_TRACE(testing::Message() << backend->name << " ratio " << ratio);
            WorldSpec spec{.backend = backend,
                           .args = here(small_args(*backend, ratio)),
                           .decodes = 5,
                           .context = context.get()};
            spec.args.page_tokens = backend->family == SMLA_FAMILY_DSA ? 16 : 256;
            World first(spec);
            There there(device());
            ForwardArgs args = there.put(first.args);
            const Env env = context->env({}, stream);
            const Scratch scratch(device(), first.on.workspace(env, args));
            const auto forward = [&] { first.on.run(env, first.metadata.get(), args, scratch.get()); };
            forward();  // products are prepared outside of the capture
            ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t exec = nullptr;
            ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
            forward();
            ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
            ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
            for (uint32_t seed = 40; seed < 44; ++seed) {
                spec.seed = seed;
                World world(spec);
                there.put(world.args);
                PlanBatch batch = world.batch.view();
                batch.stream = stream;
                first.metadata->build(batch);
                ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
                ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
                there.get(world.args);
                world.expect_close(kF32);
                world.expect_written();
                world.expect_untouched();
                if (HasFailure()) break;
            }
            cudaGraphExecDestroy(exec);
            cudaGraphDestroy(graph);
            if (HasFailure()) break;
        }
    cudaStreamDestroy(stream);
}

TEST_F(GpuBackendForward, Refusals) {
    World world({.backend = &kFlashMlaSparse, .args = here(small_latent()), .context = context.get()});
    There there(device());
    const ForwardArgs args = there.put(world.args);
    const Scratch scratch(device(), world.on.workspace(context->env({}), args));
    const auto forward = [&](auto spoil) {
        ForwardArgs spoilt = args;
        spoil(spoilt);
        return kit::refused_field(
            [&] { world.on.run(context->env({}), world.metadata.get(), spoilt, scratch.get()); });
    };
    EXPECT_EQ(forward([](ForwardArgs&) {}), "");
    EXPECT_EQ(forward([&](ForwardArgs& a) { a.q = world.args.q; }), "args.q.device");
    EXPECT_NE(forward([&](ForwardArgs& a) { a.kv_cache = world.args.kv_cache; }), "");

    // pages smaller than the table's room; a stream that captures
    World coarse({.backend = &kFlashMlaSparse,
                  .args =
                      [&] {
                          BackendArgs coarse_args = here(small_latent());
                          coarse_args.page_tokens = 64;
                          return coarse_args;
                      }(),
                  .decodes = 3,
                  .context = context.get()});
    PlanBatch batch = coarse.batch.view();
    batch.primary.page_tokens = 8;
    EXPECT_EQ(kit::refused_field([&] { coarse.metadata->build(batch); }), "batch.primary.page_tokens");
    batch.primary.page_tokens = 64;
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    batch.stream = stream;
    EXPECT_EQ(kit::refused_field([&] { coarse.metadata->build(batch); }), "batch.stream");
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    EXPECT_EQ(kit::refused_field([&] { coarse.metadata->build(coarse.batch.view()); }), "");
}

}  // namespace
}  // namespace smla::test
