// What a child of fork() must know: only the thread that called it lives on there, and a lock that another
// thread held stays locked for ever.
#pragma once

#include <cstdint>
#include <mutex>

namespace smla {

// Changes with every fork between the process that loaded the library and this one.
uint32_t fork_generation();

// Whether what is made now lives in the process that made it.
class Birthplace {
public:
    bool here() const { return generation_ == fork_generation(); }

private:
    uint32_t generation_ = fork_generation();
};

// A lock of the whole library, made before main(); a child finds it open.
class GlobalMutex {
public:
    GlobalMutex();
    GlobalMutex(const GlobalMutex&) = delete;
    GlobalMutex& operator=(const GlobalMutex&) = delete;
    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

private:
    friend void open_locks_in_child();
    std::mutex mutex_;
    GlobalMutex* next_;
};

}  // namespace smla
