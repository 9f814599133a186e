// The memory of a call in tests of the C ABI: guarded and poisoned, with gaps and strides that the test
// chooses.
#pragma once

#include "kit/memory.h"

#include <smla/smla.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <random>
#include <vector>

namespace contract {

using smla::kit::is_row;
using smla::kit::kPoison;
using smla::kit::set_int;

struct CacheShape {
    smla_format format = SMLA_FORMAT_NONE;
    int32_t width = 0;
    int32_t page_tokens = 8;
    int32_t page_rows = 0;
    int64_t pages = 4;
    int64_t page_gap = 128;  // bytes between pages
};

class Memory : public smla::kit::GuardedMemory {
public:
    explicit Memory(uint32_t seed) : rng(seed) {}

    // Outer dimensions are `gap` elements further apart than they need, the innermost elements `step`.
    smla_tensor tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, int64_t gap = 0,
                       int64_t step = 1);
    smla_cache cache(const CacheShape& shape);

    testing::AssertionResult only_allowed_changed() const;
    testing::AssertionResult nothing_changed() const;

    std::mt19937 rng;
};

// The library's conversions, element by element, along any strides.
void set(const smla_tensor& tensor, int64_t i, int64_t j, int64_t k, double value);
double get(const smla_tensor& tensor, int64_t i, int64_t j = 0, int64_t k = 0);
int64_t get_int(const smla_tensor& tensor, int64_t i, int64_t j = 0);
void zero(const smla_tensor& tensor);
bool has_nan(const smla_tensor& tensor);  // of a floating dtype; false for others
void fill_normal(const smla_tensor& tensor, std::mt19937& rng, double size = 1);  // f*, bf16, e4m3, e2m1
void fill_int(const smla_tensor& tensor, const std::function<int64_t(int64_t, int64_t)>& value);

int64_t capacity(const smla_cache& cache);
std::vector<double> read_record(const smla_cache& cache, int64_t row);
void write_record(const smla_cache& cache, int64_t row, const std::vector<double>& values);
void write_normal(const smla_cache& cache, int64_t row, std::mt19937& rng);

}  // namespace contract
