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
        last_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                   share * (seconds ? std::atof(seconds) : 0.5)));
    }
    bool passed() const { return Clock::now() >= last_; }

private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point last_;
};

// The device's memory, to the byte. Of the whole device only where nothing else runs there, as in a soak.
class ConstantMemory {
public:
    void begin() {
        held_ = held();
        available_ = available();
    }
    void expect_unchanged() const {
        EXPECT_TRUE(held() == held_) << held().text() << "; after the first round " << held_.text();
        if (soaks()) EXPECT_EQ(available(), available_) << "bytes of the device that can be had";
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
