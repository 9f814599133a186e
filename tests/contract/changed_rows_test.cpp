// Rows that are normed and rotated on their way into a cache or into codes: the bits of norm, rope and the
// plain call over f32.
#include "engines.h"

#include "api/guard.h"
#include "kit/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace contract {
namespace {

using smla::make_tensor;
using smla::Stage;

constexpr int64_t kTokens = 7, kPairs = 24, kHeads = 9;

smla::Env env_of(smla_context* context) { return context->context.env({}); }

template <Stage S>
void run(smla_context* context, smla::ArgsOf<S> args) {
    args.struct_size = sizeof args;
    smla::kit::run_placed<S>(args, env_of(context));
}

class Inputs {
public:
    explicit Inputs(uint32_t seed) : random_(seed) {
        for (int64_t i = 0; i < kPairs; ++i)
            frequency_.push_back(std::pow(10000., -double(i) / double(kPairs)));
        for (int64_t t = 0; t < kTokens; ++t) position_.push_back(random_() % 200'000);
    }
    std::vector<float> values(int64_t count) {
        std::normal_distribution<float> normal(0, 1);
        std::vector<float> out(static_cast<size_t>(count));
        for (float& value : out) value = normal(random_);
        return out;
    }
    smla_tensor positions() { return make_tensor(position_.data(), SMLA_I64, {kTokens}); }
    smla_tensor frequencies() { return make_tensor(frequency_.data(), SMLA_F64, {kPairs}); }

private:
    std::mt19937 random_;
    std::vector<double> frequency_;
    std::vector<int64_t> position_;
};

struct Row {
    smla_format format;
    int32_t head, tail;
    smla_norm_kind norm;
    smla_rope_style style;
    int32_t first;
};
constexpr Row kRows[] = {{SMLA_FP8_656, 512, 64, SMLA_NORM_RMS, SMLA_ROPE_INTERLEAVED, 528},
                         {SMLA_FP8_584, 512, 0, SMLA_NORM_RMS, SMLA_ROPE_INTERLEAVED, 464},
                         {SMLA_ROW_F32, 200, 57, SMLA_NORM_LAYER, SMLA_ROPE_HALF, 180},
                         {SMLA_ROW_BF16, 1024, 0, SMLA_NORM_LAYER, SMLA_ROPE_INTERLEAVED, 0}};
constexpr Row kIndexRow = {SMLA_INDEX_FP8_132, 128, 0, SMLA_NORM_LAYER, SMLA_ROPE_HALF, 0};

// The bytes of a cache that a write has filled: in one call, or in three.
template <Stage S>
void compare_writes(smla_context* context, const Row& row, uint32_t seed) {
    Inputs inputs(seed);
    const int64_t width = row.head + row.tail;
    std::vector<float> head = inputs.values(kTokens * row.head), tail = inputs.values(kTokens * row.tail),
                       weight = inputs.values(row.head), bias = inputs.values(row.head),
                       rows(size_t(kTokens * width)), shown(rows.size());
    std::vector<int64_t> slots{5, 0, -1, 9, 2, 11, 7};
    smla_cache cache{.format = row.format, .width = int32_t(width)};
    cache.page_tokens = 4;
    cache.pages = 3;
    size_t bytes = 0;
    ASSERT_EQ(smla_cache_bytes(&cache, &bytes), SMLA_OK);
    std::vector<char> together(bytes, 0), apart(bytes, 0);

    smla_write_args args{};
    args.head = make_tensor(head.data(), SMLA_F32, {kTokens, row.head});
    if (row.tail) args.tail = make_tensor(tail.data(), SMLA_F32, {kTokens, row.tail});
    args.slots = make_tensor(slots.data(), SMLA_I64, {kTokens});
    args.cache = cache;
    args.cache.data = together.data();
    args.norm_kind = row.norm;
    args.eps = 1e-6;
    args.norm_weight = make_tensor(weight.data(), SMLA_F32, {row.head});
    if (row.norm == SMLA_NORM_LAYER) args.norm_bias = make_tensor(bias.data(), SMLA_F32, {row.head});
    args.rope_style = row.style;
    args.rope_first = row.first;
    args.positions = inputs.positions();
    args.frequencies = inputs.frequencies();
    args.values = make_tensor(shown.data(), SMLA_F32, {kTokens, width});
    run<S>(context, args);

    smla_norm_args norm{.kind = row.norm, .eps = 1e-6, .weight = args.norm_weight, .bias = args.norm_bias};
    norm.x = norm.out = make_tensor(head.data(), SMLA_F32, {kTokens, 1, row.head});
    run<Stage::norm>(context, norm);
    for (int64_t t = 0; t < kTokens; ++t) {
        std::copy_n(head.begin() + t * row.head, row.head, rows.begin() + t * width);
        std::copy_n(tail.begin() + t * row.tail, row.tail, rows.begin() + t * width + row.head);
    }
    run<Stage::rope>(context, {.style = row.style,
                               .first = row.first,
                               .x = make_tensor(rows.data(), SMLA_F32, {kTokens, 1, width}),
                               .positions = args.positions,
                               .frequencies = args.frequencies});
    smla_write_args plain{};
    plain.head = make_tensor(rows.data(), SMLA_F32, {kTokens, width});
    plain.slots = args.slots;
    plain.cache = cache;
    plain.cache.data = apart.data();
    run<S>(context, plain);
    EXPECT_TRUE(shown == rows);
    EXPECT_TRUE(together == apart);
}

// Codes and weights of index queries, rotated by the call and before it.
void compare_queries(smla_context* context, smla_dtype dtype, uint32_t seed) {
    constexpr int64_t width = 128, count = kTokens * kHeads;
    Inputs inputs(seed);
    std::vector<float> q = inputs.values(count * width), w = inputs.values(count), shown(q.size());
    std::vector<float> weights[2] = {std::vector<float>(w.size()), std::vector<float>(w.size())};
    std::vector<uint8_t> codes[2], scales[2];
    smla_quant_index_q_args args{.hadamard = 1, .factor = 0.01, .rope_first = 80};
    args.q = make_tensor(q.data(), SMLA_F32, {kTokens, kHeads, width});
    args.w = make_tensor(w.data(), SMLA_F32, {kTokens, kHeads});
    args.positions = inputs.positions();
    args.frequencies = inputs.frequencies();
    args.rotated = make_tensor(shown.data(), SMLA_F32, {kTokens, kHeads, width});
    for (const int apart : {0, 1}) {
        codes[apart].resize(size_t(count * width));
        scales[apart].resize(size_t(count * width / 32));
        args.q_out = make_tensor(codes[apart].data(), dtype, {kTokens, kHeads, width});
        if (dtype == SMLA_E2M1)
            args.scales = make_tensor(scales[apart].data(), SMLA_E8M0, {kTokens, kHeads, width / 32});
        args.w_out = make_tensor(weights[apart].data(), SMLA_F32, {kTokens, kHeads});
        run<Stage::quant_index_q>(context, args);
        if (apart) break;
        run<Stage::rope>(context, {.first = args.rope_first,
                                   .x = args.q,
                                   .positions = args.positions,
                                   .frequencies = args.frequencies});
        EXPECT_TRUE(shown == q);
        args.rope_first = 0;
        args.positions = args.frequencies = args.rotated = smla_tensor{};
    }
    EXPECT_TRUE(codes[0] == codes[1]);
    EXPECT_TRUE(scales[0] == scales[1]);
    EXPECT_TRUE(weights[0] == weights[1]);
}

CONTRACT_TEST(L8f_RowsAreNormedAndRotatedAsByTheStages) {
    for (const Engine& engine : engines()) {
        const Context context(engine);
        for (uint32_t seed = 1; seed <= 5; ++seed) {
            SCOPED_TRACE(std::string(engine.name) + ", seed " + std::to_string(seed));
            for (const Row& row : kRows) compare_writes<Stage::write_kv>(context, row, seed);
            compare_writes<Stage::write_index>(context, kIndexRow, seed);
            for (const smla_dtype dtype : {SMLA_E4M3, SMLA_E2M1}) compare_queries(context, dtype, seed);
        }
    }
}

}  // namespace
}  // namespace contract
