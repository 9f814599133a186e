// attend on the cuda engine of the first GPU: times of the shapes in docs/kernels/log/cuda_attend.md, of
// calls over different row lists in a captured graph, L2 flushed before each replay. Two times, medians: from
// the start of a call's first kernel to the end of its last, as CUPTI records it, and a call's share of a
// replay of the graph, gaps between kernels included. tests/gpu checks the results.
//
// usage: cuda_attend [only=PART OF A CASE'S NAME] [kernel=NAME] [exact] [between] [alone] [sweep] [sweep_raw]
//            [check]
//            [FORMAT=TOKENS,HEADS,WIDTH,K,REGION ...] [FORMAT+EXTRA=TOKENS,HEADS,WIDTH,K,EXTRA_K,REGION ...]
// `kernel`: demanded instead of the engine's choice, so that on Hopper the mma kernels can be timed too.
// `exact`: with that precision; else rounded, as the peers compute.
// `between`: a call of map before each call, as in a model's step, where other code always comes in between.
// `alone`: one call per replay, so that each starts behind the write that flushes L2, as the peers time.
// `sweep`, `sweep_raw`: every tile of the mma kernels, of the one over raw records, with several splits.
// `check`: what check_indices costs, of attend and of map.
#include "cuda_kernel_times.h"
#include "cuda_peaks.h"
#include "engines/context.h"
#include "engines/cuda/attend/run.h"
#include "engines/cuda/common/check.h"
#include "engines/run.h"
#include "ops/attend/attend.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

namespace smla::bench {

namespace {

Context make_context(bool check_indices, const std::string& kernel) {
    smla_context_args args{};
    const std::string demand = "attend=" + kernel;
    if (!kernel.empty()) args.kernel = demand.c_str();
    args.check_indices = check_indices;
    args.struct_size = sizeof args;
    args.engine = SMLA_ENGINE_CUDA;
    return Context(args);
}

struct Shape {
    int64_t tokens;
    int heads, width;
    smla_format format;
    int64_t k, extra_k;
    int64_t region;  // rows that one token's lists come from; negative: the same for all tokens
    smla_format extra_format = SMLA_FORMAT_NONE;  // of the extra cache, where it is another one
};

// Random rows of every format, copied until caches are far larger than L2.
class CachePool {
public:
    static constexpr int64_t kRows = int64_t(1) << 20, kBlock = kRows / 16;
    CachePool(Device& device, smla_format format, int width) {
        const Format& found = *find_format(format);
        cache.format = format;
        cache.width = found.width ? 0 : width;
        cache.page_tokens = 64;
        cache.pages = kBlock / 64;
        cache.scale = found.scale == ScaleKind::per_tensor ? 0.02f : 0.f;
        std::vector<uint8_t> block(cache_bytes(cache));
        cache.data = block.data();
        std::vector<float> values(static_cast<size_t>(width));
        std::vector<float> noise(1 << 16);
        std::mt19937 random(3);
        std::normal_distribution<float> normal;
        for (float& v : noise) v = normal(random);
        const CacheView view(cache);
        for (int64_t r = 0; r < kBlock; ++r) {
            const size_t from = random() % (noise.size() - values.size());
            std::copy_n(noise.begin() + ptrdiff_t(from), values.size(), values.begin());
            view.encode(r, values.data());
        }
        memory = DeviceBuffer(device, block.size() * 16);
        for (size_t i = 0; i < 16; ++i)
            device.upload(static_cast<char*>(memory.data()) + i * block.size(), block.data(), block.size(),
                          nullptr);
        cache.data = memory.data();
        cache.pages *= 16;
        cache.device_type = SMLA_CUDA;
    }
    smla_cache cache{};

private:
    DeviceBuffer memory;
};

// map of T tokens with K random positions each.
class MapCall {
public:
    MapCall(Context& context, int64_t tokens, int64_t k) : context_(context) {
        constexpr int64_t kRequests = 16, kColumns = 1024, kPage = 64;
        std::mt19937 random(9);
        std::vector<int32_t> positions(size_t(tokens * k)), requests(static_cast<size_t>(tokens)),
            table(kRequests * kColumns);
        for (int32_t& each : positions) each = int32_t(random() % uint64_t(kColumns * kPage));
        for (int32_t& each : requests) each = int32_t(random() % kRequests);
        for (int32_t& each : table) each = int32_t(random() % table.size());
        args_.struct_size = sizeof args_;
        args_.page_tokens = kPage;
        args_.positions = placed(positions, {tokens, k});
        args_.request_of_token = placed(requests, {tokens});
        args_.block_table = placed(table, {kRequests, kColumns});
        args_.rows = placed(positions, {tokens, k});
        const size_t bytes =
            std::max(stage_workspace<Stage::map>(args_, context_.env({}), 0), kWorkspaceHeader);
        scratch_ = DeviceBuffer(context_.device(), bytes);
        context_.init_workspace({scratch_.data(), bytes}, nullptr);
    }
    void run(cudaStream_t stream) {
        run_stage<Stage::map>(args_, context_.env({scratch_.data(), scratch_.bytes()}, stream));
    }

private:
    Tensor placed(const std::vector<int32_t>& values, std::initializer_list<int64_t> shape) {
        Device& gpu = context_.device();
        memory_.emplace_back(gpu, values.size() * sizeof(int32_t));
        gpu.upload(memory_.back().data(), values.data(), memory_.back().bytes(), nullptr);
        Tensor out = make_tensor(memory_.back().data(), SMLA_I32, shape);
        out.device_type = SMLA_CUDA;
        return out;
    }
    Context& context_;
    std::vector<DeviceBuffer> memory_;
    DeviceBuffer scratch_;
    smla_map_args args_{};
};

struct Times {                         // of one call, in microseconds
    double replayed = 0, kernels = 0;  // kernels: 0 without CUPTI
};

class Timer {
public:
    smla_precision precision = SMLA_PRECISION_ROUNDED;
    bool alone = false;
    explicit Timer(const std::string& kernel, bool check_indices = false, bool between = false)
        : context_(make_context(check_indices, kernel)), flush_(context_.device(), size_t(256) << 20) {
        SMLA_CUDA_CALL(cudaStreamCreate(&stream_));
        for (cudaEvent_t* event : {&begin_, &end_}) SMLA_CUDA_CALL(cudaEventCreate(event));
        if (between) between_ = std::make_unique<MapCall>(context_, 16, 2048);
    }
    Device& device() { return context_.device(); }
    Env env() { return context_.env({}); }

