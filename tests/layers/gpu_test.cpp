// Sessions and layers of tensors on a GPU; skipped where there is none.
#include "random_layer.h"

namespace smla::layers_test {
namespace {

constexpr int64_t kHidden = 64;

class LayersGpu : public testing::Test {
protected:
    void SetUp() override {
        const std::string why = why_no_engine(SMLA_ENGINE_CUDA);
        if (!why.empty()) GTEST_SKIP() << "no GPU: " << why;
        context = std::make_unique<Context>(make_context(SMLA_ENGINE_CUDA));
    }

    // The next `count` tokens of one text, or NaN.
    std::vector<float> forward(Session& on, int32_t request, int32_t count, bool nan = false) const {
        const LayerKind kind = on.layer().kind();
        std::vector<float> hidden, out(size_t(count * kHidden), -7);
        std::vector<int32_t> topk;
        for (int32_t i = 0; i < count; ++i) {
            const int32_t position = on.length(request) + i;
            for (const double value : random_hidden(1, kHidden, uint64_t(position)))
                hidden.push_back(nan ? NAN : float(value));
            append_newest(topk, on.layer(), position, 6);
        }
        const StepRequest one{request, count};
        Session::Step step;
        step.requests = {&one, 1};
        step.hidden = make_tensor(hidden.data(), SMLA_F32, {count, kHidden});
        step.out = make_tensor(out.data(), SMLA_F32, {count, kHidden});
        if (kind == LayerKind::dsa_shared) step.forced_topk = make_tensor(topk.data(), SMLA_I32, {count, 6});
        on.forward(step);
        return out;
    }
    SessionOptions options() const {
        SessionOptions out;
        out.max_requests = 3;
        out.max_tokens = 200;
        out.max_step_tokens = 160;
        out.caches.page_tokens = 4;
        return out;
    }

    std::unique_ptr<Context> context;
};

TEST_F(LayersGpu, RequestsAreCutCopiedReorderedAndCloned) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const RandomWeights weights(kind.config(kHidden), kind.layer);
        const auto layer =
            open_layer(weights.checkpoint(), weights.config, weights.layer, {}, context->device());
        Session never(*context, *layer, options()), session(*context, *layer, options());
        forward(never, 0, 126);
        forward(never, 0, 3);
        const std::vector<float> wanted = forward(never, 0, 5);
        forward(session, 2, 126);
        forward(session, 2, 9, true);
        session.truncate(2, 126);
        session.copy_request(2, 0);
        session.reorder(std::vector<int32_t>{2, 0, 1});
        ASSERT_EQ(session.length(0), 126);
        ASSERT_EQ(session.length(2), 0);
        SessionOptions larger = options();
        larger.max_tokens = 300;
        const auto clone = session.clone(larger);
        for (Session* each : {&session, clone.get()})
            for (const int32_t request : {0, 1}) {
                forward(*each, request, 3);
                EXPECT_EQ(forward(*each, request, 5), wanted) << request;
            }
    }
}

// Decode steps keep their addresses, so that from the fourth on they are replayed: the same bits as launched.
TEST_F(LayersGpu, ReplayedStepsAreLaunchedOnes) {
    setenv("SMLA_STEP_GRAPHS", "0", 1);
    Context launching = make_context(SMLA_ENGINE_CUDA);
    unsetenv("SMLA_STEP_GRAPHS");
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const RandomWeights weights(kind.config(kHidden), kind.layer);
        const auto layer =
            open_layer(weights.checkpoint(), weights.config, weights.layer, {}, context->device());
        Session replayed(*context, *layer, options()), launched(launching, *layer, options());
        EXPECT_EQ(forward(replayed, 0, 126), forward(launched, 0, 126));
        for (int step = 0; step < 12; ++step)
            ASSERT_EQ(forward(replayed, 0, 1), forward(launched, 0, 1)) << step;
        EXPECT_EQ(replayed.records[size_t(Stage::attend)].calls,
                  launched.records[size_t(Stage::attend)].calls);
    }
}

TEST_F(LayersGpu, WeightsInTheMemoryOfTheGpuAreBorrowed) {
    for (const KindOfLayer& kind : kKinds)
        for (const smla_dtype dtype : {SMLA_F32, SMLA_BF16, SMLA_F16, SMLA_E4M3}) {
            SCOPED_TRACE(text(kind.name, ", ", dtype_name(dtype)));
            RandomWeights weights(kind.config(kHidden), kind.layer, dtype);
            LayerPrecision stored;
            stored.as_stored = true;
            const auto file =
                open_layer(weights.checkpoint(), weights.config, weights.layer, stored, context->device());
            std::vector<HostTensor> memory;
            std::vector<NamedTensor> tensors;
            size_t borrowed = 0;
            for (const NamedTensor& each : weights.tensors) {
                memory.push_back({each.tensor, nullptr});
                place(memory.back(), context->device());
                tensors.push_back({each.name, memory.back().view});
                const bool scale = each.name.find("scale") != std::string::npos;
                if (!scale && (each.tensor.dtype == SMLA_F32 || each.tensor.dtype == SMLA_BF16))
                    borrowed += span_bytes(each.tensor);
            }
            const auto layer = open_layer(Checkpoint::from_tensors(tensors, "tensors", context->device()),
                                          weights.config, weights.layer, stored, context->device());
            EXPECT_EQ(layer->borrowed_bytes(), borrowed);
            EXPECT_EQ(layer->weight_bytes(), file->weight_bytes());
            Session a(*context, *layer, options()), b(*context, *file, options());
            EXPECT_EQ(forward(a, 0, 150), forward(b, 0, 150));
            // Hidden states and the query latent have one product each, but where the caller's weights lie
            // apart; V4.1's index keys are a third.
            const int64_t apart = a.records[size_t(Stage::project)].calls,
                          joint = b.records[size_t(Stage::project)].calls;
            if (dtype == SMLA_F32 || dtype == SMLA_BF16) {
                EXPECT_LT(joint, apart);
                EXPECT_LE(joint, 3);
            }
        }
}

}  // namespace
}  // namespace smla::layers_test
