#include "core/interrupt.h"

#include "core/thread_pool.h"
#include "kit/interrupt.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace smla {
namespace {

using std::chrono::milliseconds;

void expect_status(smla_status status, const std::function<void()>& call, const char* text = "") {
    try {
        call();
        ADD_FAILURE() << "the call ran to its end";
    } catch (const Error& error) {
        EXPECT_EQ(error.status, status) << error.what();
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
}

void one_by_one(void*, int64_t n, void (*body)(void*, int64_t), void* user) {
    for (int64_t i = 0; i < n; ++i) body(user, i);
}
void thread_each(void*, int64_t n, void (*body)(void*, int64_t), void* user) {
    std::vector<std::thread> threads;
    for (int64_t i = 1; i < n; ++i) threads.emplace_back(body, user, i);
    body(user, 0);
    for (std::thread& thread : threads) thread.join();
}

std::vector<std::unique_ptr<ThreadPool>> all_pools() {
    std::vector<std::unique_ptr<ThreadPool>> out;
    for (const int threads : {1, 2, 4}) out.push_back(std::make_unique<ThreadPool>(threads));
    for (const smla_parallel_for hook : {one_by_one, thread_each})
        out.push_back(std::make_unique<ThreadPool>(hook, nullptr, 3));
    return out;
}

TEST(Interrupt, ARunEndsAtTheQuestionAndThePoolServesOn) {
    for (const auto& pool : all_pools())
        for (const int end_at : {1, 2, 5}) {
            const int64_t tasks = 100'000'000;
            std::atomic<int64_t> begun{0}, inside{0};
            const kit::Interrupt interrupt(end_at);
            expect_status(SMLA_CANCELLED, [&] {
                pool->run(tasks, [&](int64_t, int) {
                    ++inside;
                    ++begun;
                    --inside;
                });
            });
            EXPECT_EQ(inside.load(), 0);
            EXPECT_LT(begun.load(), tasks);
            EXPECT_EQ(interrupt.questions(), end_at);
            EXPECT_EQ(interrupt.on_other_threads(), 0);
            begun = 0;
            pool->run(100, [&](int64_t, int) { ++begun; });
            EXPECT_EQ(begun.load(), 100);
        }
}

// Each body ends by its stop points alone, those on other threads too, and when the calling thread has none.
TEST(Interrupt, BodiesOnEveryThreadEndAtTheirNextStopPoint) {
    const std::thread::id caller = std::this_thread::get_id();
    const auto expect_end = [&](ThreadPool& pool, bool caller_returns) {
        std::atomic<bool> elsewhere{false};
        const kit::Interrupt interrupt(10);
        expect_status(SMLA_CANCELLED, [&] {
            pool.run(3, [&](int64_t, int) {
                if (std::this_thread::get_id() != caller) elsewhere = true;
                else if (caller_returns)
                    while (!elsewhere) std::this_thread::yield();
                if (!caller_returns || std::this_thread::get_id() != caller)
                    for (;;) stop_point();
            });
        });
        EXPECT_EQ(interrupt.on_other_threads(), 0);
    };
    ThreadPool own(3), hooked(thread_each, nullptr, 3);
    expect_end(own, false);
    expect_end(own, true);
    expect_end(hooked, false);
}

// A thread that works for another's call does not ask a function of its own.
TEST(Interrupt, HelpersAskNothing) {
    ThreadPool pool(
        [](void*, int64_t n, void (*body)(void*, int64_t), void* user) {
            std::thread([=] {
                const kit::Interrupt of_helper(1);
                for (int64_t i = 0; i < n; ++i) body(user, i);
                EXPECT_EQ(of_helper.questions(), 0);
            }).join();
        },
        nullptr, 2);
    std::atomic<int> ran{0};
    pool.run(10, [&](int64_t, int) { ++ran; });
    EXPECT_EQ(ran.load(), 10);
}

TEST(Interrupt, AShortCallAsksNothingAndALongOneNowAndThen) {
    int questions = 0;
    const auto count = [](void* user) { return ++*static_cast<int*>(user), int32_t(0); };
    set_interrupt(count, &questions, std::chrono::hours(1));
    begin_call();
    for (int i = 0; i < 100'000; ++i) stop_point();
    EXPECT_EQ(questions, 0);

    constexpr milliseconds kPause(100), kResolution(20);
    using Clock = std::chrono::steady_clock;
    set_interrupt(count, &questions, kPause);
    for (int call = 0; call < 2; ++call) {  // each counts from its own beginning
        const Clock::time_point start = Clock::now();
        questions = 0;
        begin_call();
        while (questions < 2) stop_point();
        EXPECT_GE(Clock::now() - start, 2 * kPause - kResolution);
        std::this_thread::sleep_for(kPause);
    }
    set_interrupt(nullptr, nullptr);
}

TEST(Interrupt, ExceptionsOfTheCallersFunctionsEndTheCall) {
    set_interrupt([](void*) -> int32_t { throw std::runtime_error("no more"); }, nullptr, milliseconds(0));
    expect_status(SMLA_CANCELLED, stop_point, "no more");
    set_interrupt([](void*) -> int32_t { throw 7; }, nullptr, milliseconds(0));
    expect_status(SMLA_CANCELLED, stop_point, "interrupt");
    set_interrupt([](void*) -> int32_t { throw std::bad_alloc(); }, nullptr, milliseconds(0));
    EXPECT_THROW(stop_point(), std::bad_alloc);
    set_interrupt(nullptr, nullptr);

    int calls = 0;
    ThreadPool pool(
        [](void* user, int64_t n, void (*body)(void*, int64_t), void* of_body) {
            if (++*static_cast<int*>(user) == 1) throw std::runtime_error("pool is closed");
            one_by_one(nullptr, n, body, of_body);
        },
        &calls, 2);
    std::atomic<int> ran{0};
    expect_status(
        SMLA_CANCELLED, [&] { pool.run(10, [&](int64_t, int) { ++ran; }); }, "pool is closed");
    EXPECT_EQ(ran.load(), 0);
    pool.run(10, [&](int64_t, int) { ++ran; });
    EXPECT_EQ(ran.load(), 10);
}

}  // namespace
}  // namespace smla
