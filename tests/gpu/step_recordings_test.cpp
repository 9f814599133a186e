// Steps that a GPU replays from recordings: the same bits as launched steps, whatever lies in their memory.
#include "backends/norm_chain.h"
#include "there.h"

#include <array>
#include <random>

namespace smla::test {
namespace {

class GpuStepRecordings : public GpuBackends {
protected:
    // A chain of norms over rows in one piece of the GPU's memory, and the bytes that it leaves in `out`.
    static constexpr int64_t kRows = 64;
    NormChain chain(const DeviceBuffer& memory) const {
        char* const at = static_cast<char*>(memory.data());
        const auto tensor = [&](size_t offset, std::initializer_list<int64_t> shape) {
            Tensor out = make_tensor(at + offset, SMLA_F32, shape);
            out.device_type = SMLA_CUDA;
            out.device_index = device().index();
            return out;
        };
        NormChain out;
        out.x = tensor(0, {kRows, 1, kNormWidth});
        out.out = tensor(4096, {kRows, 1, kNormWidth});
        out.weight = tensor(8192, {kNormWidth});
        out.norms = int64_t(StepRecordings::kLeastCalls);
        return out;
    }
    void fill(const DeviceBuffer& memory, uint32_t seed) const {
        std::mt19937 random(seed);
        std::uniform_real_distribution<float> values(-2, 2);
        std::array<float, 3072> host;
        for (float& value : host) value = values(random);
        device().upload(memory.data(), host.data(), sizeof host, nullptr);
    }
    std::array<float, kRows * kNormWidth> result(const NormChain& chain) const {
        std::array<float, kRows * kNormWidth> out;
        device().wait(nullptr);
        device().download(out.data(), chain.out.data, sizeof out, nullptr);
        return out;
    }
};

TEST_F(GpuStepRecordings, ReplayedStepsFollowTheirMemory) {
    const DeviceBuffer memory(device(), 3 * 4096);
    OwnedWorkspace owned(*context);
    const Workspace workspace = owned.at_least(1 << 20);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    Env env = context->env({}), launched = env;
    launched.records_steps = false;
    for (uint32_t seed = 0; seed < 12; ++seed) {
        const NormChain step = chain(memory);
        fill(memory, seed);
        run_chain(launched, step, workspace, 2);
        const auto wanted = result(step);
        fill(memory, seed);
        env.stream = seed % 3 ? nullptr : stream;  // a recording belongs to no stream
        const int64_t told = run_chain(env, step, workspace);
        EXPECT_EQ(told, seed == 0 ? 2 : seed < 4 ? 1 : 0) << seed;
        ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        EXPECT_EQ(result(step), wanted) << seed;
    }
    cudaStreamDestroy(stream);
}

TEST_F(GpuStepRecordings, ACallersCaptureGetsTheLaunches) {
    const DeviceBuffer memory(device(), 3 * 4096);
    OwnedWorkspace owned(*context);
    const Workspace workspace = owned.at_least(1 << 20);
    const NormChain step = chain(memory);
    for (int i = 0; i < 5; ++i) run_chain(context->env({}), step, workspace);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(run_chain(context->env({}, stream), step, workspace), 1);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    size_t nodes = 0;
    ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
    EXPECT_GE(nodes, StepRecordings::kLeastCalls);
    cudaGraphDestroy(graph);
    // A step that becomes due while another stream of this thread is captured records on its own.
    const DeviceBuffer other(device(), 3 * 4096);
    const NormChain second = chain(other);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    cudaStream_t free = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&free, cudaStreamNonBlocking), cudaSuccess);
    for (int i = 0; i < 5; ++i) run_chain(context->env({}, free), second, workspace);
    EXPECT_EQ(run_chain(context->env({}, free), second, workspace), 0);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    ASSERT_EQ(cudaStreamSynchronize(free), cudaSuccess);
    cudaStreamDestroy(free);
    cudaStreamDestroy(stream);
}

// Decode steps as an engine has them: one set of addresses, other lengths, slots, tables, lists and values.
TEST_F(GpuStepRecordings, BackendsServeLaterSteps) {
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
            const ForwardArgs args = there.put(first.args);
            const Scratch scratch(device(), first.on.workspace(context->env({}), args));
            for (uint32_t seed = 40; seed < 48; ++seed) {
                spec.seed = seed;
                World world(spec);
                there.put(world.args);
                first.metadata->build(world.batch.view());
                StageRecords records{};
                first.on.run(context->env({}), first.metadata.get(), args, scratch.get(), &records);
                EXPECT_EQ(records[size_t(Stage::attend)].calls, 1) << seed;
                there.get(world.args);
                world.expect_close(1e-4);
                world.expect_written();
                world.expect_untouched();
                ASSERT_FALSE(HasFailure()) << seed;
            }
        }
}

}  // namespace
}  // namespace smla::test
