// An interrupt function that ends a call at a chosen stop point.
#pragma once

#include "core/interrupt.h"

#include <thread>

namespace smla::kit {

// During its lifetime, calls of this thread run the interrupt function at every stop point, and run number
// `end_at`, counted from 1, ends the call; 0 ends no call.
class Interrupt {
public:
    explicit Interrupt(int end_at) : end_at_(end_at) {
        set_interrupt(&Interrupt::ask, this, std::chrono::milliseconds(0));
    }
    ~Interrupt() { set_interrupt(nullptr, nullptr); }
    Interrupt(const Interrupt&) = delete;
    Interrupt& operator=(const Interrupt&) = delete;

    int questions() const { return questions_; }
    int on_other_threads() const { return on_other_threads_; }

private:
    static int32_t ask(void* self) {
        auto& at = *static_cast<Interrupt*>(self);
        at.on_other_threads_ += std::this_thread::get_id() != at.thread_;
        return ++at.questions_ == at.end_at_;
    }

    const std::thread::id thread_ = std::this_thread::get_id();
    const int end_at_;
    int questions_ = 0, on_other_threads_ = 0;
};

}  // namespace smla::kit
