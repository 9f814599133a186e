// The memory of a call: every tensor and cache lies in a block of its own, with poison around it, between its
// rows and in its rows that are not filled; 0xFF is a NaN in every floating format.
#pragma once

#include <smla/smla.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <random>
#include <vector>

namespace contract {

constexpr uint8_t kPoison = 0xFF;

struct CacheShape {
    smla_format format = SMLA_FORMAT_NONE;
    int32_t width = 0;
    int32_t page_tokens = 8;
    int32_t page_rows = 0;
    int64_t pages = 4;
    int64_t page_gap = 128;  // bytes between pages
};

class Memory {
public:
    explicit Memory(uint32_t seed) : rng(seed) {}
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    // Outer dimensions are `gap` elements further apart than they need, the innermost elements `step`.
    smla_tensor tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, int64_t gap = 0,
                       int64_t step = 1);
    smla_cache cache(const CacheShape& shape);

    // From here on, what the call may write; everything else must stay.
    void allow(const smla_tensor& tensor);
    void allow_record(const smla_cache& cache, int64_t row);

    // The state that reset() goes back to. To be called once the inputs are filled.
    void remember();
    void reset();
    std::vector<uint8_t> image() const;  // all bytes of all blocks, without the poison around them
    testing::AssertionResult only_allowed_changed() const;
    testing::AssertionResult nothing_changed() const;

    std::mt19937 rng;

private:
    struct Block {
        std::vector<uint8_t> bytes, before;
        std::vector<bool> allowed;
        uint8_t* payload = nullptr;
        size_t payload_bytes = 0;
    };
    uint8_t* add(size_t bytes);
    void allow_bytes(const void* from, size_t count);

    std::deque<Block> blocks_;
};

struct Range {
    uint8_t* begin = nullptr;
    size_t bytes = 0;
};
// The block that an address lies in, with and without the poison around it. None: nulls.
struct BlockRanges {
    Range whole, payload;
};
BlockRanges block_around(const void* address);

// The library's conversions, element by element, along any strides.
void set(const smla_tensor& tensor, int64_t i, int64_t j, int64_t k, double value);
double get(const smla_tensor& tensor, int64_t i, int64_t j = 0, int64_t k = 0);
void set_int(const smla_tensor& tensor, int64_t i, int64_t j, int64_t value);
int64_t get_int(const smla_tensor& tensor, int64_t i, int64_t j = 0);
void zero(const smla_tensor& tensor);
bool has_nan(const smla_tensor& tensor);  // of a floating dtype; false for others
void fill_normal(const smla_tensor& tensor, std::mt19937& rng, double size = 1);  // f*, bf16, e4m3, e2m1
void fill_int(const smla_tensor& tensor, const std::function<int64_t(int64_t, int64_t)>& value);

int64_t capacity(const smla_cache& cache);
bool is_row(const smla_cache& cache, int64_t row);
std::vector<double> read_record(const smla_cache& cache, int64_t row);
void write_record(const smla_cache& cache, int64_t row, const std::vector<double>& values);
void write_normal(const smla_cache& cache, int64_t row, std::mt19937& rng);

}  // namespace contract
