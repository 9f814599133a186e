// Host memory with its own pages: between inaccessible pages, or far larger than the machine's memory.
#pragma once

#include <cstddef>
#include <utility>

namespace smla::kit {

// Poison that ends directly before an inaccessible page, and begins again directly behind such a page.
class Walled {
public:
    explicit Walled(size_t bytes = 0);
    ~Walled();
    Walled(Walled&& other) noexcept { *this = std::move(other); }
    Walled& operator=(Walled&& other) noexcept;
    char* data() const { return data_; }  // ends at the wall; aligned like its size
    char* behind_the_first_wall() const;  // as many bytes, which begin behind the wall
    size_t size() const { return size_; }

private:
    size_t size_ = 0, mapped_ = 0;
    char *map_ = nullptr, *data_ = nullptr;
};

// Zeroed memory that only occupies pages that have been touched.
class SparseMemory {
public:
    explicit SparseMemory(size_t bytes);
    ~SparseMemory();
    SparseMemory(const SparseMemory&) = delete;
    SparseMemory& operator=(const SparseMemory&) = delete;
    bool taken() const { return data_ != nullptr; }  // false if the address space is too small
    void* data() const { return data_; }
    void forget() const;  // zeroes the memory again

private:
    size_t bytes_;
    void* data_;
};

}  // namespace smla::kit
