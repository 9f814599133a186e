// The field tables hold what they promise: every field of a table is in a call of the contract's tests under
// its name and with its role, and strides left out mean dense for every tensor of every call.
#include "calls.h"

#include "ops/ops.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace contract {
namespace {

using smla::FieldKind;
using smla::StageField;

TEST(Fields, EveryFieldOfEveryTableIsInACall) {
    std::map<const StageField*, std::set<std::string>> seen;  // stages that share arguments share a table
    for (const NamedMaker& maker : all_calls()) {
        const auto call = make(maker);
        auto& names = seen[smla::fields_of_stage(smla::Stage(call->stage)).data()];
        for (const TensorField& field : call->tensors) names.insert(field.name);
        for (const CacheField& field : call->caches) names.insert(field.name);
    }
    // Absent by definition: the logits between the two stages, and what they bring with them.
    const std::set<std::string> never = {"args.score.logits", "args.select.scores", "args.select.ids",
                                         "args.select.starts", "args.select.ends"};
    for (int stage = 0; stage < SMLA_STAGE_COUNT; ++stage) {
        const auto table = smla::fields_of_stage(smla::Stage(stage));
        for (const StageField& field : table) {
            if (field.kind == FieldKind::scalar) continue;
            const std::string name = field.name.c_str();
            if (stage == SMLA_STAGE_SCORE_SELECT && never.count(name)) continue;
            EXPECT_TRUE(seen[table.data()].count(name))
                << smla::stage_name(smla::Stage(stage)) << " " << name;
        }
    }
}

int64_t bytes_of(const smla_tensor& tensor, int64_t elements) {
    return elements * smla::dtype_bits(tensor.dtype) / 8;
}

// Copies every element between a tensor and memory in row-major order.
template <class Move>
void each_element(const smla_tensor& tensor, Move move) {
    const int last = tensor.ndim - 1;
    const bool pairs = tensor.dtype == SMLA_E2M1;  // two in a byte: whole rows are copied
    const int64_t step = pairs ? tensor.shape[last] : 1;
    int64_t at = 0;
    for (int64_t i = 0; i < smla::element_count(tensor); i += step, at += bytes_of(tensor, step)) {
        int64_t rest = i, offset = 0;
        for (int d = last; d >= 0; --d) {
            offset += rest % tensor.shape[d] * tensor.stride_elems[d];
            rest /= tensor.shape[d];
        }
        move(static_cast<char*>(tensor.data) + bytes_of(tensor, offset), at, bytes_of(tensor, step));
    }
}

TEST(Fields, StridesLeftOutMeanDense) {
    for (const NamedMaker& maker : all_calls()) {
        const auto call = make(maker);
        SCOPED_TRACE(call->name);
        const Context context(first_and_last_engine().front());
        std::vector<std::vector<char>> memory;
        for (TensorField& field : call->tensors) {
            smla_tensor& tensor = *field.tensor;
            auto& dense = memory.emplace_back(size_t(bytes_of(tensor, smla::element_count(tensor))) + 64);
            if (!call->is_output(field))
                each_element(tensor, [&](const char* from, int64_t at, int64_t bytes) {
                    std::memcpy(dense.data() + at, from, size_t(bytes));
                });
            tensor.data = dense.data();
            std::fill(std::begin(tensor.stride_elems), std::end(tensor.stride_elems), 0);
            int64_t stride = 1;
            for (int d = tensor.ndim - 1; d >= 0; stride *= tensor.shape[d--])
                tensor.stride_elems[d] = stride;
        }
        const auto before = memory;
        std::vector<std::vector<char>> results[2];
        for (const bool left_out : {false, true}) {
            for (size_t i = 0; i < memory.size(); ++i)
                std::copy(before[i].begin(), before[i].end(), memory[i].begin());
            if (left_out)
                for (TensorField& field : call->tensors)
                    std::fill(std::begin(field.tensor->stride_elems), std::end(field.tensor->stride_elems),
                              0);
            const Scratch scratch(context, call->workspace(context));
            ASSERT_EQ(call->run(context, scratch.get()), SMLA_OK) << smla_last_error();
            results[left_out] = memory;
        }
        EXPECT_TRUE(results[0] == results[1]);
        // Only stages that write into caches leave all tensors as they were.
        EXPECT_EQ(results[0] == before,
                  call->stage == SMLA_STAGE_WRITE_KV || call->stage == SMLA_STAGE_WRITE_INDEX ||
                      call->stage == SMLA_STAGE_SAVE_STATE || call->stage == SMLA_STAGE_COPY_PAGES);
    }
}

TEST(Fields, AnElementIsRepeatedWhereTheStrideSaysSo) {
    float x[4] = {1, 2, 3, 4}, out[8] = {};
    smla_norm_args args{};
    args.struct_size = sizeof args;
    args.eps = 1e-6;
    args.x = {.data = x, .dtype = SMLA_F32, .ndim = 3, .shape = {2, 1, 4}};
    args.x.stride_elems[0] = SMLA_STRIDE_REPEAT;
    args.x.stride_elems[1] = 4, args.x.stride_elems[2] = 1;
    args.out = {.data = out, .dtype = SMLA_F32, .ndim = 3, .shape = {2, 1, 4}};
    const Context context(first_and_last_engine().front());
    ASSERT_EQ(smla_norm(context, &args, {}, nullptr), SMLA_OK) << smla_last_error();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], out[4 + i]);
    EXPECT_NEAR(out[3], 4 / std::sqrt(7.5), 1e-5);
    args.out.stride_elems[0] = SMLA_STRIDE_REPEAT, args.out.stride_elems[2] = 1;
    EXPECT_EQ(smla_norm(context, &args, {}, nullptr), SMLA_INVALID_ARGUMENT);  // an output is not repeated
}

TEST(Fields, InverseRopeRotatesBackWhateverTheStructHolds) {
    const double frequency = 0.5;
    const int32_t position = 3;
    for (const int32_t inverse : {0, 1}) {
        float x[2] = {0.25f, -2};
        smla_rope_args args{};
        args.struct_size = sizeof args;
        args.x = {.data = x, .dtype = SMLA_F32, .ndim = 3, .shape = {1, 1, 2}};
        args.positions = {
            .data = const_cast<int32_t*>(&position), .dtype = SMLA_I32, .ndim = 1, .shape = {1}};
        args.frequencies = {
            .data = const_cast<double*>(&frequency), .dtype = SMLA_F64, .ndim = 1, .shape = {1}};
        const Context context(first_and_last_engine().front());
        ASSERT_EQ(smla_rope(context, &args, {}, nullptr), SMLA_OK) << smla_last_error();
        args.inverse = inverse;
        ASSERT_EQ(smla_inverse_rope(context, &args, {}, nullptr), SMLA_OK) << smla_last_error();
        EXPECT_NEAR(x[0], 0.25f, 1e-6);
        EXPECT_NEAR(x[1], -2, 1e-6);
    }
}

}  // namespace
}  // namespace contract
