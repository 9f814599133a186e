// Calls in captured graphs that are replayed while their lists change in place: thousands of launches of each
// shape, beside other kernels, under a watchdog.
//
// SMLA_SOAK_LOG names a file that counts launches over several runs: a line per shape and run. Then a run
// goes on where those before it stopped, until each shape has its launches, and SMLA_SOAK_SECONDS are the
// most that it takes.
#pragma once

#include "gpu/gpu.h"
#include "soak.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

namespace gpu {

// 50,000 of calls that take up to 100 us, 2,000 of longer ones: a role that laps another at a barrier hangs
// one launch of many (field bug T-31).
constexpr long kShortLaunches = 50000, kLongLaunches = 2000;

inline bool is_hopper() {
    int device = 0, major = 0, minor = 0;
    must(cudaGetDevice(&device));
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    must(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return major == 9 && minor == 0;
}

// Launches of earlier runs, by shape.
class LaunchLog {
public:
    bool kept() const { return path_ != nullptr; }
    long before(const std::string& name) const {
        std::ifstream file(path_ ? path_ : "");
        long all = 0, each = 0;
        for (std::string found; file >> found >> each;) all += found == name ? each : 0;
        return all;
    }
    void add(const std::string& name, long launches) const {
        if (path_) std::ofstream(path_, std::ios::app) << name << ' ' << launches << '\n';
    }

private:
    const char* path_ = std::getenv("SMLA_SOAK_LOG");
};

// Ends the program where nobody calls fed() for so long: a launch that hangs cannot be stopped otherwise.
class Watchdog {
public:
    Watchdog(std::string name, std::chrono::seconds patience)
        : name_(std::move(name)), patience_(patience), thread_([this] { watch(); }) {}
    ~Watchdog() {
        set([this] { ended_ = true; });
        thread_.join();
    }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;
    void fed() {
        set([this] { ++meals_; });
    }

private:
    template <class Change>
    void set(const Change& change) {
        const std::lock_guard lock(mutex_);
        change();
        changed_.notify_one();
    }
    void watch() {
        std::unique_lock lock(mutex_);
        for (long seen = meals_; !ended_; seen = meals_)
            if (!changed_.wait_for(lock, patience_, [&] { return ended_ || meals_ != seen; })) {
                std::fprintf(stderr, "%s: hangs, no batch of launches has ended for %lld s\n", name_.c_str(),
                             static_cast<long long>(patience_.count()));
                std::_Exit(1);
            }
    }

    std::string name_;
    std::chrono::seconds patience_;
    std::mutex mutex_;
    std::condition_variable changed_;
    long meals_ = 0;
    bool ended_ = false;
    std::thread thread_;
};

// Norms of many rows on a stream of their own, which take multiprocessors away from what runs meanwhile.
class OtherKernels {
public:
    OtherKernels()
        : x_(SMLA_BF16, {kRows, 1, kWidth}),
          weight_(SMLA_BF16, {kWidth}),
          out_(SMLA_BF16, {kRows, 1, kWidth}) {
        must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        args_.x = x_.tensor(), args_.weight = weight_.tensor(), args_.out = out_.tensor();
        args_.eps = 1e-6;
    }
    ~OtherKernels() { cudaStreamDestroy(stream_); }
    OtherKernels(const OtherKernels&) = delete;
    OtherKernels& operator=(const OtherKernels&) = delete;
    void queue(int calls) {
        for (int i = 0; i < calls; ++i) context_.norm(args_, {}, stream_);
    }
    void wait() const { must(cudaStreamSynchronize(stream_)); }

private:
    static constexpr int64_t kRows = 2000, kWidth = 7168;

    smla::Context context_ = context();
    Array<uint16_t> x_, weight_, out_;
    smla_norm_args args_{};
    cudaStream_t stream_ = nullptr;
};

// Replays a shape until it has its launches, or for `share` of a test's seconds where no log is kept. A
// Soaked has batch(): queues launches of kBatch variants, waits, compares; returns how many.
template <class MakeSoaked>
void soak_replays(const std::string& name, long wanted, double share, const Deadline& all,
                  const MakeSoaked& make) {
    const LaunchLog log;
    const long before = log.before(name);
    long launches = 0;
    if (!log.kept() || before < wanted) {
        Watchdog watchdog(name, std::chrono::seconds(30));
        auto soaked = make();
        OtherKernels others;
        const Deadline own(share);
        do {
            others.queue(soaked->kBatch);
            launches += soaked->batch();
            others.wait();
            watchdog.fed();
        } while (!testing::Test::HasFailure() &&
                 (log.kept() ? before + launches < wanted && !all.passed() : !own.passed()));
    }
    if (testing::Test::HasFailure()) FAIL() << name << ", after " << launches << " launches";
    if (launches) log.add(name, launches);
    std::printf("%s: %ld launches\n", name.c_str(), before + launches);
}

}  // namespace gpu
