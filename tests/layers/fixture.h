// Golden cases for the tests of layers.
#pragma once

#include <source_dir.h>
#include "golden/compare.h"
#include "kit/context_args.h"
#include "layers/session.h"

#include <gtest/gtest.h>

namespace smla::layers_test {

inline golden::Golden load(const std::string& name) {
    return golden::load_golden(std::string(SMLA_SOURCE_DIR) + "/tests/goldens/" + name + ".safetensors");
}

inline Context make_context(smla_engine engine = SMLA_ENGINE_CPU, int32_t threads = 2) {
    return Context(kit::context_args(engine, threads));
}

// One sequence of a golden case fed to a session in pieces.
struct Feed {
    explicit Feed(const golden::Golden& golden, size_t layer = 0)
        : hidden(golden.values("in.hidden" + golden.layers[layer].suffix)),
          expected(golden.values("ref.y" + golden.layers[layer].suffix)),
          width(golden.layers[layer].config.common.hidden_size),
          tokens(golden.tokens) {
        for (const double p : golden.values("in.position_ids")) positions.push_back(int32_t(p));
    }
    std::vector<double> hidden, expected, y;
    std::vector<int32_t> positions;
    int64_t width, tokens;
};

// One step: `pieces[i]` tokens more of feeds[i], which is request requests[i].
inline void step(Session& session, std::vector<Feed*> feeds, std::vector<int32_t> requests,
                 std::vector<int32_t> pieces) {
    std::vector<float> hidden;
    std::vector<int32_t> positions;
    std::vector<StepRequest> list;
    for (size_t i = 0; i < feeds.size(); ++i) {
        const int64_t first = session.length(requests[i]), width = feeds[i]->width;
        hidden.insert(hidden.end(), feeds[i]->hidden.begin() + first * width,
                      feeds[i]->hidden.begin() + (first + pieces[i]) * width);
        positions.insert(positions.end(), feeds[i]->positions.begin() + first,
                         feeds[i]->positions.begin() + first + pieces[i]);
        list.push_back({requests[i], pieces[i]});
    }
    const int64_t tokens = int64_t(positions.size()), width = feeds[0]->width;
    std::vector<float> out(size_t(tokens * width), std::numeric_limits<float>::quiet_NaN());
    Session::Step call;
    call.requests = list;
    call.hidden = make_tensor(hidden.data(), SMLA_F32, {tokens, width});
    call.out = make_tensor(out.data(), SMLA_F32, {tokens, width});
    call.rope_positions = make_tensor(positions.data(), SMLA_I32, {tokens});
    session.forward(call);
    int64_t at = 0;
    for (size_t i = 0; i < feeds.size(); ++i) {
        feeds[i]->y.insert(feeds[i]->y.end(), out.begin() + at * width,
                           out.begin() + (at + pieces[i]) * width);
        at += pieces[i];
    }
}

inline double error_of(const Feed& feed) {
    return golden::compare(feed.y, std::vector<double>(feed.expected.begin(),
                                                       feed.expected.begin() + int64_t(feed.y.size())))
        .max;
}

}  // namespace smla::layers_test
