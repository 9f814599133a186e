// Times stages: repeats, medians, the machine's peak.
#pragma once

#include "cases.h"
#include "engines/context.h"
#include "model_info.h"
#include "model_step.h"
#include "unit.h"

#include <functional>
#include <utility>
#include <vector>

namespace smla::cli {

struct BenchOptions {
    bool quick = false;
    double seconds = 0.3;  // seconds of repeats per case
    int64_t tokens = 1,
            context = 0;  // number of requests in decode steps, with one token each; 0: chosen by `quick`
    std::string save;     // path of a file for the JSON document; empty: none
};

constexpr size_t kRepeatsOnGpu = 30, kRepeats = 5;  // at least

double median_of(std::vector<double> values);
double quantile_of(std::vector<double> values, double q);  // q = 0: the minimum; q = 1: the maximum

struct Measured {
    std::string stage, name, kernel;
    bool part = false;            // a part of the row above
    double seconds = 0;           // median of one call
    std::vector<double> repeats;  // seconds of each repeat, in the order of execution
    void set(std::vector<double> times) { seconds = median_of(times), repeats = std::move(times); }
    double flops = 0, bytes = 0;  // operations of one call; 0 if the stage has no such figure
    double peak_flops = 0;        // peak operations per second of the kernel's unit; 0: none or unknown
    std::string unit;             // name of the kernel's unit
    double error = 0;             // error of a sample, relative to f64
};

// Times calls. Several threads: wall time. One thread: its processor time, which other load does not change.
// A GPU: the time of its kernels, after a write that evicts the inputs from L2.
class Stopwatch {
public:
    enum class Clock { processor, wall, host };  // host: processor time, also on a GPU
    Stopwatch(const BenchOptions& options, Context& context, Clock clock = Clock::processor);
    // Seconds of body(1), body(2) and so on, in that order; body(0) is not timed.
    std::vector<double> repeats(const std::function<void(int64_t)>& body) const;
    const char* clock() const { return gpu_ ? "GPU time" : processor_ ? "processor time" : "wall time"; }

private:
    double now() const;
    double once(const std::function<void(int64_t)>& body, int64_t i) const;

    const BenchOptions& options_;
    Device& device_;
    bool gpu_, processor_;
    DeviceBuffer flush_;
};

// Measured rates of the units of a context's threads or GPU, in operations per second.
struct Peaks {
    std::vector<std::pair<const Unit*, double>> of_units;
    double bf16_dot = 0, f32_fma = 0;  // fastest unit for bf16 and for f32; 0: none
    double memory = 0;  // bytes per second from memory beyond the caches; only Bench::peaks() measures it
};
Peaks measure_peaks(Context& context);

class Bench {
public:
    Bench(Context& context, const BenchOptions& options);
    const Peaks& peaks() const { return peaks_; }
    const Stopwatch& stopwatch() const { return stopwatch_; }

    Measured attend(const AttendCase& test);
    Measured score(const ScoreCase& test);
    Measured select(const SelectCase& test);
    Measured score_select(const FusedCase& test);
    // Measures project with bf16 weights.
    Measured project(const ProjectCase& test);
    // Measures building a backend's metadata for one step.
    Measured metadata(const MetadataCase& test);
    // The whole inner step of one decoded token: first the total, then its stages.
    std::vector<Measured> decode(const DecodeCase& test);

private:
    // Bytes per second that the threads read of memory in order; that a GPU's copy reads and writes.
    double memory_peak() const;
    // Sets the times of body(i) and the peak of the kernel's unit, measured before and after. body sets
    // out.kernel.
    void time(Measured& out, smla_dtype operands, const std::function<void(int64_t)>& body);
    std::vector<std::unique_ptr<Recording>> record(const ModelStep& step, const StepPlan& plan,
                                                   Workspace workspace, Tensor& input,
                                                   const std::vector<Tensor>& variants) const;
    std::vector<Measured> parts(const StageRecords& records,
                                const std::array<std::vector<double>, kStageCount>& seconds,
                                const Measured& total, const TokenFlops& flops);
    void time_parts(const ModelStep& step, const StepPlan& plan, Workspace workspace,
                    std::array<std::vector<double>, kStageCount>& seconds) const;
    const smla_cache& pool(const ListShape& list, int64_t width, int which);
    bool gpu() const { return context_.device().type() != SMLA_CPU; }

    Context& context_;
    BenchOptions options_;
    ThreadPool filling_{0};  // contexts on a GPU have no threads
    Stopwatch stopwatch_;
    Peaks peaks_;
    OwnedWorkspace workspace_;
    Memory pools_;
    std::vector<smla_cache> filled_;
};

}  // namespace smla::cli
