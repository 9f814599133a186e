// How long the tests that go round and round do so: SMLA_SOAK_SECONDS each, by default half a second.
#pragma once

#include "failing_calls.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace gpu {

inline bool soaks() { return std::getenv("SMLA_SOAK_SECONDS") != nullptr; }

class Deadline {
public:
    // `share`: of the seconds of a test.
    explicit Deadline(double share = 1) {
        const char* const seconds = std::getenv("SMLA_SOAK_SECONDS");
        const std::chrono::duration<double> all(share * (seconds ? std::atof(seconds) : 0.5));
        half_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(all / 2);
        last_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(all);
    }
    bool half_passed() const { return Clock::now() >= half_; }
    bool passed() const { return Clock::now() >= last_; }

private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point half_, last_;
};

// The device's memory, to the byte: what the library holds, from the first round on. In a soak, where nothing
// else may run there, all of the device as well, in the second half: the driver loads code when it first
// runs.
class ConstantMemory {
public:
    void begin() { held_ = held(); }
    // After each round.
    void settle(const Deadline& deadline) {
        if (!soaks() || available_ || !deadline.half_passed()) return;
        available_ = available();
    }
    void expect_unchanged() const {
        EXPECT_TRUE(held() == held_) << held().text() << "; after the first round " << held_.text();
        EXPECT_EQ(available_ ? available() : 0, available_) << "bytes of the device that can be had";
    }

private:
    static size_t available() {
        size_t bytes = 0, total = 0;
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(cudaMemGetInfo(&bytes, &total), cudaSuccess);
        return bytes;
    }
    Held held_;
    size_t available_ = 0;
};

}  // namespace gpu
