// Plans: typed views, moves, memory.
#include "kit/small_problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace {

struct Counting {
    int live = 0, made = 0;

    smla_allocator allocator() {
        return {[](void* user, size_t bytes, size_t alignment) {
                    auto& self = *static_cast<Counting*>(user);
                    ++self.live, ++self.made;
                    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
                },
                [](void* user, void* memory) {
                    if (memory) --static_cast<Counting*>(user)->live;
                    std::free(memory);
                },
                this};
    }
};

// One decode at position 7, a prefill of 3 tokens.
struct Batch {
    std::vector<int32_t> starts{0, 1, 4}, lengths{8, 3};
    std::vector<int32_t> window{5, 6, 2, -1}, entries{1, 0};

    smla_plan_batch args() {
        smla_plan_batch out{};
        out.query_start_loc = smla::tensor(starts);
        out.seq_lens = smla::tensor(lengths);
        out.window.block_table = smla::tensor(window, {2, 2});
        out.window.page_tokens = 4;
        out.compressed.block_table = smla::tensor(entries, {2, 1});
        out.compressed.page_tokens = 16;
        return out;
    }
};

template <class T>
std::vector<T> values(const smla::View<const T>& view) {
    return {view.begin(), view.end()};
}

TEST(HppPlan, typed_views_of_a_step) {
    smla::Plan plan(plan_maxima());
    Batch batch;
    plan.build(batch.args());
    EXPECT_EQ(values(plan.request_of_token()), (std::vector<int32_t>{0, 1, 1, 1}));
    EXPECT_EQ(values(plan.position()), (std::vector<int32_t>{7, 0, 1, 2}));
    EXPECT_EQ(values(plan.rope_position()), values(plan.position()));
    EXPECT_EQ(values(plan.visible_tokens()), (std::vector<int32_t>{8, 1, 2, 3}));
    EXPECT_EQ(values(plan.is_valid()), (std::vector<uint8_t>{1, 1, 1, 1}));
    EXPECT_EQ(values(plan.window_slot()), (std::vector<int64_t>{6 * 4 + 3, 8, 9, 10}));
    ASSERT_EQ(plan.window_rows().columns(), 3);
    const auto newest = plan.window_rows().row(0);
    EXPECT_EQ(std::vector<int32_t>(newest.begin(), newest.end()), (std::vector<int32_t>{25, 26, 27}));
    EXPECT_EQ(values(plan.window_len()), (std::vector<int32_t>{3, 1, 2, 3}));
    EXPECT_EQ(values(plan.visible_entries()), (std::vector<int32_t>{2, 0, 0, 0}));
    EXPECT_EQ(values(plan.compressed_slot()), (std::vector<int64_t>{16 + 1, -1, -1, -1}));
    const smla::Plan::BatchSplit split = plan.batch_split();
    EXPECT_EQ(split.decode_requests, 1);
    EXPECT_EQ(split.prefill_requests, 1);
    EXPECT_EQ(split.decode_tokens, 1);
    EXPECT_EQ(split.prefill_tokens, 3);
    EXPECT_GE(plan.schedule().splits, 1);
    EXPECT_EQ(plan.schedule().rows_per_split % 64, 0);
}

// Four different numbers, so that none can stand for another: two decodes of two tokens, a prefill of three.
TEST(HppPlan, batch_split_in_order) {
    smla_plan_args args{};
    args.groups = SMLA_GROUP_PRIMARY;
    args.max_tokens = 16;
    args.max_requests = 3;
    args.max_seq_len = 16;
    args.speculative_tokens = 1;
    smla::Plan plan(args);
    std::vector<int32_t> starts{0, 2, 4, 7}, lengths{9, 8, 3}, table{0, 1, 2};
    smla_plan_batch batch{};
    batch.query_start_loc = smla::tensor(starts);
    batch.seq_lens = smla::tensor(lengths);
    batch.primary.block_table = smla::tensor(table, {3, 1});
    batch.primary.page_tokens = 16;
    plan.build(batch);
    const smla::Plan::BatchSplit split = plan.batch_split();
    EXPECT_EQ(split.decode_requests, 2);
    EXPECT_EQ(split.prefill_requests, 1);
    EXPECT_EQ(split.decode_tokens, 4);
    EXPECT_EQ(split.prefill_tokens, 3);
}

