// The plan through the C ABI.
#include "batch.h"

#include <smla/smla.h>

#include <gtest/gtest.h>

#include <cstring>

namespace smla::test {
namespace {

smla_plan_args dsa_args() {
    smla_plan_args args{};
    args.struct_size = sizeof args;
    args.groups = SMLA_GROUP_PRIMARY | SMLA_GROUP_INDEX;
    args.max_tokens = 8;
    args.max_requests = 4;
    args.max_seq_len = 256;
    args.topk = 2048;
    args.heads = 16;
    args.workers = 132;
    return args;
}

TEST(PlanApi, CreateBuildRead) {
    const smla_plan_args args = dsa_args();
    smla_plan* plan = nullptr;
    ASSERT_EQ(smla_plan_create(&args, &plan), SMLA_OK) << smla_last_error();
    Batch batch;
    add_request(batch, 1, 70);
    add_request(batch, 3, 9);
    set_table(batch, kPrimary, 4, 64);
    set_table(batch, kIndex, 4, 64);
    const smla_plan_batch view = batch.view();
    ASSERT_EQ(smla_plan_build(plan, &view), SMLA_OK) << smla_last_error();

    const char* const* names = nullptr;
    int32_t count = 0;
    ASSERT_EQ(smla_plan_fields(plan, &names, &count), SMLA_OK);
    const auto expected = expected_fields(args, batch);
    EXPECT_EQ(size_t(count), expected.size() + 1);  // and the schedule
    for (int32_t i = 0; i < count; ++i) {
        smla_tensor field{};
        ASSERT_EQ(smla_plan_field(plan, names[i], &field), SMLA_OK);
        if (std::strcmp(names[i], "schedule") == 0)
            EXPECT_EQ(values_of(field), (std::vector<int64_t>{16, 128}));
        else EXPECT_EQ(values_of(field), expected.at(names[i]).values) << names[i];
    }
    smla_plan_destroy(plan);
    smla_plan_destroy(nullptr);
}

TEST(PlanApi, Errors) {
    smla_plan_args args = dsa_args();
    smla_plan* plan = nullptr;
    EXPECT_EQ(smla_plan_create(&args, nullptr), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(smla_plan_create(nullptr, &plan), SMLA_INVALID_ARGUMENT);
    args.groups = 99;
    EXPECT_EQ(smla_plan_create(&args, &plan), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(plan, nullptr);
    smla_error error{};
    smla_last_error_info(&error);
    EXPECT_STREQ(error.field, "args.groups");

    args = dsa_args();
    ASSERT_EQ(smla_plan_create(&args, &plan), SMLA_OK);
    EXPECT_EQ(smla_plan_build(plan, nullptr), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(smla_plan_build(nullptr, nullptr), SMLA_INVALID_ARGUMENT);
    smla_tensor field{};
    EXPECT_EQ(smla_plan_field(plan, "window_rows", &field), SMLA_INVALID_ARGUMENT);
    smla_last_error_info(&error);
    EXPECT_STREQ(error.field, "name");
    EXPECT_NE(std::strstr(error.wanted, "primary_slot"), nullptr);
    EXPECT_EQ(smla_plan_field(plan, nullptr, &field), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(smla_plan_field(plan, "position", nullptr), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(smla_plan_fields(plan, nullptr, nullptr), SMLA_INVALID_ARGUMENT);
    // before the first build there is no token
    ASSERT_EQ(smla_plan_field(plan, "position", &field), SMLA_OK);
    EXPECT_EQ(field.shape[0], 0);
    smla_plan_destroy(plan);
}

}  // namespace
}  // namespace smla::test
