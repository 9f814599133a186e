// Hyper-connections around the block, with everything on the context's device.
#include "golden/compare.h"
#include "layers/mhc.h"

#include <cstring>

namespace smla::golden {

std::vector<Checked> check_streams(Context& context, const Golden& golden, const RunOptions& options) {
    std::vector<Checked> out;
    if (!golden.has("in.streams")) return out;
    const GoldenLayer& at = golden.layers[0];
    Device& device = context.device();
    const int64_t tokens = golden.batch * golden.tokens, hidden = at.config.common.hidden_size;
    LayerPrecision precision = options.precision;
    precision.weight_prefix = kWeightPrefix;
    const HyperConnection hyper(golden.weights, at.config, at.index, precision, device);
    const auto layer = open_layer(golden.weights, at.config, at.index, precision, device);
    const int64_t n = hyper.streams();
    golden.check_shape("in.streams", {golden.batch, golden.tokens, n, hidden});

    std::vector<double> values = golden.values("in.streams"), zeros(size_t(tokens * hidden));
    std::vector<double> more(zeros);
    const auto put = [&](std::vector<double>& from, std::initializer_list<int64_t> shape) {
        const Tensor host = make_tensor(from.data(), SMLA_F64, shape);
        if (precision.activations == SMLA_F64) return place(device, host);
        std::vector<float> narrow(from.begin(), from.end());  // `from` keeps them
        std::memcpy(from.data(), narrow.data(), narrow.size() * sizeof(float));
        return place(device, make_tensor(from.data(), SMLA_F32, shape));
    };
    const PlacedTensor x = put(values, {tokens, n, hidden}), block = put(zeros, {tokens, hidden}),
                       y = put(more, {tokens, hidden});
    const auto check = [&](const char* name, const Tensor& tensor, double tolerance) {
        std::unique_ptr<char[]> memory;
        const Tensor host = fetch(device, tensor, nullptr, memory);
        const int64_t width = element_count(host) / tokens;  // rows may lie apart
        std::vector<double> got(size_t(tokens * width));
        for (int64_t t = 0; t < tokens; ++t)
            load_row(reshape_rows(host, {width}), address(host, t), width, got.data() + t * width);
        out.push_back({name, compare(got, golden.values(name)).max, tolerance, "max"});
    };

    MhcMix mix = hyper.reserve(tokens);
    hyper.mix(x.view, mix);
    const Tensor rows = hyper.rows(mix, tokens);
    const double middle = golden.tolerance.f32_intermediate;
    check("mid.hc_post", slice(rows, 1, n, 2 * n), middle);
    check("mid.hc_comb", slice(rows, 1, 2 * n, 2 * n + n * n), middle);
    hyper.collapse(mix, x.view, block.view);
    check("mid.hc_collapsed", block.view, middle);
    norm_block_input(*layer, block.view, context.env({}));
    check("in.hidden", block.view, middle);

    SessionOptions session_options;
    session_options.caches = options.caches;
    session_options.max_requests = int32_t(golden.batch);
    session_options.max_tokens = int32_t(golden.tokens);
    session_options.max_step_tokens = int32_t(tokens);
    Session session(context, *layer, session_options);
    std::vector<StepRequest> requests;
    for (int32_t b = 0; b < golden.batch; ++b) requests.push_back({b, int32_t(golden.tokens)});
    Session::Step step;
    step.requests = requests;
    step.hidden = block.view;
    step.out = y.view;
    session.forward(step);
    hyper.expand(mix, y.view, x.view);
    check("out.streams", x.view, golden.tolerance.f32_y);
    return out;
}

}  // namespace smla::golden
