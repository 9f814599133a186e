// Ends a long call on a CPU when the function of smla_set_interrupt() (smla/context.h) requests it.
#pragma once

#include "core/status.h"

#include <smla/context.h>

#include <atomic>
#include <chrono>
#include <new>

namespace smla {

// Sets the function for calls of this thread; null for none. `pause` is the time from the start of a call to
// the first check, and between checks.
constexpr std::chrono::milliseconds kInterruptPause{50};
void set_interrupt(smla_interrupt_function function, void* user,
                   std::chrono::milliseconds pause = kInterruptPause);

// Starts the timing of a C ABI call on this thread. Throws if the interrupt function makes the call.
void begin_call();
// Throws SMLA_CANCELLED if the call must end. Threads of a call run this between pieces of work.
void stop_point();

// During its lifetime, this thread works for a call of another thread and stops once `stopped` is true. A
// null `stopped` means a call of this thread.
class WorksFor {
public:
    explicit WorksFor(const std::atomic<bool>* stopped);
    ~WorksFor();
    WorksFor(const WorksFor&) = delete;
    WorksFor& operator=(const WorksFor&) = delete;

private:
    const std::atomic<bool>* before_;
};

// Calls a function of the caller. Turns its exceptions into SMLA_CANCELLED, except std::bad_alloc, which
// means out of memory.
template <class Function>
auto call_back(const char* name, const Function& function) {
    constexpr const char* kWanted = "no exception";
    try {
        return function();
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        fail(SMLA_CANCELLED, name, text("an exception: ", error.what()), kWanted);
    } catch (...) {
        fail(SMLA_CANCELLED, name, "an exception", kWanted);
    }
}

}  // namespace smla
