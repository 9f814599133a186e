// Support for fork(): only the calling thread survives in the child, and a lock that another thread held
// would stay locked there for ever.
#pragma once

#include <cstdint>
#include <mutex>

namespace smla {

// The number of forks between the process that loaded the library and this one.
uint32_t fork_generation();

// Remembers the process that made an object; here() is false in a child of fork().
class Birthplace {
public:
    bool here() const { return generation_ == fork_generation(); }

private:
    uint32_t generation_ = fork_generation();
};

// A lock of static storage duration. fork() leaves it unlocked in the child.
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
