// Hyper-connections around a V4 layer, against transformers.
#include "layers/mhc.h"
#include "fixture.h"

namespace smla::layers_test {
namespace {

constexpr double kTolerance = 2e-5;  // max over rms: intermediates in f32

std::vector<double> as_double(const std::vector<float>& values) { return {values.begin(), values.end()}; }

TEST(Mhc, AroundAnAttentionBlock) {
    const golden::Golden golden = load("V8");
    const golden::GoldenLayer& at = golden.layers[0];
    const int64_t tokens = golden.tokens, hidden = at.config.common.hidden_size, n = at.config.mhc->streams;
    LayerPrecision precision;
    precision.weight_prefix = golden::kWeightPrefix;
    const HyperConnection hyper(golden.weights, at.config, at.index, precision);
    const auto layer = open_layer(golden.weights, at.config, at.index, precision);

    std::vector<float> streams;
    for (const double v : golden.values("in.streams")) streams.push_back(float(v));
    const Tensor x = make_tensor(streams.data(), SMLA_F32, {tokens, n, hidden});
    const MhcMix mix = hyper.mix(x);
    EXPECT_LE(golden::compare(mix.post, golden.values("mid.hc_post")).max, kTolerance);
    EXPECT_LE(golden::compare(mix.comb, golden.values("mid.hc_comb")).max, kTolerance);

    std::vector<float> input(size_t(tokens * hidden)), y(input.size());
    const Tensor block = make_tensor(input.data(), SMLA_F32, {tokens, hidden});
    hyper.collapse(mix, x, block);
    EXPECT_LE(golden::compare(as_double(input), golden.values("mid.hc_collapsed")).max, kTolerance);
    norm_block_input(*layer, block);
    EXPECT_LE(golden::compare(as_double(input), golden.values("in.hidden")).max, kTolerance);

    Context context = make_context();
    SessionOptions options;
    options.max_tokens = options.max_step_tokens = int32_t(tokens);
    Session session(context, *layer, options);
    const StepRequest request{0, int32_t(tokens)};
    Session::Step step;
    step.requests = {&request, 1};
    step.hidden = block;
    step.out = make_tensor(y.data(), SMLA_F32, {tokens, hidden});
    session.forward(step);
    EXPECT_LE(golden::compare(as_double(y), golden.values("out.y")).max, 5e-5);
    hyper.expand(mix, step.out, x);
    EXPECT_LE(golden::compare(as_double(streams), golden.values("out.streams")).max, 5e-5);
}

}  // namespace
}  // namespace smla::layers_test
