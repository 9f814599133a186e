#include "core/thread_pool.h"

#include "core/interrupt.h"
#include "core/library_threads.h"
#include "core/limits.h"
#include "core/status.h"
#include "core/workspace.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace smla {

namespace {
// Pauses before a thread sleeps. The pauses take longer than the gap between two stages of a layer: about 100
// us on AMD's Zen 3, and 270 us on Intel since Skylake, where a pause takes 140 cycles.
constexpr int kSpins = 4000;

void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void run_alone(int64_t tasks, const ThreadPool::Body& body) {
    for (int64_t task = 0; task < tasks; ++task) {
        stop_point();
        body(task, 0);
    }
}
}  // namespace

class ThreadPool::Crew {
public:
    explicit Crew(int threads) : threads_(threads) {
        const LibraryThreads starting;
        workers_.reserve(size_t(threads - 1));
        try {
            for (int worker = 1; worker < threads; ++worker)
                workers_.emplace_back([this, worker] {
                    name_thread(("smla-" + std::to_string(worker)).c_str());
                    work(worker);
                });
        } catch (const std::system_error& error) {
            const size_t started = workers_.size();
            dismiss();
            fail(SMLA_OUT_OF_MEMORY, "args.threads",
                 text(started, " of ", threads - 1, " started (", error.code().message(), ")"),
                 "all threads started; request fewer threads or raise the system's limit");
        } catch (...) {
            dismiss();
            throw;
        }
    }
    Crew(smla_parallel_for hook, void* hook_pool, int threads)
        : threads_(threads), hook_(hook), hook_pool_(hook_pool) {}
    ~Crew() { dismiss(); }

    void run(int64_t tasks, const Body& body);

private:
    void dismiss();
    void work(int worker);
    void drain(int worker);
    template <class Work>
    void attempt(const Work& work);
    void run_on_workers(int64_t tasks, const Body& body);
    void run_hook(int64_t tasks, const Body& body);
    static void hook_body(void* self, int64_t worker) {
        Crew& crew = *static_cast<Crew*>(self);
        const WorksFor call(std::this_thread::get_id() == crew.caller_ ? nullptr : &crew.failed_);
        crew.drain(int(worker));
    }

    const int threads_;
    const smla_parallel_for hook_ = nullptr;
    void* const hook_pool_ = nullptr;
    std::vector<std::thread> workers_;
    std::mutex run_mutex_;    // callers of run()
    std::thread::id caller_;  // thread that runs the hook

    std::mutex mutex_;  // guards parking
    std::condition_variable wake_, done_;
    // Members published by the increment of `generation_`: written before, read after it.
    const Body* body_ = nullptr;
    int64_t tasks_ = 0;
    bool stop_ = false;
    // Counters have separate cache lines: working threads write two of them while others poll generation_.
    alignas(kCacheLine) std::atomic<uint64_t> generation_{0};
    alignas(kCacheLine) std::atomic<int64_t> next_{0};
    alignas(kCacheLine) std::atomic<int> busy_{0};
    std::mutex error_mutex_;
    std::exception_ptr error_;
    std::atomic<bool> failed_{false};  // whether error_ is set, after which no task begins
};

void ThreadPool::Crew::dismiss() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
        generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
}

// Calls work() and keeps the first exception of any thread, which ends the run.
template <class Work>
void ThreadPool::Crew::attempt(const Work& work) {
    try {
        work();
    } catch (...) {
        std::lock_guard lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
        failed_.store(true, std::memory_order_relaxed);
    }
}

void ThreadPool::Crew::drain(int worker) {
    attempt([&] {
        while (!failed_.load(std::memory_order_relaxed)) {
            stop_point();
            const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks_) return;
            (*body_)(task, worker);
        }
    });
}

void ThreadPool::Crew::work(int worker) {
    const WorksFor calls(&failed_);
    uint64_t seen = 0;
    const auto moved_on = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    for (;;) {
        for (int spin = 0; spin < kSpins && !moved_on(); ++spin) pause_cpu();
        // A worker that saw the new generation while spinning takes no lock: all would queue for the lock,
        // sleep and wake one another.
        if (!moved_on()) {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, moved_on);
        }
        if (stop_) return;
        ++seen;  // the generation cannot change before this worker is done
        drain(worker);
        if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            std::lock_guard lock(mutex_);
            done_.notify_one();
        }
    }
}

void ThreadPool::Crew::run_hook(int64_t tasks, const Body& body) {
    body_ = &body;
    tasks_ = tasks;
    next_.store(0, std::memory_order_relaxed);
    caller_ = std::this_thread::get_id();
    call_back("args.parallel_for", [&] { hook_(hook_pool_, threads_, &Crew::hook_body, this); });
}

void ThreadPool::Crew::run_on_workers(int64_t tasks, const Body& body) {
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
    // Uses the system clock, because a wait by the steady clock needs glibc 2.30.
    const auto pause_ends = [] { return std::chrono::system_clock::now() + kInterruptPause; };
    const auto all_done = [&] { return busy_.load(std::memory_order_acquire) == 0; };
    while (!done_.wait_until(lock, pause_ends(), all_done)) {
        lock.unlock();
        if (!failed_.load(std::memory_order_relaxed)) attempt(stop_point);
        lock.lock();
    }
}

void ThreadPool::Crew::run(int64_t tasks, const Body& body) {
    std::lock_guard serial(run_mutex_);
    error_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    if (hook_) {
        run_hook(tasks, body);
    } else if (tasks == 1 || threads_ == 1) {
        return run_alone(tasks, body);
    } else {
        run_on_workers(tasks, body);
    }
    if (error_) std::rethrow_exception(error_);
}

ThreadPool::ThreadPool(int threads)
    : threads_(threads > 0 ? threads : usable_cores()), crew_(std::make_unique<Crew>(threads_)) {}

ThreadPool::ThreadPool(smla_parallel_for hook, void* hook_pool, int threads)
    : threads_(threads > 0 ? threads : usable_cores()),
      crew_(std::make_unique<Crew>(hook, hook_pool, threads_)) {}

// A child of fork() must not touch the crew, because its threads exist only in the parent.
ThreadPool::~ThreadPool() {
    if (!birthplace_.here()) static_cast<void>(crew_.release());
}

void ThreadPool::run(int64_t tasks, const Body& body) {
    if (tasks <= 0) return;
    if (birthplace_.here()) return crew_->run(tasks, body);
    run_alone(tasks, body);
}

}  // namespace smla
