#include "measure.h"

#include "cuda_peaks.h"
#include "engines/placed.h"
#include "engines/run.h"
#include "oracle.h"
#include "peaks.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>

namespace smla::cli {

namespace {

constexpr int64_t kVariants =
    32;  // lists and queries alternate, so that caches and predictors cannot learn them
constexpr uint64_t kSeed = 20, kPoolSeed = 1000;
constexpr size_t kPageBytes = 4096;

template <class... Tensors>
void take_tokens(int64_t first, int64_t count, Tensors*... each) {
    ((*each = present(*each) ? slice(*each, 0, first, first + count) : *each), ...);
}

// Returns the dtype of the operands of score's products. A GPU multiplies e4m3 only if logits may be rounded,
// because its tensor cores keep too few bits of such sums.
smla_dtype multiplied(const smla_score_args& args) {
    const bool gpu_exact = args.q.device_type != SMLA_CPU && args.precision != SMLA_PRECISION_ROUNDED;
    return gpu_exact && args.q.dtype == SMLA_E4M3 ? SMLA_BF16 : args.q.dtype;
}

template <Stage S>
Workspace workspace_for(OwnedWorkspace& workspace, const ArgsOf<S>& args, const Context& context) {
    return workspace.at_least(stage_workspace<S>(args, context.env({}), 0));
}

}  // namespace

double Stopwatch::now() const {
    timespec time;
    clock_gettime(processor_ ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

Stopwatch::Stopwatch(const BenchOptions& options, Context& context, Clock clock)
    : options_(options),
      device_(context.device()),
      gpu_(clock != Clock::host && context.device().type() != SMLA_CPU),
      processor_(clock == Clock::host ||
                 (!gpu_ && clock == Clock::processor && context.pool().threads() == 1)) {
    if (gpu_) flush_ = DeviceBuffer(device_, 4 * device_.facts().l2_bytes);
}

double Stopwatch::once(const std::function<void(int64_t)>& body, int64_t i) const {
    if (gpu_) {
        device_.fill(flush_.data(), int(i & 1), flush_.bytes(), nullptr);
        return device_.seconds_of(nullptr, [&] { body(i); });
    }
    const double start = now();
    body(i);
    return now() - start;
}

double quantile_of(std::vector<double> values, double q) {
    const auto at = values.begin() + std::llround(q * double(values.size() - 1));
    std::nth_element(values.begin(), at, values.end());
    return *at;
}
double median_of(std::vector<double> values) { return quantile_of(std::move(values), 0.5); }

std::vector<double> Stopwatch::repeats(const std::function<void(int64_t)>& body) const {
    const double limit = options_.quick ? options_.seconds / 3 : options_.seconds;
    std::vector<double> times;
    double spent = 0;
    body(0);  // warms up
    const size_t least = gpu_ ? kRepeatsOnGpu : kRepeats;
    for (int64_t i = 1; times.size() < least || (spent < limit && times.size() < 1000); ++i) {
        times.push_back(once(body, i));
        spent += times.back();
    }
    return times;
}

Peaks measure_peaks(Context& context) {
    Peaks out;
    for (const Unit& unit : units()) {
        const double peak = peak_of(unit, context);
        if (peak == 0) continue;
        out.of_units.emplace_back(&unit, peak);
        double& best = unit.bf16 ? out.bf16_dot : out.f32_fma;
        if (unit.device == SMLA_CPU || unit.bf16) best = std::max(best, peak);
    }
    return out;
}

Bench::Bench(Context& context, const BenchOptions& options)
    : context_(context),
      options_(options),
      stopwatch_(options_, context),
      peaks_(measure_peaks(context)),
      workspace_(context) {
    peaks_.memory = memory_peak();
}

double Bench::memory_peak() const {
    if (gpu()) {
        Device::Scope scope(context_.device());
        return bench::copy_peak_gbytes() * 1e9;
    }
    const size_t bytes = size_t(options_.quick ? 128 : 512) << 20;
    ThreadPool& pool = context_.pool();
    const size_t share = bytes / size_t(pool.threads()) / kPageBytes * kPageBytes;
    const std::unique_ptr<char[]> memory(new char[bytes]);
    // Each thread touches its share first, which places it in the memory nearest to it.
    pool.run(pool.threads(),
             [&](int64_t part, int) { std::memset(&memory[size_t(part) * share], 1, share); });
    std::atomic<uint64_t> sum = 0;
    const auto times = stopwatch_.repeats([&](int64_t) {
        pool.run(pool.threads(), [&](int64_t part, int) {
            sum += bench::read_in_order(&memory[size_t(part) * share], share);
        });
    });
    return double(share) * pool.threads() / median_of(times);
}

// A pool is filled once and shared by cases. `which` distinguishes the two caches of a call.
const smla_cache& Bench::pool(const ListShape& list, int64_t width, int which) {
    const int64_t rows = options_.quick ? kColdRows / 8 : list.pool_rows;
    smla_cache wanted = cache_of(list.format, width, rows, list.page_tokens);
    int same = 0;
    for (const smla_cache& each : filled_)
        if (each.format == wanted.format && each.width == wanted.width && each.pages == wanted.pages &&
            same++ == which)
            return each;
    Filler(pools_, filling_, kPoolSeed + filled_.size()).records(wanted);
    filled_.push_back(wanted);
    return filled_.back();
}

// Measures the peak of the kernel's unit just before and after the calls, because clocks drift during a run
// of several minutes. The first call of `body` selects the kernel.
void Bench::time(Measured& out, smla_dtype operands, const std::function<void(int64_t)>& body) {
    body(0);
    const Unit* const unit = unit_of(out.kernel, operands, context_);
    const double before = unit ? peak_of(*unit, context_) : 0;
    out.set(stopwatch_.repeats(body));
    if (!unit) return;
    out.unit = unit->name;
    out.peak_flops = (before + peak_of(*unit, context_)) / 2;
}

Measured Bench::attend(const AttendCase& test) {
    AttendShape shape = test.shape;
    const int64_t tokens = shape.tokens, variants = gpu() ? 1 : std::max<int64_t>(1, kVariants / tokens);
    shape.tokens *= variants;
    Memory memory;
    Filler filler(memory, filling_, kSeed);
    smla_attend_args args = attend_args(shape);
    filler.values(args.q, 3);
    filler.values(args.sink);
    int which = 0;
    for (smla_attend_source* source : {&args.primary, &args.extra}) {
        if (source->cache.format == SMLA_FORMAT_NONE) continue;
        source->cache = pool(source == &args.primary ? shape.primary : shape.extra, shape.width, which++);
        filler.rows(source->rows, source->cache);
        source->lengths = {};
    }
    memory.back(args.out);
    args.lse = {};
    const Placed placed(context_.device(), args);
    const auto call = [&](int64_t i) {
        smla_attend_args one = placed.args;
        take_tokens(i % variants * tokens, tokens, &one.q, &one.primary.rows, &one.extra.rows, &one.out);
        return one;
    };
    const Env env = context_.env(workspace_for<Stage::attend>(workspace_, call(0), context_));
    Measured out{.stage = "attend", .name = test.name, .flops = test.flops(), .bytes = test.bytes()};
    time(out, args.q.dtype, [&](int64_t i) { out.kernel = run_stage<Stage::attend>(call(i), env); });
    placed.copy_back();
    out.error = attend_error(args, 0, 2);
    return out;
}

Measured Bench::score(const ScoreCase& test) {
    Memory memory;
    Filler filler(memory, filling_, kSeed);
    smla_score_args args = score_args(test.shape);
    filler.fill(args);
    const Placed placed(context_.device(), args);
    const Env env = context_.env(workspace_for<Stage::score>(workspace_, placed.args, context_));
    Measured out{.stage = "score", .name = test.name, .flops = test.flops(), .bytes = test.bytes()};
    time(out, multiplied(placed.args),
         [&](int64_t) { out.kernel = run_stage<Stage::score>(placed.args, env); });
    placed.copy_back();
    const int64_t end = test.shape.columns - test.shape.tokens_per_request + 1;  // of the first token
    const int64_t sample = std::min<int64_t>(256, end);
    out.error = score_error(args, 0, end - sample, sample);
    return out;
}

Measured Bench::select(const SelectCase& test) {
    SelectShape shape = test.shape;
    const int64_t variants = gpu() ? 1 : kVariants;  // a GPU's caches are flushed
    shape.tokens *= variants;
    Memory memory;
    Filler filler(memory, filling_, kSeed);
    smla_select_args args = select_args(shape);
    filler.fill(args);
    const Placed placed(context_.device(), args);
    const auto call = [&](int64_t i) {
        smla_select_args one = placed.args;
        take_tokens(i % variants * test.shape.tokens, test.shape.tokens, &one.scores, &one.indices);
        return one;
    };
    const Env env = context_.env(workspace_for<Stage::select>(workspace_, call(0), context_));
    Measured out{.stage = "select", .name = test.name, .bytes = test.bytes()};
    out.set(stopwatch_.repeats([&](int64_t i) { out.kernel = run_stage<Stage::select>(call(i), env); }));
    placed.copy_back();
    out.error = double(wrong_indices(args, 0));
    return out;
}

Measured Bench::score_select(const FusedCase& test) {
    Memory memory;
    Filler filler(memory, filling_, kSeed);
    smla_score_select_args args = score_select_args(test.score, test.topk);
    filler.fill(args);
    const Placed placed(context_.device(), args);
    const Env env = context_.env(workspace_for<Stage::score_select>(workspace_, placed.args, context_));
    const ScoreCase work{test.name, test.score};
    Measured out{.stage = "score_select", .name = test.name, .flops = work.flops(), .bytes = work.bytes()};
    time(out, multiplied(placed.args.score),
         [&](int64_t) { out.kernel = run_stage<Stage::score_select>(placed.args, env); });
    placed.copy_back();
    const bool checked = test.score.columns <= 16384 && test.score.tokens_per_request == 1;
    out.error = checked ? selection_error(args, 0) : std::numeric_limits<double>::quiet_NaN();
    return out;
}

Measured Bench::project(const ProjectCase& test) {
    Memory memory;
    Filler filler(memory, filling_, kSeed);
    smla_project_args args{.struct_size = sizeof(smla_project_args)};
    float* const nowhere = nullptr;
    args.x = make_tensor(nowhere, test.x, {test.tokens, test.groups, test.inner});
    args.w = test.along_n ? make_tensor(nowhere, SMLA_BF16, {test.groups, test.inner, test.outer})
                          : make_tensor(nowhere, SMLA_BF16, {test.groups, test.outer, test.inner});
    args.out = make_tensor(nowhere, test.x, {test.tokens, test.groups, test.outer});
    filler.values(args.x);
    filler.values(args.w, 0.02f);
    memory.back(args.out);
    if (test.along_n) {
        std::swap(args.w.shape[1], args.w.shape[2]);
        std::swap(args.w.stride_elems[1], args.w.stride_elems[2]);
    }
    const Placed placed(context_.device(), args);
    const Env env = context_.env(workspace_for<Stage::project>(workspace_, placed.args, context_));
    Measured out{.stage = "project", .name = test.name, .flops = test.flops(), .bytes = test.bytes()};
    time(out, test.x, [&](int64_t) { out.kernel = run_stage<Stage::project>(placed.args, env); });
    placed.copy_back();
    const int64_t sample = std::min<int64_t>(64, test.outer), tokens = std::min<int64_t>(128, test.tokens);
    args.x = slice(args.x, 0, 0, tokens);
    args.out = slice(args.out, 0, 0, tokens);
    args.w = slice(args.w, 1, 0, sample);
    args.out = slice(args.out, 2, 0, sample);
    out.error = project_error(args);
    return out;
}

}  // namespace smla::cli
