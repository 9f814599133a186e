// Outputs of the integer operations have memory of their own: every output in the place of every other
// tensor.
#include "api/tensors.h"
#include "ops/field.h"
#include "support.h"

#include <algorithm>
#include <set>

namespace smla::test {
namespace {

struct Output {
    const char* field;
    Tensor* tensor;
};

// The same elements, dense, ending within the first element of `other`.
Tensor ending_in(const Tensor& tensor, const Tensor& other) {
    Tensor out = tensor;
    std::fill(out.stride_elems, out.stride_elems + SMLA_MAX_NDIM, 0);
    resolve_strides(out);
    out.data = static_cast<char*>(other.data) - span_bytes(out) + dtype_bits(out.dtype) / 8;
    return out;
}

// Calls with each output in turn where another tensor begins, ending in it, or with elements in one place.
template <class Args>
void expect_own_memory(Args& args, std::initializer_list<Output> outputs, smla_status (*call)(Args*)) {
    ASSERT_EQ(refused_field(call(&args)), "");
    for (const Output& output : outputs) {
        const Tensor before = *output.tensor;
        const auto refused = [&](const Tensor& given) {
            *output.tensor = given;
            const std::string field = refused_field(call(&args));
            *output.tensor = before;
            return field;
        };
        int others = 0;
        std::set<std::string> shared;  // what the refusals got: each names another argument
        api::each_tensor(args, [&](Tensor& other) {
            if (&other == output.tensor || !present(other)) return;
            ++others;
            std::string named = output.field;
            for (const Output& each : outputs)  // of two outputs, the first is named
                if (each.tensor == &other && &each < &output) named = each.field;
            Tensor given = before;
            given.data = other.data;
            EXPECT_EQ(refused(given), named + ".data");
            smla_error error{};
            smla_last_error_info(&error);
            shared.insert(error.got);
            EXPECT_EQ(std::string(error.got).rfind("memory that overlaps ", 0), 0u) << error.message;
            EXPECT_NE(error.got, "memory that overlaps " + named);
            EXPECT_EQ(refused(ending_in(before, other)), named + ".data");
        });
        EXPECT_GT(others, 0);
        EXPECT_EQ(int(shared.size()), others) << output.field;
        for (int d = 0; d < before.ndim; ++d) {
            Tensor given = before;
            given.stride_elems[d] = SMLA_STRIDE_REPEAT;
            EXPECT_EQ(refused(given), text(output.field, ".stride_elems[", d, "]"));
        }
    }
    EXPECT_EQ(refused_field(call(&args)), "");
}

// Tensors far enough from each other that one which ends at another's first element meets no third one.
class Apart {
public:
    Tensor ints(std::initializer_list<int64_t> shape, std::initializer_list<int32_t> values = {}) {
        std::vector<int32_t>& memory = memory_.emplace_back(3000, 0);
        std::copy(values.begin(), values.end(), memory.begin() + 1000);
        return make_tensor(memory.data() + 1000, SMLA_I32, shape);
    }
    Tensor bytes(int64_t n) {
        Tensor out = ints({n});
        out.dtype = SMLA_U8;
        return out;
    }

private:
    std::vector<std::vector<int32_t>> memory_;
};

TEST(RowMemory, RequestRows) {
    Apart memory;
    smla_request_rows_args args{};
    args.struct_size = sizeof args;
    args.page_tokens = 4;
    args.positions = memory.ints({2, 3});
    args.request_of_token = memory.ints({2});
    args.block_table = memory.ints({2, 2});
    args.is_valid = memory.bytes(2);
    args.workspace_of_token = memory.ints({2});
    args.workspace_starts = memory.ints({2});
    args.rows = memory.ints({2, 3});
    args.counts = memory.ints({2});
    expect_own_memory<smla_request_rows_args>(args,
                                              {{"args.rows", &args.rows}, {"args.counts", &args.counts}},
                                              [](smla_request_rows_args* a) { return smla_request_rows(a); });
    // What is not read does not matter.
    args.workspace_of_token = {};
    args.workspace_starts = args.rows;
    EXPECT_EQ(refused_field(smla_request_rows(&args)), "");
}

TEST(RowMemory, SplitContext) {
    Apart memory;
    smla_split_context_args args{};
    args.struct_size = sizeof args;
    args.positions = memory.ints({2, 3});
    args.context_lens = memory.ints({2});
    args.context_rows = memory.ints({2, 3});
    args.new_rows = memory.ints({2, 3});
    expect_own_memory<smla_split_context_args>(
        args, {{"args.context_rows", &args.context_rows}, {"args.new_rows", &args.new_rows}},
        [](smla_split_context_args* a) { return smla_split_context(a); });
}

TEST(RowMemory, CombinedRows) {
    Apart memory;
    smla_combined_rows_args args{};
    args.struct_size = sizeof args;
    args.window = 3;
    args.ratio = 4;
    args.topk = 4;
    args.entries = 2;
    args.stride = 6;
    args.selected = memory.ints({3, 4});
    args.query_start_loc = memory.ints({3}, {0, 1, 3});
    args.seq_lens = memory.ints({2}, {5, 9});
    args.gather_lens = memory.ints({2}, {3, 4});
    args.rows = memory.ints({3, 8});
    args.lens = memory.ints({3});
    expect_own_memory<smla_combined_rows_args>(
        args, {{"args.rows", &args.rows}, {"args.lens", &args.lens}},
        [](smla_combined_rows_args* a) { return smla_combined_rows(a); });
    args.topk = 0;
    args.selected = args.rows;
    EXPECT_EQ(refused_field(smla_combined_rows(&args)), "");
}

smla_mixed_rows_args mixed(Apart& memory, bool local) {
    smla_mixed_rows_args args{};
    args.struct_size = sizeof args;
    args.window = 3;
    args.ratio = 4;
    args.topk = 4;
    args.local = local;
    args.window_page_tokens = args.entry_page_tokens = 4;
    args.decode_window_rows = memory.ints({2, 3});
    args.decode_entries = memory.ints({2, 4});
    if (local) args.is_valid = memory.bytes(2);
    else args.decode_lens = memory.ints({2});
    args.prefill_entries = memory.ints({2, 4});
    args.query_start_loc = memory.ints({4}, {0, 1, 2, 4});
    args.seq_lens = memory.ints({3}, {5, 9, 7});
    args.request_of_token = memory.ints({4}, {0, 1, 2, 2});
    args.window_table = memory.ints({3, 3});
    args.entry_table = memory.ints({3, 2});
    args.rows = memory.ints({4, 7});
    args.lens = memory.ints({4});
    return args;
}

TEST(RowMemory, MixedRows) {
    for (const bool local : {false, true}) {
        Apart memory;
        smla_mixed_rows_args args = mixed(memory, local);
        expect_own_memory<smla_mixed_rows_args>(args, {{"args.rows", &args.rows}, {"args.lens", &args.lens}},
                                                [](smla_mixed_rows_args* a) { return smla_mixed_rows(a); });
        if (local) continue;
        args.ratio = 0;
        args.is_valid = args.entry_table = args.rows;
        EXPECT_EQ(refused_field(smla_mixed_rows(&args)), "");
    }
}

TEST(RowMemory, DecodeSchedule) {
    Apart memory;
    smla_decode_schedule_args args{};
    args.struct_size = sizeof args;
    args.lens = memory.ints({2}, {100, 200});
    args.schedule = memory.ints({3, 8});
    args.splits = memory.ints({3});
    expect_own_memory<smla_decode_schedule_args>(
        args, {{"args.schedule", &args.schedule}, {"args.splits", &args.splits}},
        [](smla_decode_schedule_args* a) { return smla_decode_schedule(a); });
}

TEST(RowMemory, PrefillChunks) {
    Apart memory;
    smla_prefill_chunks_args args{};
    args.struct_size = sizeof args;
    args.query_start_loc = memory.ints({3}, {0, 1, 3});
    args.seq_lens = memory.ints({2}, {5, 9});
    args.chunks = memory.ints({5, 6});
    expect_own_memory<smla_prefill_chunks_args>(args, {{"args.chunks", &args.chunks}}, smla_prefill_chunks);
}

TEST(RowMemory, LseIsInPlaceOrApart) {
    std::vector<float> memory(16, 1.f);
    const Tensor from = make_tensor(memory.data(), SMLA_F32, {2, 3});
    Tensor to = from;
    EXPECT_EQ(refused_field(smla_lse_from_log2(&from, &to)), "");
    EXPECT_NEAR(memory[0], 0.6931472, 1e-7);
    to.data = memory.data() + 1;
    EXPECT_EQ(refused_field(smla_lse_from_log2(&from, &to)), "lse.data");
    to.data = memory.data() + 6;
    EXPECT_EQ(refused_field(smla_lse_from_log2(&from, &to)), "");
    to.stride_elems[0] = 1;
    EXPECT_EQ(refused_field(smla_lse_from_log2(&from, &to)), "lse.stride_elems[0]");
}

}  // namespace
}  // namespace smla::test
