// Objects that serve one call at a time: a second call that comes from another thread meanwhile is refused.
#pragma once

#include "core/status.h"

#include <atomic>
#include <cstdint>

namespace smla {

// Who uses an object now.
class Users {
private:
    friend class InUse;
    static constexpr int32_t kChanging = -1;
    std::atomic<int32_t> reading_{0};  // number of calls that read; kChanging: one call changes it
};

// For the time of a call. Calls that read an object may overlap, one that changes it may not.
class InUse {
public:
    enum As { reads, changes };
    // users null: nothing is checked. Throws where the object is in use in a way that excludes this call.
    InUse(Users* users, const char* field, As as) : users_(users), as_(as) {
        if (users_ && !enter())
            fail(SMLA_INVALID_ARGUMENT, field, "one that another thread is using",
                 "one call at a time, except for calls that only read");
    }
    ~InUse() {
        if (!users_) return;
        if (as_ == changes) users_->reading_.store(0, std::memory_order_release);
        else users_->reading_.fetch_sub(1, std::memory_order_release);
    }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

private:
    bool enter() {
        std::atomic<int32_t>& count = users_->reading_;
        int32_t now = 0;
        if (as_ == changes)
            return count.compare_exchange_strong(now, Users::kChanging, std::memory_order_acquire);
        now = count.load(std::memory_order_relaxed);
        while (now != Users::kChanging)
            if (count.compare_exchange_weak(now, now + 1, std::memory_order_acquire)) return true;
        return false;
    }

    Users* const users_;
    const As as_;
};

}  // namespace smla
