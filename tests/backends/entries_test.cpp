// Entries of V4.1 by the rules of either engine: what they are normed from, in double, in a cache whose
// writer rounds it to bf16 and in one whose writer does not.
#include "backends/step.h"
#include "core/numbers.h"
#include "kit/context_args.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace smla::test {
namespace {

constexpr int64_t kTokens = 6, kWidth = 512;

smla_context_args reference_engine() { return kit::context_args(SMLA_ENGINE_REFERENCE); }

smla_cache one_page(smla_format format, std::vector<uint64_t>& memory) {
    smla_cache out{};
    out.format = format;
    out.width = int32_t(format == SMLA_STATE_F64 ? 2 * kWidth : kWidth);
    out.page_tokens = int32_t(kTokens);
    out.pages = 1;
    memory.assign(cache_bytes(out) / 8 + 1, 0);
    out.data = memory.data();
    return out;
}

// A step of one request's first tokens.
struct Projections {
    std::vector<double> kv, gate, weight;
    std::vector<int32_t> numbers{0, 1, 2, 3, 4, 5}, requests = std::vector<int32_t>(size_t(kTokens), 0),
                                                    page{0};
    std::vector<int64_t> slots, state_slots;

    explicit Projections(int64_t ratio) {
        std::mt19937 engine(11);
        std::normal_distribution<double> normal;
        for (int64_t i = 0; i < kTokens * kWidth; ++i)
            kv.push_back(normal(engine)), gate.push_back(normal(engine));
        for (int64_t d = 0; d < kWidth; ++d) weight.push_back(1 + 0.2 * normal(engine));
        for (int64_t t = 0; t < kTokens; ++t) slots.push_back(t / ratio), state_slots.push_back(t);
    }
    // What the entry that token t closes is normed from.
    double pooled(int64_t ratio, int64_t t, int64_t d) const {
        const size_t at = size_t(t * kWidth + d), before = at - size_t(kWidth);
        if (ratio == 1) return kv[at];
        const double share = 1 / (1 + std::exp(gate[before] - gate[at]));
        return kv[before] * (1 - share) + kv[at] * share;
    }
    std::vector<double> latents(int64_t ratio, smla_format format, smla_writer writer) {
        std::vector<uint64_t> entries, state;
        HybridStep step{};
        step.ratio = int32_t(ratio);
        step.eps = 1e-20;
        step.frequencies = make_tensor(static_cast<double*>(nullptr), SMLA_F64, {0});
        step.entries.group.cache = one_page(format, entries);
        step.entries.group.cache.writer = writer;
        step.entries.group.slots = make_tensor(slots.data(), SMLA_I64, {kTokens});
        step.compressor = {.kv = make_tensor(kv.data(), SMLA_F64, {kTokens, kWidth}),
                           .norm_weight = make_tensor(weight.data(), SMLA_F64, {kWidth}),
                           .state = {.cache = one_page(SMLA_STATE_F64, state),
                                     .block_table = make_tensor(page.data(), SMLA_I32, {1, 1}),
                                     .slots = make_tensor(state_slots.data(), SMLA_I64, {kTokens})}};
        if (ratio > 1) step.compressor.score = make_tensor(gate.data(), SMLA_F64, {kTokens, kWidth});
        StepBatch batch{};
        batch.request_of_token = make_tensor(requests.data(), SMLA_I32, {kTokens});
        batch.position = batch.rope_position = make_tensor(numbers.data(), SMLA_I32, {kTokens});
        std::vector<double> out;
        Tap tap;
        tap.tensor = [&](const char* name, const Tensor& tensor) {
            if (std::string(name) != "latents") return;
            out.resize(size_t(kTokens * kWidth));
            for (int64_t t = 0; t < kTokens; ++t)
                load_row(tensor, address(tensor, t, 0), kWidth, out.data() + t * kWidth);
        };
        Context context{reference_engine()};
        OwnedWorkspace workspace{context};
        run_step(context.env({}), nullptr, 0, workspace.at_least(1 << 20), nullptr, &tap,
                 [&](Runner& run) { run.tap("latents", write_entries(run, batch, step)); });
        return out;
    }
};

TEST(Entries, AreNormedFromWhatTheWriterRounds) {
    for (const int64_t ratio : {1, 2})
        for (const smla_format format : {SMLA_FP8_528_G32, SMLA_NVFP4_288_SPLIT})
            for (const smla_writer writer : {0, int(SMLA_WRITER_BF16_FIRST), int(SMLA_WRITER_BF16_POOLED)}) {
                Projections given(ratio);
                const std::vector<double> got = given.latents(ratio, format, writer);
                ASSERT_EQ(got.size(), given.kv.size());
                double apart = 0;  // of the rule that the writer does not have
                for (int64_t t = ratio - 1; t < kTokens; t += ratio) {
                    double square[2] = {0, 0}, from[2][kWidth];
                    for (int64_t d = 0; d < kWidth; ++d) {
                        from[0][d] = given.pooled(ratio, t, d);
                        from[1][d] = double(round_to_bf16(float(from[0][d])));
                        for (int rule : {0, 1}) square[rule] += from[rule][d] * from[rule][d] / kWidth;
                    }
                    const int rule = writer == SMLA_WRITER_BF16_POOLED;
                    for (int64_t d = 0; d < kWidth; ++d) {
                        const auto want = [&](int by) {
                            return from[by][d] / std::sqrt(square[by]) * given.weight[size_t(d)];
                        };
                        const double latent = got[size_t(t * kWidth + d)];
                        EXPECT_NEAR(latent, want(rule), 1e-13) << ratio << " " << writer << " " << t;
                        apart = std::max(apart, std::fabs(latent - want(1 - rule)));
                    }
                }
                EXPECT_GT(apart, 1e-3);
            }
}

}  // namespace
}  // namespace smla::test
