// A session serves steps of exactly its maxima in every dtype of hidden and out, with the scratch that create
// made.
#include "random_layer.h"

namespace smla::layers_test {
namespace {

constexpr double kF32 = 5e-5;  // max over rms, as the golden files allow f32
constexpr smla_dtype kDtypes[] = {SMLA_F32, SMLA_BF16, SMLA_F16, SMLA_F64};

// Rows in a dtype.
struct Rows {
    Rows(smla_dtype dtype, int64_t tokens, int64_t width)
        : bytes(size_t(tokens * width * dtype_bits(dtype) / 8), char(0xff)),
          tensor(make_tensor(bytes.data(), dtype, {tokens, width})) {}
    Rows(smla_dtype dtype, int64_t tokens, int64_t width, const std::vector<double>& values)
        : Rows(dtype, tokens, width) {
        for (int64_t t = 0; t < tokens; ++t)
            store_row(tensor, address(tensor, t), width, values.data() + t * width);
    }
    std::vector<double> values() const {
        std::vector<double> out(size_t(element_count(tensor)));
        for (int64_t t = 0; t < tensor.shape[0]; ++t)
            load_row(tensor, address(tensor, t), tensor.shape[1], out.data() + t * tensor.shape[1]);
        return out;
    }

    std::vector<char> bytes;
    Tensor tensor;
};

// Wide, so that rows of a hidden state in f32 are more scratch than any other stage of the layer takes.
constexpr int64_t kHidden = 1024;

// Three requests whose tokens are max_step_tokens together; the longest is max_tokens long.
constexpr StepRequest kRequests[] = {{2, 13}, {0, 20}, {1, 7}};
constexpr int32_t kTokens = 40, kLongest = 20;

std::vector<double> serve(Context& context, const Layer& layer, size_t stage_budget,
                          const std::vector<double>& hidden, smla_dtype in, smla_dtype out) {
    SessionOptions options;
    options.max_requests = int32_t(std::size(kRequests));
    options.max_tokens = kLongest;
    options.max_step_tokens = kTokens;
    options.stage_budget = stage_budget;
    if (layer.precision().activations == SMLA_F64) options.caches.kv = options.caches.index = SMLA_ROW_F64;
    Session session(context, layer, options);
    const int64_t width = layer.config().common.hidden_size;
    const Rows x(in, kTokens, width, hidden);
    const Rows y(out, kTokens, width);
    std::vector<int32_t> topk;
    Session::Step step;
    step.requests = kRequests;
    step.hidden = x.tensor;
    step.out = y.tensor;
    if (layer.config().layer_kind(layer.layer_index()) == LayerKind::dsa_shared) {
        const int64_t columns = layer.config().indexer->topk;
        for (const StepRequest& request : kRequests)
            for (int32_t t = 0; t < request.tokens; ++t) append_newest(topk, layer, t, int32_t(columns));
        step.forced_topk = make_tensor(topk.data(), SMLA_I32, {kTokens, columns});
    }
    session.forward(step);
    return y.values();
}

std::vector<double> rounded(smla_dtype dtype, int64_t width, const std::vector<double>& values) {
    return Rows(dtype, int64_t(values.size()) / width, width, values).values();
}

void every_dtype(smla_engine engine, smla_dtype activations, size_t stage_budget) {
    Context context = make_context(engine);
    const std::vector<double> hidden = random_hidden(kTokens, kHidden, 7);
    for (const KindOfLayer& kind : kKinds) {
        const RandomWeights weights(kind.config(kHidden), kind.layer);
        LayerPrecision precision;
        precision.activations = precision.queries = activations;
        const auto layer = open_layer(weights.checkpoint(), weights.config, weights.layer, precision);
        for (const smla_dtype in : kDtypes) {
            const std::vector<double> given = rounded(in, kHidden, hidden);
            const auto wanted = serve(context, *layer, stage_budget, given, activations, activations);
            for (const smla_dtype out : kDtypes) {
                SCOPED_TRACE(text(kind.name, ", ", dtype_name(in), " to ", dtype_name(out), ", budget ",
                                  stage_budget));
                const auto y = serve(context, *layer, stage_budget, given, in, out);
                const double error = golden::compare(y, rounded(out, kHidden, wanted)).max;
                // f64 goes through other loops than a BLAS library, and may round to a neighbour
                if (in != SMLA_F64 && out != SMLA_F64 && activations == SMLA_F32) EXPECT_EQ(error, 0);
                else EXPECT_LE(error, out == SMLA_BF16 ? 0.05 : out == SMLA_F16 ? 5e-3 : kF32);
            }
        }
    }
}

TEST(SessionDtypes, AStepOfTheMaximaRunsInEveryDtype) { every_dtype(SMLA_ENGINE_CPU, SMLA_F32, 0); }

// Scratch of other stages does not hide what a dtype needs.
TEST(SessionDtypes, AStepOfTheMaximaRunsInEveryDtypeWithinABudget) {
    every_dtype(SMLA_ENGINE_CPU, SMLA_F32, 1);
}

TEST(SessionDtypes, AStepOfTheMaximaRunsInEveryDtypeInDouble) {
    every_dtype(SMLA_ENGINE_REFERENCE, SMLA_F64, 0);
}

}  // namespace
}  // namespace smla::layers_test