    // `forced` overrides the engine's own schedule.
    struct Pair {
        const CachePool &primary, &extra;
    };
    Times run(const Shape& shape, const Pair& pools, const cuda_attend::Schedule* forced);
    // map of T tokens with K positions each, in a graph.
    double run_map(int64_t tokens, int64_t k);
    std::string last;  // kernel

private:
    struct Graph {
        cudaGraphExec_t exec = nullptr;
        explicit Graph(cudaGraph_t captured) { SMLA_CUDA_CALL(cudaGraphInstantiate(&exec, captured, 0)); }
        ~Graph() { cudaGraphExecDestroy(exec); }
    };
    void replay(cudaGraphExec_t graph) {
        SMLA_CUDA_CALL(cudaMemsetAsync(flush_.data(), 1, flush_.bytes(), stream_));
        SMLA_CUDA_CALL(cudaEventRecord(begin_, stream_));
        SMLA_CUDA_CALL(cudaGraphLaunch(graph, stream_));
        SMLA_CUDA_CALL(cudaEventRecord(end_, stream_));
        SMLA_CUDA_CALL(cudaEventSynchronize(end_));
    }
    double time_replays(cudaGraph_t captured, int calls) {
        const Graph graph(captured);
        std::vector<double> times;
        for (int i = 0; i < kWarm + kReplays; ++i) {
            replay(graph.exec);
            float ms = 0;
            SMLA_CUDA_CALL(cudaEventElapsedTime(&ms, begin_, end_));
            if (i >= kWarm) times.push_back(double(ms) * 1e3 / calls);
        }
        return median(times);
    }
    double time_kernels(cudaGraph_t captured, int calls) {
        if (!KernelRecording::possible()) return 0;
        KernelRecording recording;
        const Graph graph(captured);
        for (int i = 0; i < kWarm + kReplays; ++i) replay(graph.exec);
        const std::vector<KernelSpan> spans = recording.take();
        const size_t all_calls = size_t(calls) * (kWarm + kReplays), per_call = spans.size() / all_calls;
        if (per_call == 0 || spans.size() % all_calls) return 0;
        std::vector<double> times;
        for (size_t i = kWarm * size_t(calls) * per_call; i < spans.size(); i += per_call) {
            const size_t first = i + (between_ ? 1 : 0);
            uint64_t end = 0;
            for (size_t k = first; k < i + per_call; ++k) end = std::max(end, spans[k].end_ns);
            times.push_back(double(end - spans[first].start_ns) * 1e-3);
        }
        return median(times);
    }
    static double median(std::vector<double>& times) {
        const auto middle = times.begin() + ptrdiff_t(times.size() / 2);
        std::nth_element(times.begin(), middle, times.end());
        return *middle;
    }
    static constexpr int kWarm = 3, kReplays = 30;
    Context context_;
    DeviceBuffer flush_;
    std::unique_ptr<MapCall> between_;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

Times Timer::run(const Shape& shape, const Pair& pools, const cuda_attend::Schedule* forced) {
    const int64_t t = shape.tokens, h = shape.heads, k = shape.k + shape.extra_k;
    const int calls = alone ? 1 : t <= 16 ? 12 : t <= 256 ? 3 : 1;
    std::mt19937 random(7);
    std::vector<uint16_t> q(size_t(t * h * shape.width));
    const size_t noise =
        std::min(q.size(), size_t(1) << 20);  // then repeated: half a billion draws take long
    for (size_t i = 0; i < noise; ++i) q[i] = f32_to_bf16(float(random() % 2000) * 1e-3f - 1.f);
    for (size_t i = noise; i < q.size(); ++i) q[i] = q[i - noise];
    std::vector<int32_t> rows(size_t(t * k * calls));
    for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t token = int64_t(i) / k;  // of all calls
        const int64_t base = std::max<int64_t>(shape.region, 0) * token % CachePool::kRows;
        rows[i] = int32_t(base + int64_t(random() % uint64_t(std::abs(shape.region))));
    }
    Device& gpu = device();
    DeviceBuffer q_memory(gpu, q.size() * 2), rows_memory(gpu, rows.size() * 4),
        out_memory(gpu, size_t(t * h) * 1024), lse_memory(gpu, size_t(t * h) * 4);
    gpu.upload(q_memory.data(), q.data(), q.size() * 2, nullptr);
    gpu.upload(rows_memory.data(), rows.data(), rows.size() * 4, nullptr);
    gpu.fill(out_memory.data(), 0xFF, out_memory.bytes(), nullptr);
    smla_attend_args args{};
    args.struct_size = sizeof args;
    args.softmax_scale = 0.04f;
    args.precision = precision;
    args.q = make_tensor(q_memory.data(), SMLA_BF16, {t, h, shape.width});
    args.out = make_tensor(out_memory.data(), SMLA_BF16, {t, h, 512});
    args.lse = make_tensor(lse_memory.data(), SMLA_F32, {t, h});
    for (Tensor* tensor : {&args.q, &args.out, &args.lse}) tensor->device_type = SMLA_CUDA;
    args.primary.cache = pools.primary.cache, args.extra.cache = pools.extra.cache;
    if (!shape.extra_k) args.extra.cache.format = SMLA_FORMAT_NONE;
    const auto list = [&](int64_t first, int64_t count) {
        Tensor out = make_tensor(static_cast<int32_t*>(rows_memory.data()) + first, SMLA_I32, {t, count});
        out.stride_elems[0] = k;
        out.device_type = SMLA_CUDA;
        return out;
    };
    args.primary.rows = list(0, shape.k);
    if (shape.extra_k) args.extra.rows = list(0, shape.extra_k);
    const size_t bytes = forced ? forced->workspace() : stage_workspace<Stage::attend>(args, env(), 0);
    DeviceBuffer scratch(gpu, bytes);
    context_.init_workspace({scratch.data(), bytes}, nullptr);
    const auto call = [&](int i) {
        if (between_) between_->run(stream_);
        args.primary.rows = list(i * t * k, shape.k);
        if (shape.extra_k) args.extra.rows = list(i * t * k + shape.k, shape.extra_k);
        const Env env = context_.env({scratch.data(), bytes}, stream_);
        if (forced) forced->shape->run(args, *forced, env);
        else last = run_stage<Stage::attend>(args, env);
    };
    call(0);
    SMLA_CUDA_CALL(cudaStreamSynchronize(stream_));
    cudaGraph_t graph;
    SMLA_CUDA_CALL(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call(i);
    SMLA_CUDA_CALL(cudaStreamEndCapture(stream_, &graph));
    const Times times = {time_replays(graph, calls), time_kernels(graph, calls)};
    SMLA_CUDA_CALL(cudaGraphDestroy(graph));
    return times;
}

double Timer::run_map(int64_t tokens, int64_t k) {
    constexpr int kCalls = 12;
    MapCall map(context_, tokens, k);
    map.run(stream_);
    SMLA_CUDA_CALL(cudaStreamSynchronize(stream_));
    cudaGraph_t graph;
    SMLA_CUDA_CALL(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kCalls; ++i) map.run(stream_);
    SMLA_CUDA_CALL(cudaStreamEndCapture(stream_, &graph));
    const double us = time_replays(graph, kCalls);
    SMLA_CUDA_CALL(cudaGraphDestroy(graph));
    return us;
}

constexpr Shape kShapes[] = {
    {1, 128, 576, SMLA_ROW_BF16, 2048, 0, 65536},
    {1, 16, 576, SMLA_ROW_BF16, 2048, 0, 65536},
    {16, 16, 576, SMLA_ROW_BF16, 2048, 0, 16384},
    {16, 128, 576, SMLA_ROW_BF16, 2048, 0, 16384},
    {128, 8, 576, SMLA_ROW_BF16, 2048, 0, 8192},
    {128, 16, 576, SMLA_ROW_BF16, 2048, 0, 8192},
    {128, 32, 576, SMLA_ROW_BF16, 2048, 0, 8192},
    {128, 64, 576, SMLA_ROW_BF16, 2048, 0, 8192},
    {128, 128, 576, SMLA_ROW_BF16, 2048, 0, 8192},
    {256, 128, 576, SMLA_ROW_BF16, 2048, 0, 4096},
    {4096, 128, 576, SMLA_ROW_BF16, 2048, 0, -8192},
    {1, 128, 576, SMLA_FP8_656, 2048, 0, 65536},
    {1, 16, 576, SMLA_FP8_656, 2048, 0, 65536},
    {16, 16, 576, SMLA_FP8_656, 2048, 0, 16384},
    {128, 8, 576, SMLA_FP8_656, 2048, 0, 8192},
    {128, 16, 576, SMLA_FP8_656, 2048, 0, 8192},
    {128, 32, 576, SMLA_FP8_656, 2048, 0, 8192},
    {128, 64, 576, SMLA_FP8_656, 2048, 0, 8192},
    {128, 128, 576, SMLA_FP8_656, 2048, 0, 8192},
    {256, 128, 576, SMLA_FP8_656, 2048, 0, 4096},
    {4096, 128, 576, SMLA_FP8_656, 2048, 0, -8192},
    {128, 16, 576, SMLA_FP8_576, 2048, 0, 8192},
    {256, 64, 512, SMLA_FP8_584, 128, 512, 4096},
    {256, 128, 512, SMLA_FP8_584, 128, 1024, 4096},
    {256, 64, 512, SMLA_FP8_528, 640, 0, 4096},
    {256, 64, 512, SMLA_FP8_512, 640, 0, 4096},
    {256, 64, 512, SMLA_ROW_BF16, 640, 0, 4096},
    {256, 64, 512, SMLA_FP8_528_G32, 128, 512, 4096, SMLA_NVFP4_288},
    {256, 128, 512, SMLA_FP8_528_G32, 128, 1024, 4096, SMLA_NVFP4_288},
};

class Pools {
public:
    explicit Pools(Device& device) : device_(device) {}
    Timer::Pair of(const Shape& s) {
        const bool mixed = s.extra_format != SMLA_FORMAT_NONE && s.extra_format != s.format;
        if (!mixed) extra_ = {};
        const CachePool& primary = make(primary_, s.format, s.width);
        return {primary, mixed ? make(extra_, s.extra_format, s.width) : primary};
    }

private:
    struct Kept {
        std::unique_ptr<CachePool> pool;
        smla_format format = SMLA_FORMAT_NONE;
        int width = 0;
    };
    const CachePool& make(Kept& kept, smla_format format, int width) {
        if (!kept.pool || format != kept.format || width != kept.width) {
            kept.pool.reset();
            kept = {std::make_unique<CachePool>(device_, format, width), format, width};
        }
        return *kept.pool;
    }
    Device& device_;
    Kept primary_, extra_;
};

std::string shape_name(const Shape& s) {
    return text(find_format(s.format)->name, s.format == SMLA_ROW_BF16 ? text("_", s.width) : "",
                s.extra_format ? text("+", find_format(s.extra_format)->name) : "", " T", s.tokens, " H",
                s.heads, " K", s.k, s.extra_k ? text("+", s.extra_k) : "");
}

double bytes_of(const Shape& s) {  // of listed rows
    const auto record = [&](smla_format format) {
        return double(find_format(format)->record_bytes(s.width));
    };
    const smla_format extra = s.extra_format ? s.extra_format : s.format;
    return double(s.tokens) * (double(s.k) * record(s.format) + double(s.extra_k) * record(extra));
}

struct Options {
    std::string only, kernel;
    bool exact = false, between = false, alone = false, sweep = false, sweep_raw = false, check = false;
    std::vector<Shape> shapes;
};

void time_all(const Options& options) {
    Timer timer(options.kernel, false, options.between);
    timer.alone = options.alone;
    if (options.exact) timer.precision = SMLA_PRECISION_EXACT;
    Pools pools(timer.device());
    const double mma = mma_peak_tflops(), copy = copy_peak_gbytes();
    std::printf("%s: mma.sync bf16 %.0f TFLOP/s, device copy %.0f GB/s\n",
                timer.device().facts().name.c_str(), mma, copy);
    std::printf("%-30s %-20s %9s %9s %8s %5s %8s %5s\n", "case", "kernel", "us", "in graph", "TFLOP/s", "%",
                "GB/s", "%");
    for (const Shape& s : options.shapes) {
        if (shape_name(s).find(options.only) == std::string::npos) continue;
        const Times times = timer.run(s, pools.of(s), nullptr);
        const double us = times.kernels ? times.kernels : times.replayed;
        const double keys = double(s.tokens * (s.k + s.extra_k));
        const double tflops = 2 * keys * s.heads * (s.width + 512) / us * 1e-6;
        const double gbytes = bytes_of(s) / us * 1e-3;
        std::printf("%-30s %-20s %9.1f %9.1f %8.0f %5.1f %8.0f %5.1f\n", shape_name(s).c_str(),
                    timer.last.c_str(), us, times.replayed, tflops, 100 * tflops / mma, gbytes,
                    100 * gbytes / copy);
        std::fflush(stdout);
    }
}

// Microseconds of a call in a captured graph, plain and with check_indices.
void cost_of_checks(const std::string& only, const std::string& kernel, const std::vector<Shape>& shapes) {
    Timer plain(kernel), checking(kernel, true);
    Pools pools(plain.device());
    std::printf("%s\n%-30s %9s %9s %8s\n", plain.device().facts().name.c_str(), "in a graph, us", "plain",
                "checked", "cost %");
    const auto print = [](const std::string& name, double without, double with) {
        std::printf("%-30s %9.2f %9.2f %8.2f\n", name.c_str(), without, with, 100 * (with / without - 1));
        std::fflush(stdout);
    };
    for (const Shape& s : shapes) {
        if (shape_name(s).find(only) == std::string::npos) continue;
        const Timer::Pair caches = pools.of(s);
        const double without = plain.run(s, caches, nullptr).replayed;
        print(shape_name(s), without, checking.run(s, caches, nullptr).replayed);
    }
    print("map T128 K2048", plain.run_map(128, 2048), checking.run_map(128, 2048));
}

// Every block shape of a kernel and several splits, to fit the costs of schedule.cpp: a call's share of a
// replay.
void sweep(const char* kernel) {
    Timer timer("");
    Pools pools(timer.device());
    constexpr int kSplits[] = {1, 2, 3, 4, 6, 8, 11, 16, 32, 64};
    std::printf("%-36s", "us, splits:");
    for (const int splits : kSplits) std::printf(" %6d", splits);
    std::printf("\n");
    constexpr std::pair<int64_t, int> kSizes[] = {{1, 16},  {1, 128}, {4, 128},  {8, 16},   {16, 16},
                                                  {16, 64}, {64, 64}, {16, 128}, {128, 16}, {128, 128}};
    for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_656})
        for (const auto& [tokens, heads] : kSizes)
            for (const cuda_attend::BlockShape& shape_of_block : cuda_attend::block_shapes()) {
                if (std::strcmp(shape_of_block.kernel, kernel) != 0 || shape_of_block.heads > heads ||
                    !(shape_of_block.formats & format_bit(format)))
                    continue;
                const Shape shape{tokens, heads, 576, format, 2048, 0, 8192};
                std::printf("%-20s tile %2d, %d groups", shape_name(shape).c_str(), shape_of_block.heads,
                            shape_of_block.warpgroups);
                for (const int splits : kSplits) {
                    if (tokens * splits > 1024 || splits * shape_of_block.tile_keys > shape.k) break;
                    const cuda_attend::Schedule plan{
                        .shape = &shape_of_block, .tokens = tokens, .all_heads = heads, .splits = splits};
                    std::printf(" %6.1f", timer.run(shape, pools.of(shape), &plan).replayed);
                }
                std::printf("\n");
                std::fflush(stdout);
            }
}

}  // namespace

}  // namespace smla::bench

