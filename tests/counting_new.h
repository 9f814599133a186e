// Counts what the program takes from the heap: replaces new and delete, so one file of a test includes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace counting {

inline std::atomic<int64_t> allocations{0}, allocated_bytes{0};

inline void* take(size_t bytes) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    allocated_bytes.fetch_add(int64_t(bytes), std::memory_order_relaxed);
    return std::malloc(bytes ? bytes : 1);
}
inline void* must_take(size_t bytes) {
    if (void* memory = take(bytes)) return memory;
    throw std::bad_alloc();
}

}  // namespace counting

// Not inlined: the compiler would see free() on a pointer of new and call it a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) { return counting::must_take(bytes); }
[[gnu::noinline]] void* operator new[](size_t bytes) { return counting::must_take(bytes); }
// std::stable_sort takes its buffer this way
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
    return counting::take(bytes);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
