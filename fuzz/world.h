// One stage call made from fuzzer input, in a world of its own: the same input builds the same bytes twice,
// so two engines can run it and every buffer be compared. Each buffer is an allocation of exactly its size:
// the address sanitizer sees any access outside.
#pragma once

#include "formats/format.h"
#include "fuzz.h"

#include <initializer_list>
#include <memory>
#include <random>
#include <vector>

namespace smla::fuzz {

// A number that depends on every byte of the input.
uint32_t seed_of(const uint8_t* data, size_t size);

// The input as a sequence of choices; random ones when it has ended, so that short inputs make full calls
// too.
class Choices {
public:
    Choices(const uint8_t* data, size_t size) : data_(data), size_(size), random_(~seed_of(data, size)) {}
    uint8_t byte() { return at_ < size_ ? data_[at_++] : uint8_t(random_()); }
    int64_t below(int64_t n) {
        if (n <= 1) return 0;
        int64_t value = byte();
        if (n > 256) value = value << 8 | byte();
        return value % n;
    }
    int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
    bool flag() { return byte() & 1; }
    template <class T>
    T any(std::initializer_list<T> list) {
        return list.begin()[below(int64_t(list.size()))];
    }

private:
    const uint8_t* data_;
    size_t size_, at_ = 0;
    std::mt19937 random_;
};

class World {
public:
    World(const uint8_t* data, size_t size);

    Choices choose;

    // Values are quarters in [-2, 1.75]: exact in every dtype, and sums of their products are exact in f32,
    // so that engines with other orders of summation must agree to the bit.
    Tensor values(smla_dtype dtype, std::initializer_list<int64_t> shape);
    Tensor powers(smla_dtype dtype, std::initializer_list<int64_t> shape);   // +-0.5, 1, 2
    Tensor hostile(smla_dtype dtype, std::initializer_list<int64_t> shape);  // floats of any kind, NaN too
    // Mostly in [low, high], some just outside, some anywhere.
    Tensor indices(smla_dtype dtype, std::initializer_list<int64_t> shape, int64_t low, int64_t high);
    Tensor prefix_sums(int64_t requests, int64_t last);  // [R+1] i32, mostly ascending
    // Garbage that the call overwrites; afterwards values differ by at most `tolerance`, what is not written
    // not at all.
    Tensor output(smla_dtype dtype, std::initializer_list<int64_t> shape, double tolerance = 0);
    void ignore(const Tensor& tensor);  // its memory may differ
    void ignore(const smla_cache& cache);

    // A cache with random pages, strides and records of values().
    smla_cache cache(smla_format format, int32_t width);

    // Spoils one field of a tensor or cache of the arguments in a way that keeps memory sufficient. Both
    // worlds of an input spoil alike. Returns whether it did.
    bool spoil(void* args, size_t bytes);

    // Whether all buffers are the same; the first difference goes to stderr.
    static bool same(const World& a, const World& b);

private:
    struct Buffer {
        std::unique_ptr<char[]> data;
        size_t bytes;
        smla_dtype dtype;  // how values that may differ are compared
        double tolerance;  // < 0: not compared
    };
    char* take(size_t bytes, smla_dtype dtype, double tolerance);
    Tensor tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, double tolerance);
    template <class Next>
    void fill(const Tensor& tensor, const Next& next);
    void ignore(const void* data);
    void spoil(Tensor& tensor);
    void spoil(smla_cache& cache);
    uint32_t random() { return uint32_t(random_()); }

    std::mt19937 random_;
    std::vector<Buffer> buffers_;
    std::vector<Tensor> tensors_;  // as they were made, to find them in the arguments
    std::vector<smla_cache> caches_;
};

}  // namespace smla::fuzz