// FORMAT=T,H,WIDTH,K,REGION or FORMAT+EXTRA=T,H,WIDTH,K,EXTRA_K,REGION, with names of formats that exist.
static bool parse_shape(const char* word, smla::bench::Shape& out) {
    long long tokens, k, extra_k = 0, region;
    int heads, width;
    char format[32], extra[32];
    const bool one = std::sscanf(word, "%31[a-z0-9_]=%lld,%d,%d,%lld,%lld", format, &tokens, &heads, &width,
                                 &k, &region) == 6;
    if (!one && std::sscanf(word, "%31[a-z0-9_]+%31[a-z0-9_]=%lld,%d,%d,%lld,%lld,%lld", format, extra,
                            &tokens, &heads, &width, &k, &extra_k, &region) != 8)
        return false;
    const auto id = [](const char* name) {
        const smla::Format* const found = smla::find_format(std::string_view(name));
        if (!found) std::fprintf(stderr, "no format is named %s\n", name), std::exit(2);
        return found->id;
    };
    out = {tokens, heads, width, id(format), k, extra_k, region, one ? SMLA_FORMAT_NONE : id(extra)};
    return tokens > 0 && heads > 0 && width > 0 && k >= 0 && extra_k >= 0 && region != 0;
}

// Whether the word is one of the usage's.
static bool parse_word(const std::string& word, smla::bench::Options& out) {
    smla::bench::Shape shape{};
    if (word.starts_with("only=")) out.only = word.substr(5);
    else if (word.starts_with("kernel=")) out.kernel = word.substr(7);
    else if (word == "exact") out.exact = true;
    else if (word == "between") out.between = true;
    else if (word == "alone") out.alone = true;
    else if (word == "sweep") out.sweep = true;
    else if (word == "sweep_raw") out.sweep_raw = true;
    else if (word == "check") out.check = true;
    else if (parse_shape(word.c_str(), shape)) out.shapes.push_back(shape);
    else return false;
    return true;
}

int main(int argc, char** argv) try {
    smla::bench::Options options;
    for (int i = 1; i < argc; ++i)
        if (!parse_word(argv[i], options)) {
            std::fprintf(stderr,
                         "%s: no option, and no FORMAT=TOKENS,HEADS,WIDTH,K,REGION above 0 (REGION: not 0)\n",
                         argv[i]);
            return 2;
        }
    if (options.shapes.empty())
        options.shapes.assign(std::begin(smla::bench::kShapes), std::end(smla::bench::kShapes));
    if (options.check) smla::bench::cost_of_checks(options.only, options.kernel, options.shapes);
    else if (options.sweep || options.sweep_raw)
        smla::bench::sweep(options.sweep_raw ? smla::cuda_attend::kSm90Raw : smla::cuda_attend::kMma);
    else smla::bench::time_all(options);
} catch (const smla::Error& error) {
    std::fprintf(stderr, "%s: got %s, wants %s\n", error.field.c_str(), error.got.c_str(),
                 error.wanted.c_str());
    return 1;
}
