// Support for fork(). In the child, locks of threads other than the caller would stay locked.
#pragma once

#include <cstdint>
#include <mutex>

namespace smla {

// Returns the number of forks between the process that loaded the library and this one.
uint32_t fork_generation();

// Records the process that made an object; here() returns false in a child of fork().
class Birthplace {
public:
    bool here() const { return generation_ == fork_generation(); }

private:
    uint32_t generation_ = fork_generation();
};

// Lock of static storage duration that fork() leaves unlocked in the child.
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
