// Requests that are cut, copied and reordered, and sessions that are cloned: afterwards every token has the
// bits of a session that never saw anything else. Tokens that are taken back are NaN, so that one which is
// still read shows.
#include "kit/interrupt.h"
#include "kit/refused.h"
#include "random_layer.h"

namespace smla::layers_test {
namespace {

constexpr int64_t kHidden = 64;
constexpr int32_t kLongest = 280;
constexpr int kNan = -1;  // a token that must leave no trace

using Ids = std::vector<int>;  // tokens by number: each has a hidden state of its own

Ids range(int first, int count) {
    Ids out;
    for (int i = 0; i < count; ++i) out.push_back(first + i);
    return out;
}

struct Piece {
    int32_t request;
    Ids ids;
};

class World {
public:
    World(const KindOfLayer& kind, smla_engine engine)
        : context(make_context(engine)), weights(kind.config(kHidden), kind.layer) {
        layer = open_layer(weights.checkpoint(), weights.config, weights.layer, {});
    }

    SessionOptions options(int32_t requests, int32_t rewind = 0) const {
        SessionOptions out;
        out.max_requests = requests;
        out.max_tokens = kLongest;
        out.max_step_tokens = 160;
        out.caches.page_tokens = 4;
        out.rewind_tokens = rewind;
        return out;
    }
    std::unique_ptr<Session> session(int32_t requests, int32_t rewind = 0) {
        return std::make_unique<Session>(context, *layer, options(requests, rewind));
    }

    // One step; the output rows one after the other.
    std::vector<float> forward(Session& on, const std::vector<Piece>& pieces) const {
        std::vector<StepRequest> requests;
        std::vector<float> hidden;
        std::vector<int32_t> topk;
        for (const Piece& piece : pieces) {
            requests.push_back({piece.request, int32_t(piece.ids.size())});
            int32_t position = on.length(piece.request);
            for (const int id : piece.ids) {
                const std::vector<double> row = random_hidden(1, kHidden, uint64_t(1000 + id));
                for (const double value : row) hidden.push_back(id == kNan ? NAN : float(value));
                append_newest(topk, *layer, position++, 6);
            }
        }
        const int64_t tokens = int64_t(hidden.size()) / kHidden;
        std::vector<float> out(hidden.size(), -7);
        Session::Step step;
        step.requests = requests;
        step.hidden = make_tensor(hidden.data(), SMLA_F32, {tokens, kHidden});
        step.out = make_tensor(out.data(), SMLA_F32, {tokens, kHidden});
        if (layer->kind() == LayerKind::dsa_shared)
            step.forced_topk = make_tensor(topk.data(), SMLA_I32, {tokens, 6});
        on.forward(step);
        return out;
    }

    // What the last `count` of these tokens give in a session of their own.
    std::vector<float> alone(const Ids& ids, size_t count) {
        const auto fresh = session(1);
        std::vector<float> out;
        for (size_t at = 0; at < ids.size(); at += 100) {
            const Ids part(ids.begin() + int64_t(at), ids.begin() + int64_t(std::min(ids.size(), at + 100)));
            const std::vector<float> rows = forward(*fresh, {{0, part}});
            out.insert(out.end(), rows.begin(), rows.end());
        }
        return {out.end() - int64_t(count) * kHidden, out.end()};
    }

