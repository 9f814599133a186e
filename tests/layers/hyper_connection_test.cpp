// Hyper-connections on the host; the golden files hold their numbers, tests/gpu a GPU to the host.
#include "fixture.h"
#include "kit/refused.h"
#include "layers/mhc.h"

namespace smla::layers_test {
namespace {

constexpr int64_t kStreams = 2, kHidden = 6, kOutputs = 2 * kStreams + kStreams * kStreams;

HostTensor zeros(std::initializer_list<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t each : shape) count *= each;
    const auto memory = std::make_shared<std::vector<float>>(size_t(count), 0.f);
    return {make_tensor(memory->data(), SMLA_F32, shape), memory};
}

TEST(HyperConnection, AMixOfOtherTokensIsRefused) {
    AttentionConfig config;
    config.common.hidden_size = kHidden;
    config.common.rms_norm_eps = 1e-6;
    config.mhc = MhcConfig{kStreams, 2, 1e-6};
    const HyperConnection hyper(config,
                                {zeros({kOutputs, kStreams * kHidden}), zeros({kOutputs}), zeros({3})});
    const HostTensor streams = zeros({5, kStreams, kHidden}), block = zeros({5, kHidden});
    const auto cut = [](const HostTensor& of, int64_t tokens) { return slice(of.view, 0, 0, tokens); };
    MhcMix mix = hyper.reserve(5);
    hyper.mix(cut(streams, 3), mix);
    for (const int64_t tokens : {2, 3, 4, 5}) {
        const std::string wanted = tokens == 3 ? "" : "mix";
        const Tensor x = cut(streams, tokens), y = cut(block, tokens);
        EXPECT_EQ(kit::refused_field([&] { hyper.collapse(mix, x, y); }), wanted) << tokens;
        EXPECT_EQ(kit::refused_field([&] { hyper.expand(mix, y, x); }), wanted) << tokens;
        EXPECT_EQ(kit::refused_field([&] { hyper.rows(mix, tokens); }), wanted) << tokens;
    }
}

}  // namespace
}  // namespace smla::layers_test
