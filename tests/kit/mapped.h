// Host memory in pages of its own: between pages that nobody may touch, or far larger than the machine's.
#pragma once

#include <cstddef>
#include <utility>

namespace smla::kit {

// Poison that ends where a page begins that cannot be read or written; behind such a page it begins, too.
class Walled {
public:
    explicit Walled(size_t bytes = 0);
    ~Walled();
    Walled(Walled&& other) noexcept { *this = std::move(other); }
    Walled& operator=(Walled&& other) noexcept;
    char* data() const { return data_; }  // ends at the wall: aligned as far as the size is
    char* behind_the_first_wall() const;  // as many bytes, which begin at it
    size_t size() const { return size_; }

private:
    size_t size_ = 0, mapped_ = 0;
    char *map_ = nullptr, *data_ = nullptr;
};

// Zeros, of which only the pages that are touched take memory.
class SparseMemory {
public:
    explicit SparseMemory(size_t bytes);
    ~SparseMemory();
    SparseMemory(const SparseMemory&) = delete;
    SparseMemory& operator=(const SparseMemory&) = delete;
    bool taken() const { return data_ != nullptr; }  // else there is not so much address space
    void* data() const { return data_; }
    void forget() const;  // zeros again

private:
    size_t bytes_;
    void* data_;
};

}  // namespace smla::kit
