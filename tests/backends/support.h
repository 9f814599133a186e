// Integer matrices between canaries, and what a refused call says.
#pragma once

#include "core/tensor.h"

#include <smla/smla.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace smla::test {

constexpr int32_t kCanary = 0x5a5a5a5a;
constexpr int32_t kGarbage = -77777;  // what outputs hold before a call

// [rows,columns] with canaries behind each row and around the whole.
class Ints {
public:
    Ints(int64_t rows, int64_t columns, int32_t value = kGarbage)
        : rows_(rows), columns_(columns), memory_(size_t((rows + 2) * stride()), kCanary) {
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; ++j) at(i, j) = value;
    }
    Ints(int64_t rows, int64_t columns, const std::vector<int32_t>& values) : Ints(rows, columns) {
        for (int64_t i = 0; i < rows * columns; ++i) at(i / columns, i % columns) = values[size_t(i)];
    }
    explicit Ints(const std::vector<int32_t>& values) : Ints(int64_t(values.size()), 1, values) {}
    explicit Ints(std::initializer_list<int32_t> values) : Ints(std::vector<int32_t>(values)) {}

    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int32_t& at(int64_t i, int64_t j = 0) { return memory_[size_t((i + 1) * stride() + j)]; }
    int32_t at(int64_t i, int64_t j = 0) const { return memory_[size_t((i + 1) * stride() + j)]; }

    Tensor matrix() const {
        Tensor out = make_tensor(&memory_[size_t(stride())], SMLA_I32, {rows_, columns_});
        out.stride_elems[0] = stride();
        return out;
    }
    Tensor list() const {  // the first column
        Tensor out = make_tensor(&memory_[size_t(stride())], SMLA_I32, {rows_});
        out.stride_elems[0] = stride();
        return out;
    }
    std::vector<int32_t> row(int64_t i) const {
        std::vector<int32_t> out;
        for (int64_t j = 0; j < columns_; ++j) out.push_back(at(i, j));
        return out;
    }
    std::vector<int32_t> values() const {
        std::vector<int32_t> out;
        for (int64_t i = 0; i < rows_; ++i)
            for (const int32_t value : row(i)) out.push_back(value);
        return out;
    }
    bool canaries() const {
        for (int64_t i = 0; i < rows_ + 2; ++i)
            for (int64_t j = i > 0 && i <= rows_ ? columns_ : 0; j < stride(); ++j)
                if (memory_[size_t(i * stride() + j)] != kCanary) return false;
        return true;
    }

private:
    int64_t stride() const { return columns_ + 3; }
    int64_t rows_, columns_;
    std::vector<int32_t> memory_;
};

class Random {
public:
    explicit Random(uint32_t seed) : engine_(seed) {}
    int32_t in(int32_t low, int32_t high) {
        return std::uniform_int_distribution<int32_t>(low, high)(engine_);
    }
    float value() { return std::uniform_real_distribution<float>(-1, 1)(engine_); }

private:
    std::mt19937 engine_;
};

// The field that a call refused; "" if it did not.
inline std::string refused_field(smla_status status) {
    if (status == SMLA_OK) return "";
    smla_error error{};
    smla_last_error_info(&error);
    return error.field;
}

// A request's row by the plain rule, in 64 bits.
inline int32_t plain_row(const Ints& table, int64_t request, int64_t position, int64_t page_tokens,
                         int64_t page_rows) {
    if (position < 0 || request < 0 || request >= table.rows()) return -1;
    if (position / page_tokens >= table.columns()) return -1;
    const int64_t block = table.at(request, position / page_tokens);
    const int64_t row = block * page_rows + position % page_tokens;
    return block < 0 || row > 2147483647 ? -1 : int32_t(row);
}

}  // namespace smla::test
