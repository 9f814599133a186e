// Numbers worked out by hand for the shapes of DeepSeek-V3.2 and V4.
#include "batch.h"
#include "plan/pages.h"

#include <gtest/gtest.h>

namespace smla::test {
namespace {

PlanMaxima v4_maxima(int32_t ratio, int32_t max_seq_len) {
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = SMLA_GROUP_WINDOW | SMLA_GROUP_COMPRESSED | SMLA_GROUP_STATE;
    maxima.max_tokens = 16;
    maxima.max_requests = 4;
    maxima.max_seq_len = max_seq_len;
    maxima.window = 128;
    maxima.ratio = ratio;
    maxima.list_entries = ratio == 128;
    return maxima;
}

// Pages of V4: 64 window tokens, 256 / ratio entries; compressor state in pages of 4 or 8.
void v4_tables(Batch& batch, int32_t ratio, int32_t max_seq_len) {
    set_table(batch, kWindow, (max_seq_len + 63) / 64, 64);
    set_table(batch, kCompressed, (max_seq_len + 255) / 256, 256 / ratio);
    set_table(batch, kState, (max_seq_len + 3) / 4, ratio == 4 ? 4 : 8);
}

std::vector<int64_t> row(const Tensor& field, int64_t t) { return values_of(slice(field, 0, t, t + 1)); }

TEST(PlanWorked, WindowNearTheStart) {
    Plan plan(v4_maxima(4, 512));
    Batch batch;
    add_request(batch, 1, 5);
    v4_tables(batch, 4, 512);
    plan.build(batch.view());
    EXPECT_EQ(values_of(plan.fields().position), std::vector<int64_t>{4});
    EXPECT_EQ(values_of(plan.fields().window_len), std::vector<int64_t>{5});
    const std::vector<int64_t> rows = row(plan.fields().window_rows, 0);
    for (int64_t j = 0; j < 128; ++j) EXPECT_EQ(rows[size_t(j)], j < 5 ? j : -1);
    EXPECT_EQ(values_of(plan.fields().visible_entries), std::vector<int64_t>{1});
}

TEST(PlanWorked, WindowOfALongRequest) {
    Plan plan(v4_maxima(4, 512));
    Batch batch;
    add_request(batch, 3, 300);
    v4_tables(batch, 4, 512);
    plan.build(batch.view());
    EXPECT_EQ(values_of(plan.fields().position), (std::vector<int64_t>{297, 298, 299}));
    EXPECT_EQ(values_of(plan.fields().window_len)[1], 128);
    const std::vector<int64_t> rows = row(plan.fields().window_rows, 1);
    for (int64_t j = 0; j < 128; ++j) EXPECT_EQ(rows[size_t(j)], 171 + j);
}

TEST(PlanWorked, EntriesAppearWithTheTokenThatClosesThem) {
    Plan plan(v4_maxima(4, 2048));
    Batch batch;
    add_request(batch, 5, 5);
    v4_tables(batch, 4, 2048);
    plan.build(batch.view());
    EXPECT_EQ(values_of(plan.fields().visible_entries), (std::vector<int64_t>{0, 0, 0, 1, 1}));
    EXPECT_EQ(values_of(plan.fields().compressed_slot), (std::vector<int64_t>{-1, -1, -1, 0, -1}));
}

TEST(PlanWorked, SlotsOfEntries) {
    // position 1027 closes entry 256: table column 4, offset 0
    Plan plan4(v4_maxima(4, 2048));
    Batch batch4;
    add_request(batch4, 1, 1028);
    v4_tables(batch4, 4, 2048);
    batch4.groups[kCompressed].table[4] = 33;
    plan4.build(batch4.view());
    EXPECT_EQ(values_of(plan4.fields().compressed_slot), std::vector<int64_t>{33 * 64});
    // position 383 closes entry 2: column 1, offset 0 of a page of two
    Plan plan128(v4_maxima(128, 2048));
    Batch batch128;
    add_request(batch128, 1, 384);
    v4_tables(batch128, 128, 2048);
    batch128.groups[kCompressed].table[0] = 9;
    batch128.groups[kCompressed].table[1] = 5;
    plan128.build(batch128.view());
    EXPECT_EQ(values_of(plan128.fields().compressed_slot), std::vector<int64_t>{10});
    EXPECT_EQ(values_of(plan128.fields().entry_len), std::vector<int64_t>{3});
    const std::vector<int64_t> rows = row(plan128.fields().entry_rows, 0);
    EXPECT_EQ((std::vector<int64_t>{rows[0], rows[1], rows[2], rows[3]}),
              (std::vector<int64_t>{18, 19, 10, -1}));
}

TEST(PlanWorked, ColumnsOfEntryRows) {
    const auto columns = [](int32_t max_seq_len) { return entry_columns(v4_maxima(128, max_seq_len)); };
    EXPECT_EQ(columns(4096), 128);
    EXPECT_EQ(columns(131072), 1024);
    EXPECT_EQ(columns(163840), 1280);
    EXPECT_EQ(columns(1048576), 8192);
}

TEST(PlanWorked, PaddingBelongsToNoRequest) {
    Plan plan(v4_maxima(4, 512));
    Batch batch;
    add_request(batch, 1, 9);
    add_request(batch, 1, 5);
    v4_tables(batch, 4, 512);
    batch.tokens = 4;
    plan.build(batch.view());
    EXPECT_EQ(values_of(plan.fields().request_of_token), (std::vector<int64_t>{0, 1, 0, 0}));
    EXPECT_EQ(values_of(plan.fields().is_valid), (std::vector<int64_t>{1, 1, 0, 0}));
    EXPECT_EQ(values_of(plan.fields().window_len), (std::vector<int64_t>{9, 5, 0, 0}));
    EXPECT_EQ(values_of(plan.fields().batch_split), (std::vector<int64_t>{2, 0, 2, 0}));
}

TEST(PlanWorked, SlotsFromTables) {
    // two requests of 6 and 3 tokens, 2 new tokens each, pages of 4, one padding token
    PlanMaxima maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = SMLA_GROUP_PRIMARY;
    maxima.max_tokens = 5;
    maxima.max_requests = 2;
    maxima.max_seq_len = 8;
    Plan plan(maxima);
    Batch batch;
    add_request(batch, 2, 6);
    add_request(batch, 2, 3);
    batch.groups[kPrimary] = {.columns = 2, .table = {7, 2, 5, -1}, .page_tokens = 4};
    batch.tokens = 5;
    plan.build(batch.view());
    EXPECT_EQ(values_of(plan.fields().primary_slot), (std::vector<int64_t>{8, 9, 21, 22, -1}));
}

}  // namespace
}  // namespace smla::test
