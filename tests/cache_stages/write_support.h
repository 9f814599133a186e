// What the tests of the write stages share: tokens in poisoned memory, and the row that a token must become.
#pragma once

#include "formats/test_cache.h"
#include "ops/ops.h"

namespace smla::testing {

// Encodes `values` as row `row` of an otherwise untouched twin and compares the bytes that the row owns.
template <class Real>
void expect_row(TestCache& test, int64_t row, const std::vector<Real>& values) {
    TestCache twin(test.shape);
    twin.view().encode(row, values.data());
    std::vector<bool> owned(test.memory.size());
    test.mark(row, owned);
    int64_t wrong = 0;
    for (int64_t i = 0; i < test.page_stride * test.shape.pages; ++i)
        if (owned[size_t(test.first + i)])
            wrong += test.memory[size_t(test.first + i)] != twin.memory[size_t(twin.first + i)];
    EXPECT_EQ(wrong, 0) << find_format(test.shape.format)->name << " row " << row;
}

// A [T,width] head, or head and tail, in memory where everything that must not be read is NaN.
struct Tokens {
    std::vector<float> values;  // [T,width] as the op sees them, after rounding to the dtype
    std::vector<char> head_memory, tail_memory;
    smla_tensor head{}, tail{};

    Tokens(int64_t count, int64_t width, int64_t tail_width, smla_dtype dtype, uint32_t seed) {
        values = random_values(size_t(count * width), seed);
        const int64_t head_width = width - tail_width;
        head = place(head_memory, count, head_width, dtype);
        if (tail_width) tail = place(tail_memory, count, tail_width, dtype);
        for (int64_t t = 0; t < count; ++t) {
            float* row = values.data() + t * width;
            fill(head, t, row, head_width);
            if (tail_width) fill(tail, t, row + head_width, tail_width);
        }
    }
    std::vector<float> row(int64_t t, int64_t width) const {
        return {values.begin() + t * width, values.begin() + (t + 1) * width};
    }

private:
    static smla_tensor place(std::vector<char>& memory, int64_t count, int64_t width, smla_dtype dtype) {
        const int64_t stride = width + 5;
        memory.assign(size_t(count * stride * 8 + 8), char(0xff));
        smla_tensor tensor = make_tensor(memory.data(), dtype, {count, width});
        tensor.stride_elems[0] = stride;
        return tensor;
    }
    static void fill(const smla_tensor& tensor, int64_t t, float* row, int64_t width) {
        store_row(tensor, address(tensor, t), width, row);
        load_row(tensor, address(tensor, t), width, row);
    }
};

template <class Int>
smla_tensor slots_tensor(const std::vector<Int>& slots) {
    return make_tensor(slots.data(), sizeof(Int) == 8 ? SMLA_I64 : SMLA_I32, {int64_t(slots.size())});
}

template <class Op>
void run_in_pieces(const typename Op::Args& args) {
    Op::check(args);
    const int64_t tasks = Op::tasks(args);
    Op::reference(args, tasks / 2, tasks);  // ranges in any order
    Op::reference(args, 0, tasks / 3);
    Op::reference(args, tasks / 3, tasks / 2);
}

}  // namespace smla::testing
