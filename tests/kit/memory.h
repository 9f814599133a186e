// Memory of a call that shows what the call did: every tensor and cache lies in a block of its own between
// guards. What nobody fills holds 0xFF, a NaN in every floating format, and must stay so unless a call may
// write it.
#pragma once

#include "formats/format.h"
#include "kit/values.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace smla::kit {

constexpr uint8_t kPoison = 0xFF;

struct Range {
    uint8_t* begin = nullptr;
    size_t bytes = 0;
};
// The block that an address lies in, with and without its guards. None: nulls.
struct BlockRanges {
    Range whole, payload;
};
BlockRanges block_around(const void* address);

class GuardedMemory {
public:
    GuardedMemory() = default;
    ~GuardedMemory();
    GuardedMemory(const GuardedMemory&) = delete;
    GuardedMemory& operator=(const GuardedMemory&) = delete;

    // What a call may write.
    void allow(const Tensor& tensor);
    void allow(const Tensor& tensor, int64_t i, int64_t j, int64_t count);  // elements [i, j:j+count]
    // The bytes of a row, from the tables of the formats in docs/formats.md and not from the library's code.
    void allow_record(const smla_cache& cache, int64_t row);
    // The bytes of the cache that `write` writes, whatever was there. They are poison again afterwards.
    void allow_written(const smla_cache& cache, const std::function<void()>& write);

    // The state that reset() goes back to: to be called when the inputs are filled.
    void remember();
    void reset();
    std::string forbidden_write() const;  // where a byte changed that must not; empty: nowhere
    bool changed() const;                 // whether any byte did
    // What the blocks hold, without the guards.
    std::vector<uint8_t> image() const;
    std::vector<uint8_t> image(const smla_cache& cache) const;

protected:
    // A block of poison that begins `skew` bytes past a multiple of 64.
    uint8_t* add(size_t bytes, size_t skew, std::string what);

private:
    struct Block {
        std::vector<uint8_t> bytes, before, allowed;
        std::string what;
        size_t payload = 0, payload_bytes = 0;
    };
    void allow_bytes(const void* from, size_t count);
    Block& block_of(const void* data);
    const Block& block_of(const void* data) const { return const_cast<GuardedMemory*>(this)->block_of(data); }

    std::vector<std::unique_ptr<Block>> blocks_;
};

// Whether a row of the cache is one: not past its end and not between its pages.
bool is_row(const smla_cache& cache, int64_t row);

}  // namespace smla::kit
