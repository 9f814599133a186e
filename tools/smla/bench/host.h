// smla bench --case host: how long the host is busy with a call. The calls have next to nothing to compute,
// so that checks, choice of the kernel and launches are what is timed. On a GPU a call counts until it
// returns; the stream is drained between batches of calls.
#pragma once

#include "context_options.h"
#include "measure.h"
#include "tool.h"

#include <chrono>
#include <optional>

namespace smla::cli {

struct HostTime {
    std::string call, name;
    double median = 0, p90 = 0;  // seconds of one call
    std::optional<double> bar;   // limit of the median in seconds
    int64_t calls = 0;
};

// Throws the error that a failed call of the C ABI stores in smla_last_error.
void check_status(smla_status status);

class HostTimer {
public:
    HostTimer(Device& device, const BenchOptions& options)
        : device_(device), limit_(options.seconds), least_(options.quick ? 200 : 2000) {}

    // Times batches of `call`. `between` runs before each batch and is not timed.
    template <class Call, class Between>
    HostTime time(const std::string& name, const std::string& what, const Call& call,
                  const Between& between) const {
        std::vector<double> times;
        double spent = 0;
        for (int64_t batch = -1; batch < 0 || int64_t(times.size()) < least_ || spent < limit_; ++batch) {
            between();
            device_.wait(nullptr);
            const auto begun = std::chrono::steady_clock::now();
            for (int i = 0; i < kBatch; ++i) {
                const auto start = std::chrono::steady_clock::now();
                const smla_status status = call();
                const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - start;
                if (status != SMLA_OK) check_status(status);
                if (batch < 0) continue;  // the first batch warms up
                times.push_back(gone.count());
            }
            device_.wait(nullptr);  // the device may run far longer than the host
            spent += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
        }
        return summary(name, what, times);
    }
    template <class Call>
    HostTime time(const std::string& name, const std::string& what, const Call& call) const {
        return time(name, what, call, [] {});
    }
    // Times batches of calls until the device has finished them, and returns the time per call.
    template <class Call, class Between>
    HostTime time_done(const std::string& name, const std::string& what, const Call& call,
                       const Between& between) const {
        const auto batch = [&] {
            for (int i = 0; i < kBatch; ++i)
                if (const smla_status status = call(); status != SMLA_OK) return status;
            device_.wait(nullptr);
            return smla_status(SMLA_OK);
        };
        std::vector<double> times;
        double spent = 0;
        for (int64_t n = -1; n < 0 || n * kBatch < least_ || spent < limit_; ++n) {
            between();
            device_.wait(nullptr);
            const auto begun = std::chrono::steady_clock::now();
            check_status(batch());
            const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begun;
            spent += gone.count();
            if (n >= 0) times.push_back(gone.count() / kBatch);  // the first batch warms up
        }
        return summary(name, what, times);
    }
    bool gpu() const { return device_.type() != SMLA_CPU; }

private:
    static constexpr int kBatch = 50;  // fewer launches than a stream queues before the next one blocks
    static HostTime summary(const std::string& name, const std::string& what, std::vector<double>& times);

    Device& device_;
    double limit_;
    int64_t least_;
};

// What these calls run in: a context of the C ABI and, for memory, one of the library's own.
struct HostBench {
    smla_context* abi;
    Context& context;
    HostTimer timer;
    Memory memory{};
    PlacedMemory placed{context.device()};
    ThreadPool filling{1};

    // Tensors on the device, filled from host copies of the arguments.
    void place(Tensor& tensor) { placed.take(tensor); }
    Tensor zeros(smla_dtype dtype, std::initializer_list<int64_t> shape);
    Tensor ints(smla_dtype dtype, const std::vector<int64_t>& values);
};

std::vector<HostTime> time_calls(HostBench& bench);
// A layer's decode step, of weights that are all zero. V3.2's dimensions are timed on a GPU only: on a CPU
// the products would take most of the time.
std::vector<HostTime> time_layers(HostBench& bench);

int bench_host(const Tool& tool, const ContextOptions& context, const BenchOptions& options);

}  // namespace smla::cli
