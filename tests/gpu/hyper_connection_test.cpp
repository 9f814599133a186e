// Hyper-connections on a GPU against the host's double arithmetic, on random streams of random shapes.
#include "gpu/there.h"
#include "layers/mhc.h"

#include <array>
#include <random>

namespace smla::test {
namespace {

using GpuHyperConnection = GpuBackends;

struct World {
    World(int64_t n, int64_t hidden, uint32_t seed) : random(seed) {
        config.common.hidden_size = hidden;
        config.common.rms_norm_eps = 1e-6;
        config.mhc = MhcConfig{n, 20, 1e-6};
        const int64_t outputs = 2 * n + n * n;
        weights.fn = tensor({outputs, n * hidden}, 1 / std::sqrt(float(n * hidden)));
        weights.base = tensor({outputs}, 0.5f);
        weights.scale = tensor({3}, 1);
    }
    HostTensor tensor(std::initializer_list<int64_t> shape, float scale) {
        int64_t count = 1;
        for (const int64_t each : shape) count *= each;
        std::vector<float> values(static_cast<size_t>(count));
        std::normal_distribution<float> normal;
        for (float& v : values) v = scale * normal(random);
        const auto memory = std::make_shared<std::vector<float>>(std::move(values));
        return {make_tensor(memory->data(), SMLA_F32, shape), memory};
    }
    std::mt19937 random;
    AttentionConfig config;
    MhcWeights weights;
};

// A graph of what `body` queues: it could neither allocate nor wait.
class Captured {
public:
    template <class Body>
    explicit Captured(const Body& body) {
        cudaGraph_t graph = nullptr;
        cudaStreamCreate(&stream_);
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
        body(stream_);
        EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
        EXPECT_EQ(cudaGraphInstantiate(&exec_, graph, 0), cudaSuccess);
        cudaGraphDestroy(graph);
    }
    ~Captured() {
        cudaGraphExecDestroy(exec_);
        cudaStreamDestroy(stream_);
    }
    Captured(const Captured&) = delete;
    Captured& operator=(const Captured&) = delete;
    void replay() const {
        ASSERT_EQ(cudaGraphLaunch(exec_, stream_), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    }

private:
    cudaStream_t stream_ = nullptr;
    cudaGraphExec_t exec_ = nullptr;
};

void expect_near(Device& device, const Tensor& there, const Tensor& here, double bound, const char* name) {
    std::unique_ptr<char[]> memory;
    const Tensor got = fetch(device, there, nullptr, memory);
    const int64_t width = element_count(here) / here.shape[0];
    for (int64_t t = 0; t < here.shape[0]; ++t)
        for (int64_t i = 0; i < width; ++i) {
            const double want = load_one<double>(reshape_rows(here, {width}), t, i);
            const double have = load_one<double>(reshape_rows(got, {width}), t, i);
            ASSERT_NEAR(have, want, bound * (1 + std::fabs(want))) << name << ' ' << t << ' ' << i;
        }
}

TEST_F(GpuHyperConnection, AsOnTheHost) {
    uint32_t seed = 0;
    for (const auto& [n, hidden, tokens] : std::initializer_list<std::array<int64_t, 3>>{
             {4, 64, 18}, {4, 4096, 1}, {4, 7168, 9}, {1, 100, 3}, {3, 301, 5}, {8, 513, 7}, {4, 64, 0}}) {
        SCOPED_TRACE(testing::Message() << n << " streams of " << hidden << ", " << tokens << " tokens");
        World world(n, hidden, ++seed);
        const HyperConnection host(world.config, world.weights), gpu(world.config, world.weights, device());
        // a token's streams lie apart from the next one's
        const HostTensor all = world.tensor({std::max<int64_t>(tokens, 1), n + 1, hidden}, 2),
                         y = world.tensor({std::max<int64_t>(tokens, 1), hidden}, 1),
                         out = world.tensor({std::max<int64_t>(tokens, 1), hidden}, 1);
        const auto cut = [&](const Tensor& tensor) { return slice(tensor, 0, 0, tokens); };
        const PlacedTensor all_there = place(device(), all.view), y_there = place(device(), y.view),
                           out_there = place(device(), out.view);
        const Tensor x = cut(slice(all.view, 1, 0, n)), x_there = cut(slice(all_there.view, 1, 0, n));
        MhcMix mix = host.reserve(tokens), mix_there = gpu.reserve(tokens + 2);
        const Captured step([&](cudaStream_t stream) {
            gpu.mix(x_there, mix_there, stream);
            gpu.collapse(mix_there, x_there, cut(out_there.view), stream);
            gpu.expand(mix_there, cut(y_there.view), x_there, stream);
        });
        if (tokens == 0) continue;
        for (int repeat = 0; repeat < 2; ++repeat) {  // the second on streams as the first left them
            host.mix(x, mix);
            host.collapse(mix, x, cut(out.view));
            host.expand(mix, cut(y.view), x);
            step.replay();
            expect_near(device(), gpu.rows(mix_there, tokens), host.rows(mix, tokens), 1e-5, "mix");
            expect_near(device(), out_there.view, out.view, 3e-5, "collapsed");
            expect_near(device(), all_there.view, all.view, 3e-5, "streams");
        }
    }
}

}  // namespace
}  // namespace smla::test
