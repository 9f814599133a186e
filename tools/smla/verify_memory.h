// Memory of a call that shows what the call did: every tensor and cache lies in a block of its own between
// guards. What nobody fills holds 0xFF, a NaN in every floating format, and must stay so unless a call may
// write it.
#pragma once

#include "formats/format.h"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace smla::cli {

constexpr uint8_t kPoison = 0xFF;

// A small, fast generator (splitmix64: Steele, Lea, Flood 2014).
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next();
    int64_t between(int64_t low, int64_t high);      // both included
    int64_t log_between(int64_t low, int64_t high);  // low >= 1; small numbers as often as large ones
    bool chance(double share) { return double(next() >> 11) * 0x1p-53 < share; }
    double uniform(double low, double high) { return low + (high - low) * double(next() >> 11) * 0x1p-53; }
    double normal();
    template <class T>
    T pick(std::initializer_list<T> values) {
        return values.begin()[between(0, int64_t(values.size()) - 1)];
    }

private:
    uint64_t state_;
};

// How far apart a tensor's elements may lie.
enum class Inner { dense, any };

struct CacheShape {
    smla_format format = SMLA_FORMAT_NONE;
    int64_t width = 0, pages = 1;
    int32_t page_tokens = 64;
};

class HostileMemory {
public:
    explicit HostileMemory(uint64_t seed) : random_(seed) {}
    HostileMemory(const HostileMemory&) = delete;
    HostileMemory& operator=(const HostileMemory&) = delete;

    // With random gaps between rows, and between elements where `inner` lets them.
    Tensor tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, Inner inner = Inner::dense);
    // With random gaps between rows and pages, sometimes pages that interleave with those of other layers.
    smla_cache cache(const CacheShape& shape);

    // What a call may write.
    void allow(const Tensor& tensor);
    void allow(const Tensor& tensor, int64_t i, int64_t j, int64_t count);  // elements [i, j:j+count]
    // The bytes of the cache that `write` writes, whatever was there. They are poison again afterwards.
    void allow_written(const smla_cache& cache, const std::function<void()>& write);

    // The state that reset() goes back to: to be called when the inputs are filled.
    void remember();
    void reset();
    std::string forbidden_write() const;  // where a byte changed that must not; empty: nowhere
    std::vector<uint8_t> image() const;   // of all blocks
    std::vector<uint8_t> image(const smla_cache& cache) const;

private:
    struct Block {
        std::vector<uint8_t> bytes, before, allowed;
        std::string what;
        size_t payload = 0;  // where the data begins
    };
    void* add(size_t bytes, size_t alignment, std::string what);
    void allow_bytes(const void* from, size_t count);
    Block& block_of(const void* data);
    const Block& block_of(const void* data) const { return const_cast<HostileMemory*>(this)->block_of(data); }

    std::vector<std::unique_ptr<Block>> blocks_;
    Random random_;
};

// Calls use(i, j, k, l) for every element of a tensor.
template <class Use>
void each_index(const Tensor& tensor, const Use& use) {
    int64_t n[SMLA_MAX_NDIM];
    for (int d = 0; d < SMLA_MAX_NDIM; ++d) n[d] = d < tensor.ndim ? tensor.shape[d] : 1;
    for (int64_t i = 0; i < n[0]; ++i)
        for (int64_t j = 0; j < n[1]; ++j)
            for (int64_t k = 0; k < n[2]; ++k)
                for (int64_t l = 0; l < n[3]; ++l) use(i, j, k, l);
}

void set_value(const Tensor& tensor, int64_t i, int64_t j, int64_t k, int64_t l, double value);
void set_int(const Tensor& tensor, int64_t i, int64_t j, int64_t value);
void fill_normal(const Tensor& tensor, Random& random, double spread);  // scales: near 1
void fill_constant(const Tensor& tensor, double value);

// A tensor in double, contiguous, with its own memory.
class Doubles {
public:
    Doubles() = default;
    explicit Doubles(const Tensor& from);
    static Doubles like(const Tensor& shape);         // NaN
    const Tensor& tensor() const { return tensor_; }  // valid as long as this lives and is not copied
    Doubles(Doubles&&) = default;
    Doubles& operator=(Doubles&&) = default;
    void make_absolute();

    std::vector<double> values;

private:
    Tensor tensor_{};
};

}  // namespace smla::cli
