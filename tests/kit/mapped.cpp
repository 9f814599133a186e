#include "kit/mapped.h"

#include "core/workspace.h"
#include "kit/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

namespace smla::kit {

namespace {
size_t page_bytes() { return size_t(sysconf(_SC_PAGESIZE)); }
}  // namespace

Walled::Walled(size_t bytes) : size_(bytes) {
    const size_t page = page_bytes(), body = round_up(bytes + 1, page);
    mapped_ = body + 2 * page;
    void* map = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    map_ = static_cast<char*>(map);
    if (mprotect(map_ + page, body, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::memset(map_ + page, kPoison, body);
    data_ = map_ + page + body - bytes;
}

Walled::~Walled() {
    if (map_) munmap(map_, mapped_);
}

Walled& Walled::operator=(Walled&& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    std::swap(map_, other.map_);
    std::swap(data_, other.data_);
    return *this;
}

char* Walled::behind_the_first_wall() const { return map_ + page_bytes(); }

SparseMemory::SparseMemory(size_t bytes) : bytes_(bytes) {
    void* map =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = map == MAP_FAILED ? nullptr : map;
}

SparseMemory::~SparseMemory() {
    if (data_) munmap(data_, bytes_);
}

void SparseMemory::forget() const { madvise(data_, bytes_, MADV_DONTNEED); }

}  // namespace smla::kit
