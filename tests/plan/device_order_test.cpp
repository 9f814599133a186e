// The rule of one token, applied in the order of a GPU, gives what the host's loops give; and what they would
// refuse becomes padding. tests/gpu holds the kernels to the same.
#include "device_order.h"
#include "kit/refused.h"
#include "random_batch.h"

#include <gtest/gtest.h>

namespace smla::test {
namespace {

std::vector<uint8_t> memory_of(const Plan& plan, const char* name) {
    const FieldSpec* spec =
        std::find_if(std::begin(kPlanFieldSpecs), std::end(kPlanFieldSpecs),
                     [&](const FieldSpec& each) { return std::string(name) == each.name; });
    const Tensor field = largest_field(*spec, plan.maxima());
    const auto* bytes = static_cast<const uint8_t*>((plan.fields().*spec->member).data);
    return {bytes, bytes + element_count(field) * dtype_bits(field.dtype) / 8};
}

TEST(PlanDeviceOrder, TheSameBitsAsTheHost) {
    for (uint32_t seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        PlanMaxima maxima = random_maxima(dice);
        maxima.uniform_decodes = dice.in(0, 1);
        Plan host(maxima), device(maxima, device_order());
        for (int step = 0; step < 8; ++step) {
            Batch batch = random_batch(dice, maxima);
            if (batch.tokens == 0) batch.tokens = batch.query_tokens();
            if (batch.tokens == 0) continue;
            host.build(batch.view());
            device.build(batch.view());
            for (const char* name : host.names()) {
                ASSERT_EQ(memory_of(host, name), memory_of(device, name)) << name << " step " << step;
                ASSERT_EQ(describe(*host.find(name)), describe(*device.find(name))) << name;
            }
        }
    }
}

// By hand: which request a token falls to, and that the tokens of a wrong request are padding.
void expect_sane(const Plan& plan, const PlanMaxima& maxima, const Batch& batch) {
    const PlanFields& fields = plan.fields();
    int32_t begin = 0, t = 0;
    for (int64_t r = 0; r <= batch.requests(); ++r) {
        const bool real = r < batch.requests();
        const int32_t given = real ? batch.starts[size_t(r) + 1] : batch.tokens;
        const int32_t end = std::max(begin, std::min(given, batch.tokens));
        const int32_t length = real ? batch.lengths[size_t(r)] : -1;
        const bool wrong = length < end - begin || length > maxima.max_seq_len;
        for (; t < end; ++t) {
            ASSERT_EQ(values_of(fields.request_of_token)[size_t(t)], wrong ? 0 : r) << t;
            ASSERT_EQ(values_of(fields.position)[size_t(t)], wrong ? 0 : length - (end - t)) << t;
            if (!wrong) continue;
            ASSERT_EQ(values_of(fields.is_valid)[size_t(t)], 0) << t;
            ASSERT_EQ(values_of(fields.visible_tokens)[size_t(t)], 0) << t;
        }
        begin = end;
    }
    const std::vector<int64_t> visible = values_of(fields.visible_tokens);
    for (int32_t i = 0; i < batch.tokens; ++i) {
        ASSERT_TRUE(visible[size_t(i)] >= 0 && visible[size_t(i)] <= maxima.max_seq_len) << i;
        if (!present(fields.window_rows)) continue;
        for (int32_t j = 0; j < maxima.window; ++j)
            ASSERT_TRUE(j < visible[size_t(i)] || load_int(fields.window_rows, i, j) == -1) << i;
    }
}

TEST(PlanDeviceOrder, GarbageBecomesPadding) {
    for (uint32_t seed = 0; seed < 300; ++seed) {
        SCOPED_TRACE(seed);
        Dice dice(seed);
        const PlanMaxima maxima = random_maxima(dice);
        Plan plan(maxima, device_order()), fresh(maxima, device_order());
        Batch batch;
        for (int step = 0; step < 4; ++step) {
            batch = hostile_batch(dice, maxima);
            plan.build(batch.view());
            expect_sane(plan, maxima, batch);
            if (testing::Test::HasFatalFailure()) return;
        }
        fresh.build(batch.view());  // garbage leaves no trace either
        for (const char* name : plan.names())
            ASSERT_EQ(memory_of(plan, name), memory_of(fresh, name)) << name;
    }
}

// The other tokens of the request stay what they are.
TEST(PlanDeviceOrder, ARopePositionThatIsNotInt32MakesPadding) {
    PlanMaxima maxima{};
    maxima.groups = SMLA_GROUP_PRIMARY;
    maxima.max_tokens = maxima.max_seq_len = 8;
    maxima.max_requests = 1;
    Plan plan(maxima, device_order());
    Batch batch;
    add_request(batch, 3, 5);
    set_table(batch, kPrimary, 2, 4);
    batch.tokens = 3;
    batch.rope = {7, int64_t(1) << 32, 9};
    plan.build(batch.view());
    EXPECT_EQ(values_of(plan.fields().rope_position), (std::vector<int64_t>{7, 0, 9}));
    EXPECT_EQ(values_of(plan.fields().primary_slot), (std::vector<int64_t>{2, -1, 4}));
}

TEST(PlanDeviceOrder, WhatIsRefused) {
    Dice dice(3);
    PlanMaxima maxima = random_maxima(dice);
    Plan plan(maxima, device_order());
    Batch batch = hostile_batch(dice, maxima);
    batch.tokens = 0;  // nobody reads query_start_loc
    EXPECT_EQ(kit::refused_field([&] { plan.build(batch.view()); }), "batch.tokens");
    batch.tokens = maxima.max_tokens + 1;
    EXPECT_EQ(kit::refused_field([&] { plan.build(batch.view()); }), "batch.tokens");
    batch.tokens = 1;
    PlanBatch view = batch.view();
    view.seq_lens.device_type = SMLA_CUDA;
    EXPECT_EQ(kit::refused_field([&] { plan.build(view); }), "batch.seq_lens.device");
    maxima.allocator = {[](void*, size_t, size_t) -> void* { return nullptr; }, [](void*, void*) {}, nullptr};
    EXPECT_EQ(kit::refused_field([&] { Plan(maxima, device_order()); }), "args.allocator");
}

}  // namespace
}  // namespace smla::test
