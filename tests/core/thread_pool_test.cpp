#include "core/thread_pool.h"

#include "core/limits.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace smla {
namespace {

// Plain counters, on purpose: if two bodies share a worker or a task runs twice, the thread sanitizer sees a
// race and the sums are wrong.
struct Seen {
    explicit Seen(int64_t tasks, int threads)
        : by_task(size_t(tasks), 0), by_worker(size_t(threads), 0), inside(size_t(threads)) {}
    std::vector<int> by_task;
    std::vector<int64_t> by_worker;
    std::vector<std::atomic<int>> inside;
    std::atomic<int> shared{0};

    void body(int64_t task, int worker) {
        if (inside.at(size_t(worker)).fetch_add(1) != 0) ++shared;
        ++by_task.at(size_t(task));
        ++by_worker.at(size_t(worker));
        inside.at(size_t(worker)).fetch_sub(1);
    }
    void expect_each_task_once() const {
        for (size_t task = 0; task < by_task.size(); ++task) EXPECT_EQ(by_task[task], 1) << "task " << task;
        int64_t sum = 0;
        for (const int64_t n : by_worker) sum += n;
        EXPECT_EQ(sum, int64_t(by_task.size()));
        EXPECT_EQ(shared.load(), 0) << "two bodies shared a worker";
    }
};

void run_and_check(ThreadPool& pool, int64_t tasks) {
    Seen seen(tasks, pool.threads());
    pool.run(tasks, [&](int64_t task, int worker) { seen.body(task, worker); });
    seen.expect_each_task_once();
}

TEST(ThreadPool, EachTaskRunsOnceAtAnyThreadAndTaskCount) {
    for (const int threads : {1, 2, 3, 8}) {
        ThreadPool pool(threads);
        EXPECT_EQ(pool.threads(), threads);
        for (const int64_t tasks : {0, 1, 2, 7, 8, 9, 1000}) run_and_check(pool, tasks);
    }
}

TEST(ThreadPool, ZeroThreadsMeansEveryUsableCore) {
    EXPECT_EQ(ThreadPool(0).threads(), usable_cores());
    EXPECT_GE(usable_cores(), 1);
}

TEST(ThreadPool, TheCallerIsWorkerZeroAndTakesPart) {
    ThreadPool pool(2);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> wrong{0};
    pool.run(200, [&](int64_t, int worker) {
        if ((worker == 0) != (std::this_thread::get_id() == caller)) ++wrong;
    });
    EXPECT_EQ(wrong.load(), 0);
}

// Every body waits for all the others, so this ends only if each worker runs one.
void expect_all_at_once(ThreadPool& pool) {
    std::atomic<int> arrived{0};
    std::vector<int> bodies(size_t(pool.threads()), 0);
    pool.run(pool.threads(), [&](int64_t, int worker) {
        ++arrived;
        while (arrived.load() < pool.threads()) std::this_thread::yield();
        ++bodies.at(size_t(worker));
    });
    EXPECT_EQ(bodies, std::vector<int>(size_t(pool.threads()), 1)) << "bodies by worker";
}

TEST(ThreadPool, BodiesRunAtTheSameTime) {
    ThreadPool pool(4);
    for (int round = 0; round < 20; ++round) expect_all_at_once(pool);
}

TEST(ThreadPool, ResultsAreVisibleAfterRunWhetherWorkersSpinOrSleep) {
    ThreadPool pool(3);
    std::vector<int64_t> values(64, 0);
    for (int round = 0; round < 300; ++round) {
        pool.run(int64_t(values.size()), [&](int64_t task, int) { values[size_t(task)] += task; });
        // long enough for the workers to park now and then
        if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], int64_t(i) * (round + 1));
    }
}

TEST(ThreadPool, AnExceptionArrivesAndThePoolServesOn) {
    for (const int threads : {1, 2, 4}) {
        ThreadPool pool(threads);
        for (int round = 0; round < 20; ++round) {
            const auto run = [&] {
                pool.run(100, [&](int64_t task, int) {
                    if (task == 37) throw std::runtime_error("task " + std::to_string(task));
                });
            };
            try {
                run();
                FAIL() << "no exception";
            } catch (const std::runtime_error& error) {
                EXPECT_STREQ(error.what(), "task 37");
            }
            run_and_check(pool, 50);
        }
    }
}

TEST(ThreadPool, CallersOnSeveralThreadsTakeTurns) {
    ThreadPool pool(2);
    std::vector<std::unique_ptr<Seen>> seen;
    for (int caller = 0; caller < 4; ++caller) seen.push_back(std::make_unique<Seen>(500, 2));
    std::vector<std::thread> callers;
    for (auto& own : seen)
        callers.emplace_back(
            [&pool, &own] { pool.run(500, [&](int64_t task, int worker) { own->body(task, worker); }); });
    for (std::thread& caller : callers) caller.join();
    for (const auto& own : seen) own->expect_each_task_once();
}

TEST(ThreadPool, StartsAndEndsWithoutWork) {
    for (int round = 0; round < 50; ++round) ThreadPool pool(4);
}

// The caller's own pools: one runs everything on the calling thread, one on threads of its own.
void one_by_one(void* count, int64_t n, void (*body)(void*, int64_t), void* user) {
    ++*static_cast<int*>(count);
    for (int64_t i = n; i-- > 0;) body(user, i);
}
void thread_each(void* count, int64_t n, void (*body)(void*, int64_t), void* user) {
    ++*static_cast<int*>(count);
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < n; ++i) threads.emplace_back(body, user, i);
    for (std::thread& thread : threads) thread.join();
}

TEST(ThreadPool, TheCallersOwnPoolRunsEverything) {
    for (const smla_parallel_for hook : {one_by_one, thread_each}) {
        int calls = 0;
        ThreadPool pool(hook, &calls, 3);
        EXPECT_EQ(pool.threads(), 3);
        for (const int64_t tasks : {1, 2, 100}) run_and_check(pool, tasks);
        EXPECT_EQ(calls, 3);
        EXPECT_THROW(pool.run(10, [](int64_t, int) { throw std::runtime_error("x"); }), std::runtime_error);
        run_and_check(pool, 10);
        if (hook == thread_each) expect_all_at_once(pool);
    }
}

}  // namespace
}  // namespace smla
