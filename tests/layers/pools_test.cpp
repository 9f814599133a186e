// GLM-5.3: what decides whether index keys are rotated before they are rounded.
#include "core/hadamard.h"
#include "random_layer.h"

namespace smla::layers_test {
namespace {

constexpr int32_t kTokens = 21;
constexpr int64_t kHidden = 40, kHeads = 4, kWidth = 128;

std::string wide_config() {
    std::string json = pool_config(kHidden);
    const std::string narrow = R"("index_head_dim": 16)";
    return json.replace(json.find(narrow), narrow.size(), R"("index_head_dim": 128)");
}

struct Seen {
    std::vector<double> q, w, scores;  // [T,Hi,D] before rotation, [T,Hi] with all scales, [T,pools]
};

Seen seen_with(const Layer& layer, Context& context, smla_format index) {
    SessionOptions options;
    options.caches.index = index;
    options.max_tokens = options.max_step_tokens = kTokens;
    Session session(context, layer, options);
    const std::vector<double> hidden = random_hidden(kTokens, kHidden, 8);
    std::vector<double> out(hidden.size());
    const StepRequest request{0, kTokens};
    Seen seen;
    Tap tap;
    tap.tensor = [&](const char* name, const Tensor& tensor) {
        const std::string what = name;
        std::vector<double>* const to = what == "index_q"       ? &seen.q
                                        : what == "index_w"     ? &seen.w
                                        : what == "index_score" ? &seen.scores
                                                                : nullptr;
        if (!to) return;
        const int64_t width = tensor.shape[tensor.ndim - 1], rows = element_count(tensor) / width;
        const Tensor flat = reshape(tensor, {rows, width});
        to->resize(size_t(rows * width));
        for (int64_t i = 0; i < rows; ++i) load_row(flat, address(flat, i), width, to->data() + i * width);
    };
    Session::Step step;
    step.requests = {&request, 1};
    step.hidden = make_tensor(hidden.data(), SMLA_F64, {kTokens, kHidden});
    step.out = make_tensor(out.data(), SMLA_F64, {kTokens, kHidden});
    step.tap = &tap;
    session.forward(step);
    return seen;
}

// A query's scale, which its weight takes in, is that of the rotated query.
TEST(Pools, QuantisedIndexKeysAreRotated) {
    Context context = make_context(SMLA_ENGINE_REFERENCE);
    const RandomWeights weights(wide_config(), 1);
    const auto layer = open_layer(weights.checkpoint(), weights.config, 1, {});
    const Seen plain = seen_with(*layer, context, SMLA_ROW_F32),
               fp8 = seen_with(*layer, context, SMLA_INDEX_FP8_132);
    ASSERT_EQ(plain.w.size(), size_t(kTokens * kHeads));
    int differ = 0;
    for (size_t row = 0; row < plain.w.size(); ++row) {
        std::vector<double> q(plain.q.begin() + int64_t(row) * kWidth,
                              plain.q.begin() + int64_t(row + 1) * kWidth);
        const auto scale = [&] {
            double amax = 1e-4;
            for (const double value : q) amax = std::max(amax, std::fabs(value));
            return std::exp2(std::ceil(std::log2(amax / 448)));
        };
        const double before = scale();
        hadamard(q.data(), kWidth);
        differ += before != scale();
        EXPECT_NEAR(fp8.w[row] / plain.w[row] / scale(), 1, 1e-6) << row;
    }
    EXPECT_GT(differ, 3);  // so that the test would see queries that are not rotated
    // Rounding of queries and of keys moves a product by 2.4 % of its size each; other keys are at random.
    double error = 0, size = 0;
    ASSERT_EQ(fp8.scores.size(), plain.scores.size());
    for (size_t i = 0; i < plain.scores.size(); ++i) {
        if (!std::isfinite(plain.scores[i])) continue;
        error += std::pow(fp8.scores[i] - plain.scores[i], 2);
        size += std::pow(plain.scores[i], 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.1);
    EXPECT_GT(error, 0);
}

}  // namespace
}  // namespace smla::layers_test
