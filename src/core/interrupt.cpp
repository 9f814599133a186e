#include "core/interrupt.h"

#include <ctime>

namespace smla {

namespace {

struct Caller {
    smla_interrupt_function function = nullptr;
    void* user = nullptr;
    int64_t pause_ns = 0;
    int64_t due_ns = 0;                          // time of the next check; 0: not yet set in this call
    bool asking = false;                         // `function` runs
    const std::atomic<bool>* stopped = nullptr;  // flag of the call that this thread works for
};
thread_local Caller caller;

// Returns a time accurate to a few milliseconds in 6 ns; steady_clock takes 36 ns (Zen 4).
int64_t coarse_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void ask(Caller& at) {
    struct Asking {
        bool& flag;
        explicit Asking(bool& of) : flag(of) { flag = true; }
        ~Asking() { flag = false; }
    };
    const Asking asking(at.asking);
    if (const int32_t answer = call_back("interrupt", [&] { return at.function(at.user); }))
        fail(SMLA_CANCELLED, "interrupt", text(answer), "0 to continue");
}

// Rare paths are not inlined, so that a stop point without work takes few instructions.
[[noreturn, gnu::noinline]] void refuse_call() {
    fail(SMLA_INVALID_ARGUMENT, "interrupt", "a call of smla in the interrupt function",
         "an interrupt function that does not call smla");
}

[[noreturn, gnu::noinline]] void end_with_caller() {
    fail(SMLA_CANCELLED, "interrupt", "a call that was interrupted on another thread", "0 to continue");
}

[[gnu::noinline]] void ask_if_due(Caller& at) {
    const int64_t now = coarse_ns();
    if (at.due_ns == 0) at.due_ns = now + at.pause_ns;
    if (now < at.due_ns) return;
    ask(at);
    at.due_ns = coarse_ns() + at.pause_ns;
}

}  // namespace

void set_interrupt(smla_interrupt_function function, void* user, std::chrono::milliseconds pause) {
    caller.function = function;
    caller.user = user;
    caller.pause_ns = std::chrono::nanoseconds(pause).count();
}

void begin_call() {
    if (caller.asking) refuse_call();
    caller.due_ns = 0;
}

void stop_point() {
    Caller& at = caller;
    if (at.stopped) {
        if (at.stopped->load(std::memory_order_relaxed)) end_with_caller();
    } else if (at.function) {
        ask_if_due(at);
    }
}

WorksFor::WorksFor(const std::atomic<bool>* stopped) : before_(caller.stopped) { caller.stopped = stopped; }
WorksFor::~WorksFor() { caller.stopped = before_; }

}  // namespace smla
