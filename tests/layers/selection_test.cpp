// What a session says of the last step's selection, whenever it is asked: on a GPU it waits there.
#include "random_layer.h"

namespace smla::layers_test {
namespace {

constexpr int64_t kHidden = 64, kColumns = 6;

struct Case {
    explicit Case(Context& on)
        : context(on),
          layer(open_layer(weights.checkpoint(), weights.config, 0, {}, on.device())),
          session(on, *layer, options()) {}

    static SessionOptions options() {
        SessionOptions out;
        out.max_requests = 2;
        out.max_tokens = 60;
        out.max_step_tokens = 32;
        return out;
    }
    void forward(int32_t tokens, const Tap* tap = nullptr) {
        const std::vector<double> values = random_hidden(tokens, kHidden, uint64_t(session.length(0)));
        std::vector<float> hidden(values.begin(), values.end()), out(hidden.size());
        const StepRequest one{0, tokens};
        Session::Step step;
        step.requests = {&one, 1};
        step.hidden = make_tensor(hidden.data(), SMLA_F32, {tokens, kHidden});
        step.out = make_tensor(out.data(), SMLA_F32, {tokens, kHidden});
        step.tap = tap;
        session.forward(step);
    }

    Context& context;
    const RandomWeights weights{dsa_config(kHidden), 0};
    std::unique_ptr<Layer> layer;
    Session session;
};

std::vector<int32_t> selection(const Session& session, int64_t tokens) {
    const Tensor topk = session.topk();
    EXPECT_EQ(topk.shape[0], tokens);
    EXPECT_EQ(topk.shape[1], kColumns);
    const auto* first = static_cast<const int32_t*>(topk.data);
    return {first, first + element_count(topk)};
}

// Ascending positions that the last token sees, as many as it selects.
void expect_plausible(const std::vector<int32_t>& rows, int32_t length) {
    ASSERT_GE(rows.size(), size_t(kColumns));
    const auto last = rows.end() - kColumns;
    for (auto each = last; each != rows.end(); ++each) {
        EXPECT_LT(*each, length);
        EXPECT_GT(*each, each == last ? -1 : each[-1]);
    }
}

void selections_of(smla_engine engine) {
    Context context = make_context(engine);
    Case asked(context), never(context);
    EXPECT_TRUE(selection(asked.session, 0).empty());
    std::vector<std::vector<int32_t>> wanted;
    for (const int32_t tokens : {20, 1, 12, 2}) {
        asked.forward(tokens);
        never.forward(tokens);
        wanted.push_back(selection(asked.session, tokens));
        expect_plausible(wanted.back(), asked.session.length(0));
    }
    // The last step's alone, as often as it is asked for.
    EXPECT_EQ(selection(never.session, 2), wanted.back());
    EXPECT_EQ(selection(never.session, 2), wanted.back());
    // A clone has the selection of its source, even if the selection of the source was not read before.
    Case source(context);
    source.forward(20);
    const auto clone = source.session.clone(Case::options());
    source.forward(1);
    EXPECT_EQ(selection(*clone, 20), wanted[0]);
    EXPECT_EQ(selection(source.session, 1), wanted[1]);
    // Requests that are cut, copied or ended leave it as it was.
    Case cut(context);
    cut.forward(20);
    cut.session.copy_request(0, 1);
    cut.session.truncate(0, 10);
    cut.session.end_request(1);
    EXPECT_EQ(selection(cut.session, 20), wanted[0]);
    // A step that is refused is none; one that fails leaves none.
    EXPECT_THROW(cut.forward(33), Error);
    EXPECT_EQ(selection(cut.session, 20), wanted[0]);
    const Tap fails{
        .tensor = [](const char*, const Tensor&) { fail(SMLA_INTERNAL, "tap", "a step", "none"); }};
    EXPECT_THROW(cut.forward(5, &fails), Error);
    EXPECT_TRUE(selection(cut.session, 0).empty());
}

TEST(Selection, OfTheLastStep) { selections_of(SMLA_ENGINE_CPU); }

TEST(LayersGpuSelection, OfTheLastStep) {
    const std::string why = why_no_engine(SMLA_ENGINE_CUDA);
    if (!why.empty()) GTEST_SKIP() << "no GPU: " << why;
    selections_of(SMLA_ENGINE_CUDA);
}

}  // namespace
}  // namespace smla::layers_test