    Context context;
    RandomWeights weights;
    std::unique_ptr<Layer> layer;
};

// Steps of right tokens, each followed by `wrong` NaN tokens in the same step that are taken back.
struct Round {
    int right, wrong;
};

// Ends of steps and cuts lie on, before and behind the ends of V4's entries and of pages.
void cut_and_go_on(const KindOfLayer& kind, smla_engine engine, const std::vector<Round>& rounds) {
    SCOPED_TRACE(kind.name);
    World world(kind, engine);
    const auto cut = world.session(2), never = world.session(2);
    int32_t length = 0;
    for (const Round& round : rounds) {
        const Ids right = range(length, round.right);
        Ids ids = right;
        ids.insert(ids.end(), size_t(round.wrong), kNan);
        // A neighbour whose pages of NaN serve this request later.
        std::vector<float> got = world.forward(*cut, {{0, ids}, {1, {kNan, kNan, kNan}}});
        got.resize(right.size() * size_t(kHidden));
        std::vector<float> wanted;
        if (!right.empty()) wanted = world.forward(*never, {{0, right}});
        length += round.right;
        cut->truncate(0, length);
        if (length % 3 == 0) cut->end_request(1);
        ASSERT_EQ(got, wanted) << "up to " << length;
        ASSERT_EQ(cut->length(0), length);
    }
}

// Each step is first tried with NaN tokens and ended at later and later questions, until one is not asked.
void end_and_go_on(const KindOfLayer& kind, smla_engine engine, const std::vector<int>& steps) {
    SCOPED_TRACE(kind.name);
    World world(kind, engine);
    const auto ended = world.session(2), never = world.session(2);
    int32_t length = 0;
    int cancelled = 0;
    for (const int tokens : steps) {
        const std::vector<Piece> wrong{{0, Ids(size_t(tokens), kNan)}, {1, {kNan}}};
        for (int end_at = 1;; end_at += 1 + end_at / 3) {
            const kit::Interrupt interrupt(end_at);
            try {
                world.forward(*ended, wrong);
                break;
            } catch (const Error& error) {
                ASSERT_EQ(error.status, SMLA_CANCELLED) << error.what();
            }
            ++cancelled;
            ASSERT_EQ(ended->length(0), length);
            ASSERT_EQ(ended->length(1), 0);
        }
        ended->truncate(0, length);
        ended->end_request(1);
        const std::vector<Piece> right{{0, range(length, tokens)}};
        ASSERT_EQ(world.forward(*ended, right), world.forward(*never, right)) << "after " << length;
        length += tokens;
    }
    EXPECT_GT(cancelled, 5 * int(steps.size()));
}

TEST(SessionRequests, AStepThatItsCallerEndsLeavesRequestsAsTheyWere) {
    for (const KindOfLayer& kind : kKinds) {
        end_and_go_on(kind, SMLA_ENGINE_REFERENCE, {30, 1, 3, 9, 1});
        end_and_go_on(kind, SMLA_ENGINE_CPU, {125, 1, 2, 1, 20, 1, 100});
    }
}

TEST(SessionRequests, AfterACutEveryTokenHasTheBitsItHadWithoutIt) {
    for (const KindOfLayer& kind : kKinds)
        cut_and_go_on(kind, SMLA_ENGINE_REFERENCE,
                      {{120, 0},
                       {0, 7},
                       {6, 0},
                       {2, 9},
                       {1, 0},
                       {1, 5},
                       {0, 1},
                       {0, 4},
                       {3, 2},
                       {1, 1},
                       {122, 0},
                       {0, 8},
                       {1, 7},
                       {2, 2},
                       {0, 0},
                       {5, 3}});
}

// A step's products depend on its number of tokens in a BLAS library: cuts of whole steps.
TEST(SessionRequests, AfterACutOfAStepEveryTokenHasTheBitsItHadWithoutIt) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        World world(kind, SMLA_ENGINE_CPU);
        const auto cut = world.session(1), never = world.session(1);
        int length = 0;
        for (const Round& round : std::vector<Round>{{126, 9}, {1, 3}, {1, 140}, {5, 1}, {120, 16}, {3, 5}}) {
            const Ids right = range(length, round.right);
            ASSERT_EQ(world.forward(*cut, {{0, right}}), world.forward(*never, {{0, right}})) << length;
            length += round.right;
            world.forward(*cut, {{0, Ids(size_t(round.wrong), kNan)}});
            cut->truncate(0, length);
        }
    }
}

// A draft model takes back several steps of one token.
TEST(SessionRequests, RewindTokensKeepTheWindowOfEarlierSteps) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        World world(kind, SMLA_ENGINE_REFERENCE);
        const auto kept = world.session(1, 10), bare = world.session(1);
        for (Session* each : {kept.get(), bare.get()}) {
            world.forward(*each, {{0, range(0, 150)}});
            for (int i = 0; i < 10; ++i) world.forward(*each, {{0, {kNan}}});
        }
        kept->truncate(0, 150);
        EXPECT_EQ(world.forward(*kept, {{0, range(150, 3)}}), world.alone(range(0, 153), 3));
        const bool window = world.weights.config.hybrid.has_value() ||
                            std::string(kind.name) == "pools";  // those of an open pool
        EXPECT_EQ(kit::refused_field([&] { bare->truncate(0, 120); }), window ? "tokens" : "");
        EXPECT_EQ(bare->length(0), window ? 160 : 120);
        bare->truncate(0, 0);
        EXPECT_EQ(world.forward(*bare, {{0, range(0, 3)}}), world.alone(range(0, 3), 3));
    }
}

TEST(SessionRequests, CopiesGoTheirOwnWays) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        World world(kind, SMLA_ENGINE_REFERENCE);
        const auto session = world.session(3);
        world.forward(*session, {{2, Ids(90, kNan)}});
        world.forward(*session, {{0, range(0, 130)}});
        session->copy_request(0, 2);
        session->copy_request(2, 2);
        EXPECT_EQ(session->length(2), 130);
        const auto rows = world.forward(*session, {{2, range(500, 3)}, {0, range(130, 2)}});
        Ids own = range(0, 130);
        own.insert(own.end(), {500, 501, 502});
        std::vector<float> wanted = world.alone(own, 3);
        const std::vector<float> first = world.alone(range(0, 132), 2);
        wanted.insert(wanted.end(), first.begin(), first.end());
        EXPECT_EQ(rows, wanted);
        EXPECT_EQ(kit::refused_field([&] { session->copy_request(3, 0); }), "source");
        EXPECT_EQ(kit::refused_field([&] { session->copy_request(0, -1); }), "target");
    }
}

