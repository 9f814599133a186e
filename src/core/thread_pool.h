// Persistent thread pool. run(count, body) calls body(i, worker) for every i and returns when all calls are
// done. The calling thread is worker 0. Workers spin briefly between runs, then sleep.
#pragma once

#include "core/fork.h"

#include <smla/context.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace smla {

class ThreadPool {
public:
    // Throws SMLA_OUT_OF_MEMORY if the system starts fewer threads.
    explicit ThreadPool(int threads);
    // Runs all work on the caller's own pool, with at most `threads` concurrent bodies.
    ThreadPool(smla_parallel_for hook, void* hook_pool, int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Tasks start in order, one at a time. `worker` is in [0, threads) and differs between concurrent bodies.
    // After an exception of a body, or if the call must end (core/interrupt.h), no further body begins. run()
    // rethrows the first exception after all bodies have ended. Concurrent runs take turns. In a child of
    // fork(), which has no other threads, the calling thread does all the work.
    using Body = std::function<void(int64_t task, int worker)>;
    void run(int64_t tasks, const Body& body);

private:
    class Crew;  // the threads and their shared state
    int threads_;
    Birthplace birthplace_;
    std::unique_ptr<Crew> crew_;
};

}  // namespace smla
