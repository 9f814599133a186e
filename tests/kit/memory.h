// Memory that shows what a call did: every tensor and cache is in a separate block between guards. Memory
// that a test does not fill holds 0xFF, a NaN in every floating format, and must not change unless a call may
// write it.
#pragma once

#include "formats/format.h"
#include "kit/values.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace smla::kit {

constexpr uint8_t kPoison = 0xFF;

struct Range {
    uint8_t* begin = nullptr;
    size_t bytes = 0;
};
// The block that contains an address, with and without its guards; null if there is none.
struct BlockRanges {
    Range whole, payload;
};
BlockRanges block_around(const void* address);

struct Storage;  // of one block; reused for later blocks, because mapping pages takes longer than most calls

class GuardedMemory {
public:
    // `walls`: blocks end less than 64 bytes before an inaccessible page.
    explicit GuardedMemory(bool walls = false);
    ~GuardedMemory();
    GuardedMemory(const GuardedMemory&) = delete;
    GuardedMemory& operator=(const GuardedMemory&) = delete;

    // During its lifetime, the address sanitizer also reports reads of guards. Other builds only detect
    // writes.
    class Closed {
    public:
        explicit Closed(const GuardedMemory& memory) : memory_(memory) { memory.close(true); }
        ~Closed() { memory_.close(false); }
        Closed(const Closed&) = delete;
        Closed& operator=(const Closed&) = delete;

    private:
        const GuardedMemory& memory_;
    };

    // Memory that a call may write.
    void allow(const Tensor& tensor);
    void allow(const Tensor& tensor, int64_t i, int64_t j, int64_t count);  // elements [i, j:j+count]
    // The bytes of a row, from the tables of formats in docs/formats.md, independently of the library's code.
    void allow_record(const smla_cache& cache, int64_t row);
    // Allows the bytes of the cache that `write` writes, and poisons them again afterwards.
    void allow_written(const smla_cache& cache, const std::function<void()>& write) {
        allow_written(cache.data, write);
    }
    void allow_written(const void* data, const std::function<void()>& write);  // in the block of `data`
    void allow_all_of(const void* data);  // the block of `data` without its guards
    void allow_nothing();

    // Remembers the state to which reset() returns; call after the inputs are filled.
    void remember();
    void reset();
    std::string forbidden_write() const;  // where a byte changed that must not change; empty if none did
    bool changed() const;                 // whether any byte changed
    // Contents of the blocks, without the guards.
    std::vector<uint8_t> image() const;
    std::vector<uint8_t> image(const smla_cache& cache) const;

protected:
    bool walls() const { return walls_; }
    // Returns a block of poison that begins `skew` bytes after a multiple of 64.
    uint8_t* add(size_t bytes, size_t skew, std::string what);

private:
    struct Block {
        std::unique_ptr<Storage> storage;
        uint8_t* begin = nullptr;
        size_t size = 0, payload = 0, payload_bytes = 0;
        std::string what;

        std::span<uint8_t> bytes() const { return {begin, size}; }
        std::span<uint8_t> before() const;
        std::span<uint8_t> allowed() const;
        std::vector<uint8_t> held() const { return {begin + payload, begin + payload + payload_bytes}; }
        bool changed() const;
    };
    void close(bool closed) const;
    void allow_bytes(const void* from, size_t count);
    Block& block_of(const void* data);
    const Block& block_of(const void* data) const { return const_cast<GuardedMemory*>(this)->block_of(data); }

    bool walls_;
    std::vector<Block> blocks_;
};

// Returns the bytes from the first element to the end of the last. Returns 0 for an argument without a
// defined size: an unknown dtype or format, or a shape or strides that the library rejects.
size_t extent(const Tensor& tensor);
size_t extent(const smla_cache& cache);

// Returns whether `row` is before the end of the cache and not between two pages.
bool is_row(const smla_cache& cache, int64_t row);

}  // namespace smla::kit