// Beams of a search; at the end every beam still has the tokens of its history, and no page was lost.
TEST(SessionRequests, BeamsFollowTheirHistories) {
    constexpr int32_t kBeams = 4;
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        World world(kind, SMLA_ENGINE_REFERENCE);
        const auto session = world.session(kBeams);
        std::vector<Ids> beams(kBeams);
        std::mt19937 random(3);
        int next = 0;
        for (int round = 0; round < 24; ++round) {
            std::vector<Piece> pieces;
            for (int32_t b = 0; b < kBeams; ++b) {
                pieces.push_back({b, range(next, b == 3 ? 3 : round == 2 ? 40 : 5)});
                next += 40;
                beams[size_t(b)].insert(beams[size_t(b)].end(), pieces.back().ids.begin(),
                                        pieces.back().ids.end());
            }
            world.forward(*session, pieces);
            std::vector<int32_t> sources;
            for (int32_t b = 0; b < (round % 3 == 0 ? kBeams - 1 : kBeams); ++b)
                sources.push_back(int32_t(random() % kBeams));
            session->reorder(sources);
            const std::vector<Ids> before = beams;
            for (size_t b = 0; b < sources.size(); ++b) beams[b] = before[size_t(sources[b])];
        }
        for (int32_t b = 0; b < kBeams; ++b) {
            ASSERT_EQ(session->length(b), int32_t(beams[size_t(b)].size()));
            beams[size_t(b)].push_back(9999);
            EXPECT_EQ(world.forward(*session, {{b, {9999}}}), world.alone(beams[size_t(b)], 1)) << b;
        }
        for (int32_t b = 0; b < kBeams; ++b) session->end_request(b);
        for (int32_t b = 0; b < kBeams; ++b)
            for (int i = 0; i < 2; ++i) world.forward(*session, {{b, range(0, kLongest / 2)}});
        EXPECT_EQ(kit::refused_field([&] { session->reorder(std::vector<int32_t>{0, 4}); }), "sources[1]");
        EXPECT_EQ(kit::refused_field([&] { session->reorder(std::vector<int32_t>(5, 0)); }), "count");
    }
}

TEST(SessionRequests, ClonesHoldTheSameRequestsAndOtherMaxima) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        World world(kind, SMLA_ENGINE_REFERENCE);
        const auto session = world.session(2);
        world.forward(*session, {{1, range(0, 140)}});
        world.forward(*session, {{1, range(140, 135)}});
        world.forward(*session, {{1, range(275, 5)}});
        const std::string full = kit::refused_field([&] { world.forward(*session, {{1, {280}}}); });
        EXPECT_EQ(full, "step.requests[0].tokens");
        SessionOptions larger = world.options(3);
        larger.max_tokens = 300;
        larger.max_step_tokens = 8;  // its windows are smaller than those that it takes over
        const auto clone = session->clone(larger);
        EXPECT_EQ(clone->length(1), 280);
        const std::vector<float> wanted = world.alone(range(0, 280), 4);
        session->truncate(1, 276);
        clone->truncate(1, 278);
        EXPECT_EQ(world.forward(*clone, {{1, range(278, 2)}}),
                  std::vector<float>(wanted.begin() + 2 * kHidden, wanted.end()));
        EXPECT_EQ(world.forward(*session, {{1, range(276, 4)}}), wanted);
        world.forward(*clone, {{2, range(0, 8)}});
        world.forward(*clone, {{1, range(280, 8)}});

        larger.max_requests = 1;
        EXPECT_EQ(kit::refused_field([&] { session->clone(larger); }), "max_requests");
        larger.max_requests = 2, larger.max_tokens = 279;
        EXPECT_EQ(kit::refused_field([&] { session->clone(larger); }), "max_tokens");
    }
}

TEST(SessionRequests, WrongLengthsAreRefused) {
    World world(kKinds[0], SMLA_ENGINE_CPU);
    const auto session = world.session(1);
    world.forward(*session, {{0, range(0, 20)}});
    EXPECT_EQ(kit::refused_field([&] { session->truncate(0, 21); }), "tokens");
    EXPECT_EQ(kit::refused_field([&] { session->truncate(0, -1); }), "tokens");
    EXPECT_EQ(kit::refused_field([&] { session->truncate(1, 0); }), "request");
    EXPECT_EQ(kit::refused_field([&] { world.session(1, -1); }), "rewind_tokens");
    EXPECT_EQ(session->length(0), 20);
}

}  // namespace
}  // namespace smla::layers_test
