// Layers whose matrix products read bf16: near to those that read f32, but not equal, and with bf16 weights
// on the kernel of bf16 operands.
#include "core/cpu_features.h"
#include "random_layer.h"

namespace smla::layers_test {
namespace {

constexpr int64_t kHidden = 256;
// More tokens than the kernels of few take; each sees no more than the indexer picks (6), so that rounding
// cannot flip a selection.
constexpr StepRequest kRequests[] = {{0, 6}, {1, 3}, {2, 6}};
constexpr int64_t kTokens = 15;

struct Served {
    std::vector<double> out;
    StageRecords records;
};

Served serve(Context& context, const KindOfLayer& kind, bool bf16_operands) {
    const RandomWeights weights(kind.config(kHidden), kind.layer, SMLA_BF16);
    LayerPrecision precision;
    precision.bf16_operands = bf16_operands;
    precision.as_stored = true;
    const auto layer =
        open_layer(weights.checkpoint(), weights.config, weights.layer, precision, context.device());
    SessionOptions options;
    options.max_requests = 3;
    options.max_tokens = 6;
    options.max_step_tokens = kTokens;
    Session session(context, *layer, options);
    const std::vector<double> values = random_hidden(kTokens, kHidden, 3);
    const std::vector<float> hidden(values.begin(), values.end());
    std::vector<float> out(hidden.size(), NAN);
    std::vector<int32_t> topk;
    for (const StepRequest& request : kRequests)
        for (int32_t t = 0; t < request.tokens; ++t) append_newest(topk, *layer, t, 6);
    Session::Step step;
    step.requests = kRequests;
    step.hidden = make_tensor(const_cast<float*>(hidden.data()), SMLA_F32, {kTokens, kHidden});
    step.out = make_tensor(out.data(), SMLA_F32, {kTokens, kHidden});
    if (layer->kind() == LayerKind::dsa_shared)
        step.forced_topk = make_tensor(topk.data(), SMLA_I32, {kTokens, 6});
    session.forward(step);
    return {{out.begin(), out.end()}, session.records};
}

void rounded_and_no_more(smla_engine engine) {
    Context context = make_context(engine);
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const auto coarse = serve(context, kind, true), fine = serve(context, kind, false);
        const golden::Difference error = golden::compare(coarse.out, fine.out);
        // Three operands in a row are rounded by 2^-9 at most each.
        EXPECT_GT(error.l2, 1e-4);
        EXPECT_LT(error.l2, 3 * 0x1p-9);
    }
}

TEST(Bf16Operands, AreRoundedAndNoMore) { rounded_and_no_more(SMLA_ENGINE_CPU); }

TEST(Bf16Operands, AreRoundedAndNoMoreByTheReference) { rounded_and_no_more(SMLA_ENGINE_REFERENCE); }

TEST(LayersGpuBf16Operands, AreRoundedAndNoMore) {
    const std::string why = why_no_engine(SMLA_ENGINE_CUDA);
    if (!why.empty()) GTEST_SKIP() << "no GPU: " << why;
    rounded_and_no_more(SMLA_ENGINE_CUDA);
}

TEST(Bf16Operands, TakeTheirKernel) {
    Context context = make_context();
    const smla_isa isa = context.env({}).isa;  // SMLA_ISA may hold it below the processor's
    if (isa < SMLA_ISA_AVX512_BF16 || isa == SMLA_ISA_NEON || slow_bf16_dots())
        GTEST_SKIP() << "no AVX-512 bf16 here, or a slow one";
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const Served served = serve(context, kind, true);
        EXPECT_STREQ(served.records[size_t(Stage::out_project)].kernel, "cpu_avx512_bf16_project");
        if (kind.config == dsa_config) {
            EXPECT_STREQ(served.records[size_t(Stage::absorb)].kernel, "cpu_avx512_bf16_project");
        }
    }
}

}  // namespace
}  // namespace smla::layers_test
