#include "core/thread_pool.h"

#include <sched.h>

namespace smla {

namespace {
constexpr int kSpins = 4000;  // a few tens of microseconds: the gap between two stages of a layer

void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}
}  // namespace

int usable_cores() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    const unsigned n = std::thread::hardware_concurrency();
    return n ? int(n) : 1;
}

ThreadPool::ThreadPool(int threads) : threads_(threads > 0 ? threads : usable_cores()) {
    for (int worker = 1; worker < threads_; ++worker) workers_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::ThreadPool(smla_parallel_for hook, void* hook_pool, int threads)
    : threads_(threads > 0 ? threads : usable_cores()), hook_(hook), hook_pool_(hook_pool) {}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
        generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::drain(int worker) {
    for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
        try {
            (*body_)(task, worker);
        } catch (...) {
            std::lock_guard lock(error_mutex_);
            if (!error_) error_ = std::current_exception();
        }
    }
}

void ThreadPool::work(int worker) {
    uint64_t seen = 0;
    for (;;) {
        for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin)
            pause_cpu();
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
            if (stop_) return;
            seen = generation_.load(std::memory_order_relaxed);
        }
        drain(worker);
        if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            std::lock_guard lock(mutex_);
            done_.notify_one();
        }
    }
}

void ThreadPool::hook_body(void* self, int64_t worker) { static_cast<ThreadPool*>(self)->drain(int(worker)); }

void ThreadPool::run_hook(int64_t tasks, const Body& body) {
    body_ = &body;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    hook_(hook_pool_, threads_, &ThreadPool::hook_body, this);
}

void ThreadPool::run(int64_t tasks, const Body& body) {
    if (tasks <= 0) return;
    std::lock_guard serial(run_mutex_);
    error_ = nullptr;
    if (hook_) {
        run_hook(tasks, body);
    } else if (tasks == 1 || threads_ == 1) {
        for (int64_t task = 0; task < tasks; ++task) body(task, 0);
        return;
    } else {
        {
            std::lock_guard lock(mutex_);
            body_ = &body;
            tasks_ = tasks;
            next_.store(0, std::memory_order_relaxed);
            busy_.store(threads_ - 1, std::memory_order_relaxed);
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        drain(0);
        for (int spin = 0; spin < kSpins && busy_.load(std::memory_order_acquire) != 0; ++spin) pause_cpu();
        std::unique_lock lock(mutex_);
        done_.wait(lock, [&] { return busy_.load(std::memory_order_acquire) == 0; });
    }
    if (error_) std::rethrow_exception(error_);
}

}  // namespace smla
