// Detects concurrent calls on objects that serve one call at a time.
#pragma once

#include "core/status.h"

#include <atomic>
#include <cstdint>

namespace smla {

// Count of the calls that use an object.
class Users {
private:
    friend class InUse;
    static constexpr int32_t kChanging = -1;
    std::atomic<int32_t> reading_{0};  // number of reading calls; kChanging during a change
};

// Marks an object as in use during a call. Calls that read an object may overlap; a call that changes an
// object may not.
class InUse {
public:
    enum As { reads, changes };
    // Throws if another call uses the object in a way that excludes this call. `users` may be null.
    InUse(Users* users, const char* field, As as) : users_(users), as_(as) {
        if (users_ && !enter())
            fail(SMLA_INVALID_ARGUMENT, field, "an object that another thread is using",
                 "one call at a time (only calls that read the object may be concurrent)");
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
