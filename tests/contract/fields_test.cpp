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
    const std::set<std::string> never = {"args.score.logits", "args.select.scores",
                                         "args.select.ids",   "args.select.starts",
                                         "args.select.ends",  "args.select.request_of_token"};
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
        // Only calls that write into caches alone leave all tensors as they were.
        const bool written = std::ranges::any_of(call->tensors, [&](const TensorField& field) {
            return field.field->is_output || call->is_in_place(field);
        });
        EXPECT_EQ(results[0] != before, written);
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

// One row for all tokens, one row for all outputs, and rows of which each begins within the one before.
TEST(Fields, RowsOfAProductMayShareElements) {
    std::vector<float> x(20), w(20), out(8);
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(i) - 3, w[i] = float(2 * i % 7);
    const auto run = [&](const Engine& engine, int64_t tokens, int64_t x_stride, int64_t w_stride,
                         bool transposed) {
        smla_project_args args{};
        args.struct_size = sizeof args;
        args.x = smla_dense(x.data(), SMLA_F32, 3, tokens, 1, 4, 0);
        args.w = smla_dense(w.data(), SMLA_F32, 3, 1, 2, 4, 0);
        args.out = smla_dense(out.data(), SMLA_F32, 3, tokens, 1, 2, 0);
        args.x.stride_elems[0] = x_stride;
        args.w.stride_elems[transposed ? 2 : 1] = w_stride;
        args.w.stride_elems[transposed ? 1 : 2] = 1;
        const Context context(engine);
        const Scratch scratch(context, size_t(1) << 20);
        ASSERT_TRUE(succeeded(smla_project(context, &args, scratch.get(), nullptr)));
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t n = 0; n < 2; ++n) {
                float want = 0;
                for (int64_t k = 0; k < 4; ++k)
                    want += x[size_t(t * x_stride + k)] *
                            w[size_t(transposed ? k * w_stride + n : n * w_stride + k)];
                EXPECT_EQ(out[size_t(2 * t + n)], want)
                    << engine.name << ", " << tokens << " tokens, strides " << x_stride << " and "
                    << w_stride;
            }
    };
    for (const Engine& engine : engines())
        for (const int64_t tokens : {1, 2, 4})
            for (const int64_t stride : {0, 1, 3, 4, 5})
                for (const bool transposed : {false, true}) {
                    run(engine, tokens, stride, 4, transposed);
                    run(engine, tokens, 4, stride, transposed);
                }
}

// Layouts of [6,2,4] whose dimensions two by two are apart: one step along the second and one back along the
// third lead as far as one along the first, or nowhere.
TEST(Fields, OutputsWhoseStepsMeetAlongThreeDimensionsAreRefused) {
    float x[48] = {}, out[200];
    smla_norm_args args{};
    args.struct_size = sizeof args;
    args.eps = 1e-6;
    args.x = smla_dense(x, SMLA_F32, 3, 6, 2, 4, 0);
    args.out = smla_dense(out, SMLA_F32, 3, 6, 2, 4, 0);
    const Context context(first_and_last_engine().front());
    const auto status = [&](int64_t first, int64_t second, int64_t third) {
        args.out.stride_elems[0] = first, args.out.stride_elems[1] = second;
        args.out.stride_elems[2] = third;
        return smla_norm(context, &args, {}, nullptr);
    };
    EXPECT_TRUE(refused(status(9, 11, 1), SMLA_INVALID_ARGUMENT, "args.out.stride_elems"));  // 9 + 2 = 11
    EXPECT_TRUE(refused(status(11, 9, 1), SMLA_INVALID_ARGUMENT, "args.out.stride_elems"));
    EXPECT_TRUE(refused(status(4, 22, 1), SMLA_INVALID_ARGUMENT, "args.out.stride_elems"));  // 20 + 2 = 22
    EXPECT_EQ(status(9, 4, 1), SMLA_OK) << smla_last_error();
    EXPECT_EQ(status(4, 24, 1), SMLA_OK) << smla_last_error();
    EXPECT_EQ(status(10, 5, 1), SMLA_OK) << smla_last_error();
    EXPECT_EQ(status(2, 1, 12), SMLA_OK) << smla_last_error();
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
