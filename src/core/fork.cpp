#include "core/fork.h"

#include <pthread.h>

#include <atomic>
#include <new>

namespace smla {

namespace {
std::atomic<uint32_t> generation{0};
GlobalMutex* first_lock = nullptr;
}  // namespace

void open_locks_in_child() {
    generation.fetch_add(1, std::memory_order_relaxed);
    for (GlobalMutex* each = first_lock; each; each = each->next_) new (&each->mutex_) std::mutex;
}

uint32_t fork_generation() {
    static const int registered = pthread_atfork(nullptr, nullptr, open_locks_in_child);
    static_cast<void>(registered);
    return generation.load(std::memory_order_relaxed);
}

GlobalMutex::GlobalMutex() : next_(first_lock) {
    first_lock = this;
    fork_generation();
}

}  // namespace smla
