// Rows of the state cache, and tokens that write nothing.
#include "formats/test_cache.h"
#include "ops/compress/compress.h"
#include "ops/ops.h"

#include <gtest/gtest.h>

#include <cmath>

namespace smla::testing {
namespace {

CacheShape state_shape(smla_format format, int32_t width) {
    CacheShape shape = shape_of(format, 3, 3);
    shape.width = width;
    shape.page_rows = 5;  // offsets 3 and 4 are holes
    return shape;
}

TEST(SaveState, RowsAndHoles) {
    TestCache state(state_shape(SMLA_STATE_F32, 4));
    // kv strided: every second row of a wider tensor
    const std::vector<float> kv{1, 2, 0, 0,  3, 4, 0,  0,  5, 6, 0,  0,  7, 8,
                                0, 0, 9, 10, 0, 0, 11, 12, 0, 0, 13, 14, 0, 0};
    const std::vector<float> score{.5f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
    const std::vector<float> ape{100, 200, 300, 400, 500, 600};
    const std::vector<int64_t> positions{4, 5, 6, 7, 8, -1, 9};
    const std::vector<int32_t> slots{7, 3,  -1,
                                     0, 13, 1};  // 3: past its page; 13: past the cache; token 6 is padding
    smla_save_state_args args{};
    args.kv = make_tensor(kv.data(), SMLA_F32, {7, 2});
    args.kv.stride_elems[0] = 4;
    args.score = make_tensor(score.data(), SMLA_F32, {7, 2});
    args.ape = make_tensor(ape.data(), SMLA_F32, {3, 2});
    args.positions = make_tensor(positions.data(), SMLA_I64, {7});
    args.slots = make_tensor(slots.data(), SMLA_I32, {6});
    args.state = state.cache;
    SaveStateOp::check(args);
    SaveStateOp::reference(args, 0, SaveStateOp::tasks(args));
    std::vector<float> row(4);
    state.view().decode(7, row.data());
    EXPECT_EQ(row, (std::vector<float>{1, 2, 300.5f, 401}));  // position 4: ape row 1
    state.view().decode(0, row.data());
    EXPECT_EQ(row, (std::vector<float>{7, 8, 306, 407}));
    state.expect_untouched_except({7, 0});
}

TEST(SaveState, InputsOfEveryType) {
    // values that bf16 and f16 hold exactly
    const std::vector<uint16_t> bf16{f32_to_bf16(1.5f), f32_to_bf16(-3.f)},
        f16{f32_to_f16(0.25f), f32_to_f16(96.f)};
    const std::vector<double> ape{1e-9, 2};
    const int32_t position = 0, slot = 1;
    TestCache state(state_shape(SMLA_STATE_F64, 4));
    smla_save_state_args args{};
    args.kv = make_tensor(bf16.data(), SMLA_BF16, {1, 2});
    args.score = make_tensor(f16.data(), SMLA_F16, {1, 2});
    args.ape = make_tensor(ape.data(), SMLA_F64, {1, 2});
    args.positions = make_tensor(&position, SMLA_I32, {1});
    args.slots = make_tensor(&slot, SMLA_I32, {1});
    args.state = state.cache;
    SaveStateOp::check(args);
    SaveStateOp::reference(args, 0, 1);
    std::vector<double> row(4);
    state.view().decode(1, row.data());
    EXPECT_EQ(row, (std::vector<double>{1.5, -3, 0.25 + 1e-9, 98}));  // summed in f64
}

// One window by hand: ratio 2, D 2, no rope; logits ln 1 and ln 3 weigh 1/4 and 3/4.
TEST(Compress, ByHand) {
    TestCache state(state_shape(SMLA_STATE_F64, 4)), cache(state_shape(SMLA_ROW_F64, 2));
    const double a[] = {4, 8, 0, 0}, b[] = {8, 0, std::log(3.), std::log(3.)};
    state.view().encode(5, a);
    state.view().encode(6, b);
    const int32_t table[] = {1};
    const int64_t positions[] = {0, 1, 1, 1, -1, 3}, slots[] = {0, 2, 13, 3, 6, 1};
    const int32_t requests[] = {0, 0, 0, 0, 0, 7};
    const double norm[] = {2, 3}, frequency = 0;
    std::vector<double> entries(12, -7);
    smla_compress_args args{};
    args.ratio = 2;
    args.eps = 1e-12;
    args.state = state.cache;
    args.state_table = make_tensor(table, SMLA_I32, {1, 1});
    args.request_of_token = make_tensor(requests, SMLA_I32, {6});
    args.positions = make_tensor(positions, SMLA_I64, {6});
    args.slots = make_tensor(slots, SMLA_I64, {6});
    args.norm_weight = make_tensor(norm, SMLA_F64, {2});
    args.frequencies = make_tensor(&frequency, SMLA_F64, {0});
    args.cache = cache.cache;
    args.entries = make_tensor(entries.data(), SMLA_F64, {6, 2});
    CompressOp::check(args);
    CompressOp::reference(args, 0, CompressOp::tasks(args));
    // pooled (7, 2), mean square 26.5
    const double rms = std::sqrt(26.5);
    EXPECT_NEAR(entries[2], 2 * 7 / rms, 1e-12);
    EXPECT_NEAR(entries[3], 3 * 2 / rms, 1e-12);
    // position 0 closes nothing; slots 13 and 3 are holes; position -1 is none. Request 7 has no rows: all
    // masked, 0.
    for (const size_t i : {0, 1, 4, 5, 6, 7, 8, 9}) EXPECT_EQ(entries[i], -7);
    EXPECT_EQ(entries[10], 0);
    EXPECT_EQ(entries[11], 0);
    cache.expect_untouched_except({2, 1});
}

}  // namespace
}  // namespace smla::testing
