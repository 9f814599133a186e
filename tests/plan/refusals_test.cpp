// Every refusal names its field, and a refused batch changes nothing.
#include "batch.h"
#include "kit/refused.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace smla::test {
namespace {

PlanMaxima good_maxima() {
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = SMLA_GROUP_WINDOW | SMLA_GROUP_COMPRESSED | SMLA_GROUP_STATE | SMLA_GROUP_INDEX;
    maxima.max_tokens = 8;
    maxima.max_requests = 3;
    maxima.max_seq_len = 100;
    maxima.window = 16;
    maxima.ratio = 4;
    return maxima;
}

Batch good_batch() {
    Batch batch;
    add_request(batch, 2, 90);
    add_request(batch, 3, 30);
    set_table(batch, kWindow, 25, 4);
    set_table(batch, kCompressed, 7, 4);
    set_table(batch, kIndex, 7, 4);
    set_table(batch, kState, 25, 4);
    batch.groups[kState].slots = {5, 6, 7, 8, 9};
    return batch;
}

std::string refused_plan(const std::function<void(PlanMaxima&)>& spoil) {
    PlanMaxima maxima = good_maxima();
    spoil(maxima);
    return kit::refused_field([&] { Plan plan(maxima); }, SMLA_INVALID_ARGUMENT);
}

TEST(PlanRefusals, Maxima) {
    using M = PlanMaxima;
    EXPECT_EQ(refused_plan([](M&) {}), "");
    EXPECT_EQ(refused_plan([](M& m) { m.groups = 0; }), "args.groups");
    EXPECT_EQ(refused_plan([](M& m) { m.groups = 64; }), "args.groups");
    EXPECT_EQ(refused_plan([](M& m) { m.groups = -1; }), "args.groups");
    EXPECT_EQ(refused_plan([](M& m) { m.max_tokens = 0; }), "args.max_tokens");
    EXPECT_EQ(refused_plan([](M& m) { m.max_requests = 0; }), "args.max_requests");
    EXPECT_EQ(refused_plan([](M& m) { m.max_seq_len = -4; }), "args.max_seq_len");
    EXPECT_EQ(refused_plan([](M& m) { m.speculative_tokens = -1; }), "args.speculative_tokens");
    EXPECT_EQ(refused_plan([](M& m) { m.uniform_decodes = 2; }), "args.uniform_decodes");
    EXPECT_EQ(refused_plan([](M& m) { m.list_entries = -1; }), "args.list_entries");
    EXPECT_EQ(refused_plan([](M& m) { m.batch_invariant = 7; }), "args.batch_invariant");
    EXPECT_EQ(refused_plan([](M& m) { m.topk = -1; }), "args.topk");
    EXPECT_EQ(refused_plan([](M& m) { m.heads = -1; }), "args.heads");
    EXPECT_EQ(refused_plan([](M& m) { m.workers = -1; }), "args.workers");
    EXPECT_EQ(refused_plan([](M& m) { m.window = 0; }), "args.window");
    EXPECT_EQ(refused_plan([](M& m) { m.groups = SMLA_GROUP_COMPRESSED; }), "args.window");
    EXPECT_EQ(refused_plan([](M& m) { m.ratio = 0; }), "args.ratio");
    EXPECT_EQ(refused_plan([](M& m) { m.groups = SMLA_GROUP_WINDOW; }), "args.ratio");
    EXPECT_EQ(refused_plan([](M& m) { m.groups = SMLA_GROUP_WINDOW, m.ratio = 0, m.list_entries = 1; }),
              "args.list_entries");
    EXPECT_EQ(refused_plan(
                  [](M& m) { m.allocator.alloc = [](void*, size_t, size_t) -> void* { return nullptr; }; }),
              "args.allocator");
    const int32_t most = std::numeric_limits<int32_t>::max();
    EXPECT_EQ(refused_plan([&](M& m) { m.max_tokens = m.window = most; }), "args.window");
    EXPECT_EQ(refused_plan([&](M& m) { m.max_tokens = m.max_seq_len = most, m.ratio = m.list_entries = 1; }),
              "args.max_seq_len");
}

// Builds a spoilt batch after a good one: the field refused, if the plan's memory is as the good one left it.
std::string refused_batch(const std::function<void(Batch&)>& spoil,
                          const std::function<void(PlanBatch&)>& spoil_view) {
    Plan plan(good_maxima());
    plan.build(good_batch().view());
    std::vector<std::vector<int64_t>> before;
    for (const char* name : plan.names()) before.push_back(all_values_of(plan, name));
    Batch batch = good_batch();
    spoil(batch);
    PlanBatch view = batch.view();
    spoil_view(view);
    const std::string field = kit::refused_field([&] { plan.build(view); }, SMLA_INVALID_ARGUMENT);
    if (field.empty()) return field;
    size_t i = 0;
    for (const char* name : plan.names()) EXPECT_EQ(all_values_of(plan, name), before[i++]) << name;
    EXPECT_EQ(plan.fields().position.shape[0], 5);
    return field;
}
std::string refused(const std::function<void(Batch&)>& spoil) {
    return refused_batch(spoil, [](PlanBatch&) {});
}
std::string refused_view(const std::function<void(PlanBatch&)>& spoil) {
    return refused_batch([](Batch&) {}, spoil);
}

TEST(PlanRefusals, Lengths) {
    EXPECT_EQ(refused([](Batch&) {}), "");
    EXPECT_EQ(refused([](Batch& b) { b.starts[0] = 1; }), "batch.query_start_loc[0]");
    EXPECT_EQ(refused([](Batch& b) { b.starts = {0, 4, 3}; }), "batch.query_start_loc[2]");
    EXPECT_EQ(refused([](Batch& b) { b.starts = {0, 95, 5}; }), "batch.query_start_loc[2]");  // seq_lens 90
    EXPECT_EQ(refused([](Batch& b) { b.starts = {0, -1, 3}; }), "batch.query_start_loc[1]");
    EXPECT_EQ(refused([](Batch& b) { b.starts[2] = -1; }), "batch.query_start_loc[2]");
    EXPECT_EQ(refused([](Batch& b) { b.starts[2] = 9; }), "batch.query_start_loc[2]");
    EXPECT_EQ(refused([](Batch& b) { b.lengths[1] = -1; }), "batch.seq_lens[1]");
    EXPECT_EQ(refused([](Batch& b) { b.lengths[1] = 2; }), "batch.seq_lens[1]");
    EXPECT_EQ(refused([](Batch& b) { b.lengths[0] = 101; }), "batch.seq_lens[0]");
    EXPECT_EQ(refused([](Batch& b) { b.tokens = 4; }), "batch.tokens");
    EXPECT_EQ(refused([](Batch& b) { b.tokens = 9; }), "batch.tokens");
    EXPECT_EQ(refused([](Batch& b) { b.tokens = -1; }), "batch.tokens");
    EXPECT_EQ(refused([](Batch& b) { b.rope = {1, 2, 3, 4}; }), "batch.rope_positions.shape[0]");
    const int64_t past = int64_t(1) << 31;
    EXPECT_EQ(refused([&](Batch& b) { b.rope = {past - 1, -past, 0, 0, 0, past}; }), "");
    EXPECT_EQ(refused([&](Batch& b) { b.rope = {0, 1, 2, past, 4}; }), "batch.rope_positions[3]");
    EXPECT_EQ(refused([](Batch& b) {
                  for (int i = 0; i < 2; ++i) add_request(b, 0, 1);
              }),
              "batch.seq_lens.shape[0]");
}

TEST(PlanRefusals, Tensors) {
    using B = PlanBatch;
    EXPECT_EQ(refused_view([](B& b) { b.query_start_loc.dtype = SMLA_I64; }), "batch.query_start_loc.dtype");
    EXPECT_EQ(refused_view([](B& b) { b.query_start_loc.shape[0] = 2; }), "batch.query_start_loc.shape");
    EXPECT_EQ(refused_view([](B& b) { b.query_start_loc = {}; }), "batch.query_start_loc");
    EXPECT_EQ(refused_view([](B& b) { b.query_start_loc.stride_elems[0] = 2; }),
              "batch.query_start_loc.stride_elems[0]");
    EXPECT_EQ(refused_view([](B& b) { b.seq_lens.dtype = SMLA_F32; }), "batch.seq_lens.dtype");
    EXPECT_EQ(refused_view([](B& b) { b.seq_lens.data = nullptr; }), "batch.seq_lens.data");
    EXPECT_EQ(refused_view([](B& b) { b.seq_lens.stride_elems[0] = 0; }), "batch.seq_lens.stride_elems[0]");
    EXPECT_EQ(refused_view([](B& b) { b.window.block_table.shape[0] = 1; }),
              "batch.window.block_table.shape");
    EXPECT_EQ(refused_view([](B& b) { b.window.block_table.stride_elems[1] = 2; }),
              "batch.window.block_table.stride_elems[1]");
    EXPECT_EQ(refused_view([](B& b) { b.state.slots.dtype = SMLA_U8; }), "batch.state.slots.dtype");
}

TEST(PlanRefusals, Groups) {
    EXPECT_EQ(refused([](Batch& b) { set_table(b, kPrimary, 25, 4); }), "batch.primary");
    EXPECT_EQ(refused([](Batch& b) {
                  b.groups[kIndexState].slots = {1, 2, 3, 4, 5}, b.groups[kIndexState].page_tokens = 4;
              }),
              "batch.index_state");
    EXPECT_EQ(refused([](Batch& b) { b.groups[kState] = {}; }), "batch.state.page_tokens");
    EXPECT_EQ(refused([](Batch& b) { b.groups[kWindow].page_tokens = -1; }), "batch.window.page_tokens");
    EXPECT_EQ(refused([](Batch& b) { b.groups[kWindow].page_rows = 3; }), "batch.window.page_rows");
    EXPECT_EQ(refused([](Batch& b) { b.groups[kState].slots = {1, 2, 3, 4}; }), "batch.state.slots.shape[0]");
    EXPECT_EQ(refused([](Batch& b) {
                  b.groups[kCompressed].slots = {1, 2, 3, 4, 5};
              }),
              "batch.compressed.slots");
    EXPECT_EQ(refused([](Batch& b) { b.groups[kIndex].slots = {1, 2, 3, 4, 5}; }), "batch.index.slots");
    // 90 tokens need 23 pages of 4, and 22 entries 6
    EXPECT_EQ(refused([](Batch& b) { set_table(b, kWindow, 23, 4); }), "");
    EXPECT_EQ(refused([](Batch& b) { set_table(b, kWindow, 22, 4); }), "batch.window.block_table.shape[1]");
    EXPECT_EQ(refused([](Batch& b) { set_table(b, kCompressed, 6, 4); }), "");
    EXPECT_EQ(refused([](Batch& b) { set_table(b, kCompressed, 5, 4); }),
              "batch.compressed.block_table.shape[1]");
    EXPECT_EQ(refused([](Batch& b) { set_table(b, kIndex, 5, 4); }), "batch.index.block_table.shape[1]");
    EXPECT_EQ(refused([](Batch& b) { b.groups[kWindow].columns = -1; }), "batch.window.block_table");
    EXPECT_EQ(refused([](Batch& b) { b.groups[kState].columns = -1; }), "");
    EXPECT_EQ(refused([](Batch& b) { b.groups[kState].columns = -1, b.groups[kState].slots.clear(); }),
              "batch.state.block_table");
}

TEST(PlanRefusals, GatheredKeysFitInt32) {
    PlanMaxima maxima{};
    maxima.groups = SMLA_GROUP_INDEX;
    maxima.max_tokens = 4;
    maxima.max_requests = 3;
    maxima.max_seq_len = std::numeric_limits<int32_t>::max();
    Plan plan(maxima);
    Batch batch;
    add_request(batch, 2, 1 << 30);
    add_request(batch, 2, (1 << 30) - 1);
    Group& index = batch.groups[kIndex];
    index.columns = -1;
    index.page_tokens = 64;
    index.slots = {1, 2, 3, 4};
    plan.build(batch.view());
    EXPECT_EQ(values_of(plan.fields().ragged_end)[3], std::numeric_limits<int32_t>::max());
    batch.lengths[1] += 1;
    try {
        plan.build(batch.view());
        FAIL() << "2^31 keys accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.field, "batch.seq_lens");
    }
}

}  // namespace
}  // namespace smla::test
