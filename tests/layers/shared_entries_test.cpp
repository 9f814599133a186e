// Sessions of V4.1's layers that read another layer's entries: in any order of requests, and whatever becomes
// of the session that they read.
#include "fixture.h"
#include "kit/refused.h"

#include <smla/smla.h>

#include <array>

namespace smla::layers_test {
namespace {

// Layer 1 of the golden file writes entries and index keys. Layer 3 reads both and has a separate selection.
constexpr size_t kWriter = 1, kReader = 3;
constexpr int32_t kTokens = 30;
constexpr double kF32 = 5e-5;  // max over rms, as the golden files allow f32

using Pieces = std::vector<StepRequest>;

SessionOptions options(int32_t requests) {
    SessionOptions out;
    out.max_requests = requests;
    out.max_tokens = kTokens;
    out.max_step_tokens = requests * kTokens;
    out.caches.page_tokens = 4;
    return out;
}

// Both layers with sessions of two requests, which hold the golden sequence forwards and backwards.
class Pair {
public:
    explicit Pair(int32_t requests = 2) : writer_layer(open(kWriter)), reader_layer(open(kReader)) {
        writer = std::make_unique<Session>(context, *writer_layer, options(requests));
        SessionOptions reads = options(requests);
        reads.entries_of = writer->place();
        reader = std::make_unique<Session>(context, *reader_layer, reads);
    }

    std::vector<float> write(const Pieces& pieces) { return forward(*writer, kWriter, pieces); }
    std::vector<float> read(const Pieces& pieces) { return forward(*reader, kReader, pieces); }

    // Rows [first, first + count) of the reader's output for a request that is alone; `as`: which sequence.
    static std::vector<float> alone(int32_t as, int32_t first, int32_t count) {
        Pair fresh(2);
        fresh.write({{as, first}});
        fresh.read({{as, first}});
        fresh.write({{as, count}});
        return fresh.read({{as, count}});
    }

