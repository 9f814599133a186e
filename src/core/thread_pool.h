// A persistent pool: run(count, body) calls body(i, worker) for every i, and returns when all are done. The
// calling thread is worker 0. Workers spin for a moment between runs, then park.
#pragma once

#include <smla/context.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace smla {

int usable_cores();  // cores that this process may run on

class ThreadPool {
public:
    explicit ThreadPool(int threads);
    // Work goes to the caller's own pool instead; `threads` is how many bodies may run at once.
    ThreadPool(smla_parallel_for hook, void* hook_pool, int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }

    // Tasks are handed out in order, one at a time. `worker` is in [0, threads) and no two bodies share one
    // at a time. The first exception of a body is thrown again here, after all bodies have ended. One run at
    // a time.
    using Body = std::function<void(int64_t task, int worker)>;
    void run(int64_t tasks, const Body& body);

private:
    void work(int worker);
    void drain(int worker);
    void run_hook(int64_t tasks, const Body& body);
    static void hook_body(void* self, int64_t worker);

    int threads_;
    smla_parallel_for hook_ = nullptr;
    void* hook_pool_ = nullptr;
    std::vector<std::thread> workers_;
    std::mutex run_mutex_;  // callers of run()

    std::mutex mutex_;  // guards parking
    std::condition_variable wake_, done_;
    const Body* body_ = nullptr;
    int64_t tasks_ = 0;
    std::atomic<int64_t> next_{0};
    std::atomic<uint64_t> generation_{0};
    std::atomic<int> busy_{0};
    bool stop_ = false;
    std::mutex error_mutex_;
    std::exception_ptr error_;
};

}  // namespace smla