TEST(HppPlan, every_field_is_listed_and_readable_by_its_type) {
    smla_plan_args args = plan_maxima();
    args.groups = SMLA_GROUP_PRIMARY | SMLA_GROUP_INDEX;
    args.window = args.ratio = 0;
    const smla::Plan primary(args);
    args = plan_maxima();
    args.groups |= SMLA_GROUP_INDEX | SMLA_GROUP_STATE | SMLA_GROUP_INDEX_STATE;
    args.list_entries = 1;
    const smla::Plan hybrid(args);
    const auto count = [](const smla::Plan& plan, const char* name, auto&& read) {
        const auto names = plan.fields();
        const bool listed = std::find(names.begin(), names.end(), name) != names.end();
        if (listed) EXPECT_NO_THROW(read()) << name;
        else EXPECT_THROW(read(), smla::Error) << name;
        return size_t(listed);
    };
    for (const smla::Plan* plan : {&primary, &hybrid}) {
        size_t read = 0;
#define SMLA_TEST_FIELD(name) read += count(*plan, #name, [&] { plan->name(); });
        SMLA_TEST_FIELD(request_of_token)
        SMLA_TEST_FIELD(position)
        SMLA_TEST_FIELD(rope_position)
        SMLA_TEST_FIELD(is_valid)
        SMLA_TEST_FIELD(visible_tokens)
        SMLA_TEST_FIELD(batch_split)
        SMLA_TEST_FIELD(primary_slot)
        SMLA_TEST_FIELD(window_slot)
        SMLA_TEST_FIELD(state_slot)
        SMLA_TEST_FIELD(index_state_slot)
        SMLA_TEST_FIELD(window_rows)
        SMLA_TEST_FIELD(window_len)
        SMLA_TEST_FIELD(visible_entries)
        SMLA_TEST_FIELD(compressed_slot)
        SMLA_TEST_FIELD(entry_rows)
        SMLA_TEST_FIELD(entry_len)
        SMLA_TEST_FIELD(index_slot)
        SMLA_TEST_FIELD(score_start)
        SMLA_TEST_FIELD(score_end)
        SMLA_TEST_FIELD(ragged_cu)
        SMLA_TEST_FIELD(ragged_start)
        SMLA_TEST_FIELD(ragged_end)
        SMLA_TEST_FIELD(schedule)
#undef SMLA_TEST_FIELD
        EXPECT_EQ(read, plan->fields().size());  // none without an accessor
    }
}

TEST(HppPlan, refusals_name_the_field) {
    smla::Plan plan(plan_maxima());
    Batch batch;
    plan.build(batch.args());
    batch.lengths[1] = 2;  // fewer than its query tokens
    try {
        plan.build(batch.args());
        FAIL() << "accepted";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.code, SMLA_INVALID_ARGUMENT);
        EXPECT_NE(error.field.find("seq_lens"), std::string::npos) << error.what();
    }
    EXPECT_EQ(plan.position()[0], 7);  // as it was
    EXPECT_THROW(plan.field<int64_t>("position"), smla::Error);
    EXPECT_THROW(plan.tensor("no_such_field"), smla::Error);
}

TEST(HppPlan, keeps_its_context) {
    const smla::Context context(smla_context_args{.threads = 1});
    const auto before = context.shared().use_count();
    smla::Plan plan(context, plan_maxima());
    EXPECT_EQ(context.shared().use_count(), before + 1);
    Batch batch;
    plan.build(batch.args());
    EXPECT_EQ(plan.position()[0], 7);
    plan = smla::Plan(plan_maxima());
    EXPECT_EQ(context.shared().use_count(), before);
}

TEST(HppPlan, a_context_that_was_moved_from_is_no_host) {
    smla::Context first(smla_context_args{.threads = 1});
    const smla::Context second = std::move(first);
    try {
        smla::Plan(first, plan_maxima());  // NOLINT: moved from
        FAIL() << "a plan on the host";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.field, "context");
    }
    EXPECT_NO_THROW(smla::Plan(second, plan_maxima()));
}

TEST(HppPlan, moves_and_frees_what_it_took) {
    Counting counting;
    {
        smla_plan_args args = plan_maxima();
        args.allocator = counting.allocator();
        smla::Plan first(args);
        EXPECT_GT(counting.live, 0);
        const int made = counting.made;
        Batch batch;
        smla::Plan second = std::move(first);
        second.build(batch.args());
        EXPECT_EQ(counting.made, made);                        // a build allocates nothing
        EXPECT_THROW(first.build(batch.args()), smla::Error);  // NOLINT: moved from
        EXPECT_EQ(second.position()[0], 7);
        const void* before = second.tensor("position").data;
        second.build(batch.args());
        EXPECT_EQ(second.tensor("position").data, before);
        smla::Plan third(args);
        third = std::move(second);
        EXPECT_EQ(third.position()[0], 7);
        EXPECT_EQ(counting.live * 2, counting.made);  // the third's own memory went back when it was replaced
    }
    EXPECT_GT(counting.made, 0);
    EXPECT_EQ(counting.live, 0);
}

}  // namespace