    golden::Golden golden = load("V41_share");
    Context context = make_context();
    std::unique_ptr<Layer> writer_layer, reader_layer;
    std::unique_ptr<Session> writer, reader;
    bool swapped = false;  // request 0 holds the sequence backwards

private:
    std::unique_ptr<Layer> open(size_t layer) const {
        LayerPrecision precision;
        precision.weight_prefix = golden::kWeightPrefix;
        return open_layer(golden.weights, golden.layers[layer].config, golden.layers[layer].index, precision);
    }
    std::vector<float> forward(Session& on, size_t layer, const Pieces& pieces) const {
        const Feed feed(golden, layer);
        std::vector<float> hidden;
        for (const StepRequest& piece : pieces)
            for (int32_t i = 0, at = on.length(piece.request); i < piece.tokens; ++i, ++at) {
                const int64_t row = (piece.request == 1) != swapped ? feed.tokens - 1 - at : at;
                hidden.insert(hidden.end(), feed.hidden.begin() + row * feed.width,
                              feed.hidden.begin() + (row + 1) * feed.width);
            }
        std::vector<float> out(hidden.size());
        const int64_t tokens = int64_t(hidden.size()) / feed.width;
        Session::Step step;
        step.requests = pieces;
        step.hidden = make_tensor(hidden.data(), SMLA_F32, {tokens, feed.width});
        step.out = make_tensor(out.data(), SMLA_F32, {tokens, feed.width});
        on.forward(step);
        return out;
    }
};

// Steps of other sizes add up in another order.
void expect_same(const std::vector<float>& got, const std::vector<float>& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    const std::vector<double> a(got.begin(), got.end()), b(wanted.begin(), wanted.end());
    EXPECT_LE(golden::compare(a, b).max, kF32);
}

std::vector<float> joined(std::vector<float> first, const std::vector<float>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

TEST(SharedEntries, RequestsComeInAnyOrderAndInAnySteps) {
    const std::vector<float> forwards = Pair::alone(0, 0, 20), backwards = Pair::alone(1, 0, 20);
    Pair same, swapped, apart;
    same.write({{0, 20}, {1, 20}});
    expect_same(same.read({{0, 20}, {1, 20}}), joined(forwards, backwards));
    swapped.write({{0, 20}, {1, 20}});
    expect_same(swapped.read({{1, 20}, {0, 20}}), joined(backwards, forwards));
    apart.write({{1, 20}});
    apart.write({{0, 20}});
    expect_same(apart.read({{0, 20}, {1, 20}}), joined(forwards, backwards));
    // A step of one request alone reads that request's pages.
    swapped.write({{0, 3}, {1, 1}});
    expect_same(swapped.read({{1, 1}}), Pair::alone(1, 20, 1));
    expect_same(swapped.read({{0, 3}}), Pair::alone(0, 20, 3));
}

// Requests that change places between the two layers' steps.
TEST(SharedEntries, RequestsMayBeReordered) {
    Pair pair;
    const int32_t swap[] = {1, 0};
    pair.write({{0, 20}, {1, 9}});
    pair.read({{0, 20}, {1, 9}});
    pair.write({{0, 1}, {1, 2}});
    for (Session* const session : {pair.writer.get(), pair.reader.get()}) session->reorder(swap);
    pair.swapped = true;
    expect_same(pair.read({{0, 2}}), Pair::alone(1, 9, 2));
}

TEST(SharedEntries, AResizedSourceIsReadFurther) {
    Pair pair;
    pair.write({{0, 20}, {1, 20}});
    pair.read({{0, 20}, {1, 20}});
    SessionOptions larger = options(3);
    larger.max_tokens = 2 * kTokens;
    auto resized = pair.writer->clone(larger);
    resized->replace(*pair.writer);
    pair.writer = std::move(resized);
    pair.write({{0, 3}});
    expect_same(pair.read({{0, 3}}), Pair::alone(0, 20, 3));
}

TEST(SharedEntries, ASourceThatIsSmallerOrGoneIsRefused) {
    Pair pair;
    pair.write({{0, 5}});
    auto smaller = pair.writer->clone(options(1));
    smaller->replace(*pair.writer);
    pair.writer = std::move(smaller);
    EXPECT_EQ(kit::refused_field([&] { pair.read({{0, 5}}); }), "entries_of");
    pair.writer.reset();
    EXPECT_EQ(kit::refused_field([&] { pair.read({{0, 5}}); }), "entries_of");
    EXPECT_EQ(kit::refused_field([&] { pair.reader->clone(pair.reader->options()); }), "entries_of");
    EXPECT_EQ(pair.reader->length(0), 0);
}

// Through the C ABI, where a session is resized under its handle.
TEST(SharedEntries, SessionsOfTheCAbiOutliveWhatTheyRead) {
    const golden::Golden golden = load("V41_share");
    smla_context_args on{.struct_size = sizeof on, .version = SMLA_VERSION};
    smla_context* context = nullptr;
    ASSERT_EQ(smla_context_create(&on, &context), SMLA_OK);
    std::vector<HostTensor> weights;
    std::vector<std::string> names;
    std::vector<smla_named_tensor> tensors;
    for (const std::string& name : golden.file.names())
        if (name.starts_with(golden::kWeightPrefix)) {
            weights.push_back(golden.file.tensor(name));
            names.push_back(name.substr(std::string(golden::kWeightPrefix).size()));
        }
    for (size_t i = 0; i < names.size(); ++i) tensors.push_back({names[i].c_str(), weights[i].view});
    std::array<smla_layer*, 2> layers{};
    std::array<smla_session*, 2> sessions{};
    for (const size_t i : {0, 1}) {
        const auto& at = golden.layers[i ? kReader : kWriter];
        smla_layer_args args{.struct_size = sizeof args, .layer = at.index};
        args.tensors = tensors.data();
        args.tensor_count = int32_t(tensors.size());
        args.config_json = at.config_json.c_str();
        ASSERT_EQ(smla_layer_create(context, &args, &layers[i]), SMLA_OK) << smla_last_error();
        smla_session_args made{.struct_size = sizeof made, .max_tokens = kTokens};
        made.entries_of = i ? sessions[0] : nullptr;
        ASSERT_EQ(smla_session_create(layers[i], &made, &sessions[i]), SMLA_OK) << smla_last_error();
    }
    const Feed feed(golden, kReader);
    std::vector<float> hidden(feed.hidden.begin(), feed.hidden.end()), out(hidden.size());
    const auto forward = [&](smla_session* session, int32_t tokens) {
        const smla_step_request one{0, tokens};
        smla_session_step step{.struct_size = sizeof step, .request_count = 1, .requests = &one};
        step.hidden = make_tensor(hidden.data(), SMLA_F32, {tokens, feed.width});
        step.out = make_tensor(out.data(), SMLA_F32, {tokens, feed.width});
        return smla_session_forward(session, &step);
    };
    for (smla_session* each : sessions) EXPECT_EQ(forward(each, 7), SMLA_OK) << smla_last_error();
    const smla_session_args longer{.struct_size = sizeof longer, .max_tokens = 5 * kTokens};
    for (smla_session* each : sessions) {  // the reader is resized last
        EXPECT_EQ(smla_session_resize(each, &longer), SMLA_OK) << smla_last_error();
        EXPECT_EQ(forward(sessions[0], 3), SMLA_OK) << smla_last_error();
        EXPECT_EQ(forward(sessions[1], 3), SMLA_OK) << smla_last_error();
    }
    EXPECT_EQ(forward(sessions[0], 1), SMLA_OK);
    smla_session_destroy(sessions[0]);
    EXPECT_EQ(forward(sessions[1], 1), SMLA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(smla_last_error()).find("entries_of"), std::string::npos);
    smla_session_destroy(sessions[1]);
    for (smla_layer* each : layers) smla_layer_destroy(each);
    smla_context_destroy(context);
}

}  // namespace
}  // namespace smla::layers_test
