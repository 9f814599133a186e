// A persistent pool: run(count, body) calls body(i, worker) for every i, and returns when all are done. The
// calling thread is worker 0. Workers spin for a moment between runs, then park.
#pragma once

#include "core/fork.h"

#include <smla/context.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace smla {

class ThreadPool {
public:
    // Throws SMLA_OUT_OF_MEMORY where the system starts fewer threads.
    explicit ThreadPool(int threads);
    // Work goes to the caller's own pool instead; `threads` is how many bodies may run at once.
    ThreadPool(smla_parallel_for hook, void* hook_pool, int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Tasks are handed out in order, one at a time. `worker` is in [0, threads); bodies that run at the same
    // time have different ones. After an exception of a body, or if the call must end (core/interrupt.h), no
    // further body begins; the first exception is rethrown here, after all bodies have ended.
    // Concurrent runs take turns. In a child of fork(), which has no other threads, the calling thread does
    // all the work.
    using Body = std::function<void(int64_t task, int worker)>;
    void run(int64_t tasks, const Body& body);

private:
    class Crew;  // the threads and what they share
    int threads_;
    Birthplace birthplace_;
    std::unique_ptr<Crew> crew_;
};

}  // namespace smla
