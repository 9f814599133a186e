// Requests that come and go in one session: batches, chunks, preemption, shared pages of different requests.
#include "fixture.h"
#include "kit/refused.h"

#include <functional>

namespace smla::layers_test {
namespace {

constexpr double kF32 = 5e-5;  // max over rms, as the golden files allow f32

std::unique_ptr<Layer> open(const golden::Golden& golden, size_t layer = 0) {
    LayerPrecision precision;
    precision.weight_prefix = golden::kWeightPrefix;
    return open_layer(golden.weights, golden.layers[layer].config, golden.layers[layer].index, precision);
}

SessionOptions small_pages(int32_t requests, int32_t tokens) {
    SessionOptions options;
    options.max_requests = requests;
    options.max_tokens = tokens;
    options.max_step_tokens = requests * tokens;
    options.caches.page_tokens = 4;
    return options;
}

// Three sequences of different length with the same weights, in steps that mix prefill, extends and decode.
TEST(Serving, VariableLengthsInOneBatch) {
    std::vector<golden::Golden> goldens{load("D5_var0"), load("D5_var1"), load("D5_var2")};
    std::vector<Feed> feeds(goldens.begin(), goldens.end());
    Context context = make_context();
    const auto layer = open(goldens[0]);
    Session session(context, *layer, small_pages(3, 33));
    step(session, {&feeds[1], &feeds[0]}, {1, 0}, {20, 3});
    step(session, {&feeds[0], &feeds[2], &feeds[1]}, {0, 2, 1}, {1, 17, 1});
    step(session, {&feeds[0], &feeds[1], &feeds[2]}, {0, 1, 2}, {3, 12, 1});
    for (size_t i = 0; i < feeds.size(); ++i) {
        EXPECT_EQ(int64_t(feeds[i].y.size()), feeds[i].tokens * feeds[i].width);
        EXPECT_LE(error_of(feeds[i]), kF32) << goldens[i].name;
    }
}

// A request that is preempted gives its pages to others, and is computed again from its beginning.
TEST(Serving, PreemptedRequestsStartAgain) {
    for (const char* name : {"D2", "V5_csa", "V5_hca", "V5_sliding"}) {
        const golden::Golden golden = load(name);
        Context context = make_context();
        const auto layer = open(golden);
        Session session(context, *layer, small_pages(2, 40));
        Feed first(golden), second(golden), again(golden);
        step(session, {&first}, {0}, {25});
        step(session, {&first, &second}, {0, 1}, {1, 30});
        session.end_request(0);
        step(session, {&second}, {1}, {1});
        step(session, {&again, &second}, {0, 1}, {40, 9});
        EXPECT_LE(error_of(first), kF32) << name;
        EXPECT_LE(error_of(second), kF32) << name;
        EXPECT_LE(error_of(again), kF32) << name;
        EXPECT_EQ(session.length(0), 40);
    }
}

// Requests of no tokens, alone in a step and beside others.
TEST(Serving, NoTokensChangeNothing) {
    for (const char* name : {"D2", "V5_csa", "V5_hca", "V5_sliding"}) {
        const golden::Golden golden = load(name);
        Context context = make_context();
        const auto layer = open(golden);
        Session session(context, *layer, small_pages(2, 40));
        Feed first(golden), second(golden);
        step(session, {&first}, {0}, {0});
        step(session, {&first, &second}, {0, 1}, {21, 0});
        step(session, {&second, &first}, {1, 0}, {0, 0});
        step(session, {&first, &second}, {0, 1}, {19, 5});
        EXPECT_LE(error_of(first), kF32) << name;
        EXPECT_LE(error_of(second), kF32) << name;
        EXPECT_EQ(session.length(0), 40);
        EXPECT_EQ(session.length(1), 5);
    }
}

// The window and the compressor's state live in few pages however long the request grows.
TEST(Serving, ResidentCachesStaySmall) {
    const golden::Golden golden = load("V5_csa");
    Context context = make_context();
    const auto layer = open(golden);
    SessionOptions options = small_pages(1, 40);
    options.max_step_tokens = 2;
    Session session(context, *layer, options);
    Feed feed(golden);
    for (int i = 0; i < 20; ++i) step(session, {&feed}, {0}, {2});
    EXPECT_LE(error_of(feed), kF32);
    for (const CacheNeed& need : session.needs()) {
        if (need.resident) {
            EXPECT_LT(need.pages(1 << 20, 2) * need.page_rows, 32) << need.name;
        }
    }
}

// Scratch bounded to almost nothing gives the same bits.
TEST(Serving, ScratchBudgetDoesNotChangeResults) {
    const golden::Golden golden = load("D2");
    Context context = make_context();
    const auto layer = open(golden);
    SessionOptions options = small_pages(1, 40);
    Session large(context, *layer, options);
    options.stage_budget = 1;
    Session small(context, *layer, options);
    Feed a(golden), b(golden);
    step(large, {&a}, {0}, {40});
    step(small, {&b}, {0}, {40});
    EXPECT_EQ(golden::compare(a.y, b.y).max, 0);
    EXPECT_LE(small.workspace_bytes(), large.workspace_bytes());
}

TEST(Serving, SharedLayerNeedsASelection) {
    const golden::Golden golden = load("G2");
    Context context = make_context();
    const auto layer = open(golden, 1);
    Session session(context, *layer, small_pages(1, 40));
    Feed feed(golden, 1);
    try {
        step(session, {&feed}, {0}, {40});
        FAIL() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.field, "step.forced_topk");
    }
    EXPECT_EQ(session.length(0), 0);
}

std::string refused(Session& session, std::vector<StepRequest> requests, std::vector<int32_t> topk = {},
                    std::vector<int64_t> positions = {}) {
    int64_t tokens = 0;
    for (const StepRequest& request : requests) tokens += std::max(request.tokens, 0);
    const int64_t width = session.layer().config().common.hidden_size, columns = int64_t(topk.size());
    std::vector<float> hidden(size_t(std::max<int64_t>(tokens, 1) * width)), out(hidden.size());
    Session::Step call;
    call.requests = requests;
    call.hidden = make_tensor(hidden.data(), SMLA_F32, {tokens, width});
    call.out = make_tensor(out.data(), SMLA_F32, {tokens, width});
    if (columns) call.forced_topk = make_tensor(topk.data(), SMLA_I32, {tokens, columns / tokens});
    if (!positions.empty()) call.rope_positions = make_tensor(positions.data(), SMLA_I64, {tokens});
    return kit::refused_field([&] { session.forward(call); });
}

TEST(Serving, RefusalsNameTheFieldAndChangeNothing) {
    const golden::Golden golden = load("D2");
    Context context = make_context();
    const auto layer = open(golden);
    Session session(context, *layer, small_pages(2, 40));
    Feed feed(golden);
    const int64_t past = int64_t(1) << 31;
    EXPECT_EQ(refused(session, {{2, 1}}), "step.requests[0].request");
    EXPECT_EQ(refused(session, {{-1, 1}}), "step.requests[0].request");
    EXPECT_EQ(refused(session, {{0, 1}, {0, 1}}), "step.requests[1].request");
    EXPECT_EQ(refused(session, {{0, 41}}), "step.requests[0].tokens");
    EXPECT_EQ(refused(session, {{0, -1}}), "step.requests[0].tokens");
    EXPECT_EQ(refused(session, {{0, 1}, {1, 1}, {1, 1}}), "step.requests");
    EXPECT_EQ(refused(session, {{0, 0}, {1, 0}}), "");  // nothing to do is no error
    EXPECT_EQ(refused(session, {{0, 2}}, {}, {0, -past - 1}), "step.rope_positions[1]");
    EXPECT_EQ(refused(session, {{0, 1}}, std::vector<int32_t>(7, -1)), "step.forced_topk.shape[1]");
    EXPECT_EQ(refused(session, {{0, 2}}, {0, -1, 0, 2}), "step.forced_topk[1,1]");
    for (const int64_t wrong : {int64_t(3), past - 1, int64_t(-2), -past})
        EXPECT_EQ(refused(session, {{0, 3}}, {0, 0, int32_t(wrong)}), "step.forced_topk[2,0]") << wrong;
    EXPECT_EQ(refused(session, {{1, 2}, {0, 2}}, {0, 1, 0, 2}), "step.forced_topk[3,0]");
    EXPECT_EQ(session.length(0), 0);
    step(session, {&feed}, {0}, {39});
    EXPECT_LE(error_of(feed), kF32);
    EXPECT_EQ(refused(session, {{0, 1}}, {40}), "step.forced_topk[0,0]");
    EXPECT_EQ(refused(session, {{0, 1}}, {39, 0, -1, -1, 5, -1}), "");
}

TEST(Serving, EntriesThatATokenDoesNotSeeAreRefused) {
    const golden::Golden golden = load("V5_csa");
    Context context = make_context();
    const auto layer = open(golden);
    Session session(context, *layer, small_pages(1, 40));
    EXPECT_EQ(refused(session, {{0, 5}}, {-1, -1, 0, 0, 0}), "step.forced_topk[2,0]");
    EXPECT_EQ(refused(session, {{0, 5}}, {-1, -1, -1, 0, 1}), "step.forced_topk[4,0]");
    EXPECT_EQ(refused(session, {{0, 5}}, {-1, -1, -1, 0, 0}), "");
    EXPECT_EQ(refused(session, {{0, 3}}, {0, 0, 1}), "");
}

TEST(Serving, ASelectionForALayerThatSelectsNothingIsRefused) {
    for (const char* name : {"V5_sliding", "V5_hca"}) {
        const golden::Golden golden = load(name);
        Context context = make_context();
        const auto layer = open(golden);
        Session session(context, *layer, small_pages(1, 40));
        EXPECT_EQ(refused(session, {{0, 2}}, {-1, -1}), "step.forced_topk") << name;
        EXPECT_EQ(refused(session, {{0, 2}}), "") << name;
    }
}

TEST(Serving, SessionsWhoseForwardsWouldFailAreRefused) {
    const golden::Golden golden = load("D2");
    Context context = make_context();
    const auto layer = open(golden);
    const auto refused = [&](const std::function<void(SessionOptions&)>& spoil) {
        SessionOptions options = small_pages(1, 40);
        spoil(options);
        return kit::refused_field([&] { Session(context, *layer, options); });
    };
    const auto kv = [&](smla_format format, float scale) {
        return refused([&](SessionOptions& o) { o.caches.kv = format, o.caches.kv_scale = scale; });
    };
    for (const int wrong : {int(SMLA_STATE_F32), int(SMLA_ROW_F64), 99})
        EXPECT_EQ(kv(wrong, 1), "kv_format") << wrong;
    for (const int wrong : {int(SMLA_STATE_F32), int(SMLA_ROW_F64), -1})
        EXPECT_EQ(refused([&](SessionOptions& o) { o.caches.index = wrong; }), "index_format") << wrong;
    for (const float wrong : {-1.f, NAN, INFINITY}) {
        EXPECT_EQ(kv(SMLA_ROW_F32, wrong), "kv_scale") << wrong;
        EXPECT_EQ(kv(SMLA_FP8_576, wrong), "kv_scale") << wrong;
    }
    EXPECT_EQ(kv(SMLA_ROW_F32, 3), "kv_scale");
    for (const int32_t each : {1 << 30, INT32_MAX})  // rows are numbered in int32
        EXPECT_EQ(refused([&](SessionOptions& o) {
                      o.max_requests = o.max_tokens = o.max_step_tokens = o.caches.page_tokens = each;
                  }),
                  "max_requests");
    EXPECT_EQ(refused([](SessionOptions& o) { o.max_requests = 3, o.max_tokens = 1 << 30; }), "max_requests");
}

// Threads do not change bits.
TEST(Serving, SameBitsOnAnyNumberOfThreads) {
    for (const char* name : {"D2", "V3_S40"}) {
        const golden::Golden golden = load(name);
        std::vector<std::vector<double>> y;
        for (const int32_t threads : {1, 2, 3}) {
            Context context = make_context(SMLA_ENGINE_CPU, threads);
            const auto layer = open(golden);
            Session session(context, *layer, small_pages(1, 40));
            Feed feed(golden);
            step(session, {&feed}, {0}, {40});
            y.push_back(feed.y);
        }
        EXPECT_EQ(golden::compare(y[1], y[0]).max, 0) << name;
        EXPECT_EQ(golden::compare(y[2], y[0]).max, 0) << name;
    }
}

}  // namespace
}  // namespace smla::layers_test
