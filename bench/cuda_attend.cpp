// attend on the cuda_mma engine of the first GPU. First its kernels against the oracle of tests/attend, on
// random and hostile problems; then times of the shapes in docs/kernels/cuda_attend.md. A time is that of one
// call of a captured graph of calls over different row lists, L2 flushed before each replay, median of 30.
// usage: cuda_attend [check] [time] [only=PART OF A CASE'S NAME] [sweep] [--gtest_filter=...]
#include "cuda_peaks.h"
#include "engines/context.h"
#include "engines/cuda_common/check.h"
#include "engines/cuda_mma/attend/run.h"
#include "engines/run.h"
#include "support.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace smla::bench {

namespace {

using namespace attend_test;

constexpr double kMmaWeights =
    0x1p-8;  // weights are rounded to bf16, as in the bf16 kernels of the cpu engine

Context make_context(bool batch_invariant, const char* kernel) {
    smla_context_args args{};
    args.struct_size = sizeof args;
    args.engine = SMLA_ENGINE_CUDA_MMA;
    args.batch_invariant = batch_invariant;
    args.kernel = kernel;
    return Context(args);
}

// A problem's buffers on the device, byte for byte, and its arguments pointing into them.
class OnDevice {
public:
    OnDevice(Device& device, Problem& problem) : device_(device), problem_(problem), args(problem.args) {
        add(problem.q);
        add(problem.primary_cache);
        add(problem.extra_cache);
        add(problem.primary_rows);
        add(problem.extra_rows);
        add(problem.primary_lengths);
        add(problem.extra_lengths);
        add(problem.sink);
        add(problem.out);
        add(problem.lse);
        add(problem.max_logits);
        for (Tensor* tensor : {&args.q, &args.primary.rows, &args.primary.lengths, &args.extra.rows,
                               &args.extra.lengths, &args.sink, &args.out, &args.lse, &args.max_logits})
            if (present(*tensor)) tensor->data = move(tensor->data), tensor->device_type = SMLA_CUDA;
        for (smla_cache* cache : {&args.primary.cache, &args.extra.cache})
            if (cache->format) cache->data = move(cache->data), cache->device_type = SMLA_CUDA;
    }
    void poison() {
        problem_.poison_outputs();
        for (Buffer& buffer : buffers_)
            if (buffer.host == problem_.out.data() || buffer.host == problem_.lse.data() ||
                buffer.host == problem_.max_logits.data())
                device_.upload(buffer.memory.data(), buffer.host, buffer.bytes, nullptr);
    }
    void fetch_outputs() {
        for (Buffer& buffer : buffers_)
            if (buffer.host == problem_.out.data() || buffer.host == problem_.lse.data() ||
                buffer.host == problem_.max_logits.data())
                device_.download(buffer.host, buffer.memory.data(), buffer.bytes, nullptr);
    }

private:
    struct Buffer {
        void* host;
        size_t bytes;
        DeviceBuffer memory;
    };
    template <class T>
    void add(std::vector<T>& host) {
        if (host.empty()) return;
        const size_t bytes = host.size() * sizeof(T);
        buffers_.push_back({host.data(), bytes, DeviceBuffer(device_, bytes)});
        device_.upload(buffers_.back().memory.data(), host.data(), bytes, nullptr);
    }
    void* move(const void* host) const {
        for (const Buffer& buffer : buffers_) {
            const auto at = static_cast<const char*>(host) - static_cast<const char*>(buffer.host);
            if (at >= 0 && size_t(at) < buffer.bytes) return static_cast<char*>(buffer.memory.data()) + at;
        }
        fail(SMLA_INTERNAL, "host", "an address of no buffer", "one of the problem's");
    }

    Device& device_;
    Problem& problem_;
    std::vector<Buffer> buffers_;

public:
    smla_attend_args args;
};

// Runs in a workspace of exactly what the kernel asks for, dirty behind its header, between canaries.
void run_guarded(Context& context, const smla_attend_args& args, size_t budget, const char* expected) {
    Device& device = context.device();
    const size_t bytes = stage_workspace<Stage::attend>(args, context.env({}), budget);
    DeviceBuffer memory(device, bytes + 256);
    device.fill(memory.data(), 0xFF, bytes + 256, nullptr);
    const Workspace workspace{memory.data(), bytes};
    context.init_workspace(workspace, nullptr);
    const char* name = run_stage<Stage::attend>(args, context.env(workspace));
    device.wait(nullptr);
    ASSERT_STREQ(name, expected);
    std::vector<uint8_t> seen(bytes + 256);
    device.download(seen.data(), memory.data(), seen.size(), nullptr);
    for (size_t i = 0; i < kWorkspaceHeader; ++i) ASSERT_EQ(seen[i], 0) << name << ": counter " << i;
    for (size_t i = bytes; i < seen.size(); ++i)
        ASSERT_EQ(seen[i], 0xFF) << name << " wrote past its scratch";
}

void check_one(Context& context, Problem& problem, const Expected& expected, size_t budget,
               const char* kernel) {
    SCOPED_TRACE(text(kernel, " budget ", budget, " ", problem.spec.name()));
    OnDevice on(context.device(), problem);
    std::unique_ptr<Bits> first;
    for (int run = 0; run < 2; ++run) {
        on.poison();
        run_guarded(context, on.args, budget, kernel);
        if (testing::Test::HasFatalFailure()) return;
        on.fetch_outputs();
        ASSERT_TRUE(!first || *first == Bits(problem)) << "other bits in a second run";
        first = std::make_unique<Bits>(problem);
    }
    const bool generic = std::strstr(kernel, "generic");
    const Candidate<smla_attend_args> named{.name = kernel, .refuse = {}, .workspace = {}, .run = {}};
    expect_close(named, problem, expected, generic ? 0 : kMmaWeights);
    problem.expect_canaries();
}

constexpr int64_t kMmaWidths[] = {576, 512};

// The generic kernel, and the mma kernel as it cuts the work itself, unsplit, and batch invariant.
void check_all_ways(Problem& problem) {
    const Expected expected = oracle(problem);
    const char* mma = problem.spec.width == 576 ? "cuda_mma_attend_576" : "cuda_mma_attend_512";
    Context generic = make_context(false, "attend=cuda_mma_generic");
    check_one(generic, problem, expected, 0, "cuda_mma_generic");
    Context free = make_context(false, nullptr);
    const std::string refusal = explain_stage<Stage::attend>(OnDevice(free.device(), problem).args,
                                                             free.env({}))[problem.spec.width == 576 ? 0 : 1]
                                    .refusal;
    const bool must =
        std::find(std::begin(kMmaWidths), std::end(kMmaWidths), problem.spec.width) != std::end(kMmaWidths) &&
        (problem.spec.q == SMLA_BF16 || problem.spec.q == SMLA_E4M3) &&
        problem.spec.precision != SMLA_PRECISION_EXACT;
    ASSERT_EQ(refusal.empty(), must) << refusal;
    if (!must) return;
    check_one(free, problem, expected, 0, mma);
    check_one(free, problem, expected, kWorkspaceHeader, mma);
    Context invariant = make_context(true, nullptr);
    check_one(invariant, problem, expected, 0, mma);
}
void check_all_ways(const Spec& spec) {
    Problem problem(spec);
    check_all_ways(problem);
}

constexpr smla_format kWide[] = {SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_576};
constexpr smla_format kNarrow[] = {SMLA_ROW_BF16, SMLA_FP8_528, SMLA_FP8_512, SMLA_FP8_584};

SourceSpec hostile(smla_format format, int64_t k) {
    return {.format = format,
            .k = k,
            .page_tokens = 24,
            .page_rows = 40,
            .pages = 20,
            .page_gap = 48 * 12,
            .holes = 0.3,
            .lengths = true};
}

TEST(CudaAttend, FormatsAndHeads) {
    for (const int heads : {1, 8, 16, 40, 64, 128}) {
        for (const smla_format format : kWide)
            check_all_ways({.tokens = 3,
                            .heads = heads,
                            .primary = {.format = format, .k = 200},
                            .precision = SMLA_PRECISION_ROUNDED});
        for (const smla_format format : kNarrow)
            check_all_ways({.tokens = 3,
                            .heads = heads,
                            .width = 512,
                            .primary = {.format = format, .k = 200},
                            .out = SMLA_BF16,
                            .precision = SMLA_PRECISION_ROUNDED});
        if (HasFatalFailure()) return;
    }
}

TEST(CudaAttend, HolesLengthsSinkTwoSources) {
    uint32_t seed = 1;
    for (const int heads : {5, 17, 64, 130})
        for (const int64_t k : {1, 33, 640}) {
            for (const smla_format format : kWide)
                check_all_ways({.tokens = 4,
                                .heads = heads,
                                .primary = hostile(format, k),
                                .precision = SMLA_PRECISION_ROUNDED,
                                .base = SMLA_LSE_LOG2,
                                .sink = true,
                                .head_padding = 2,
                                .seed = ++seed});
            for (const smla_format format : kNarrow)
                check_all_ways({.tokens = 4,
                                .heads = heads,
                                .width = 512,
                                .primary = hostile(format, k),
                                .extra = hostile(format == SMLA_FP8_528 ? SMLA_FP8_584 : format, k + 7),
                                .out = SMLA_F16,
                                .precision = SMLA_PRECISION_ROUNDED,
                                .sink = true,
                                .head_padding = 2,
                                .seed = ++seed});
            if (HasFatalFailure()) return;
        }
}

// Most tiles of 32 rows hold no row at all, in one source or both.
TEST(CudaAttend, EmptyTiles) {
    uint32_t seed = 50;
    for (const int heads : {16, 64})
        for (const double primary : {0.9, 0.98, 0.9995})
            for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_584}) {
                SourceSpec first = hostile(format, 1000), second = hostile(format, 500);
                first.holes = primary;
                second.holes = primary > 0.95 ? 0.5 : 0.99;
                check_all_ways({.tokens = 5,
                                .heads = heads,
                                .width = 512,
                                .primary = first,
                                .extra = second,
                                .precision = SMLA_PRECISION_ROUNDED,
                                .seed = ++seed});
            }
}

TEST(CudaAttend, GenericTakesAnything) {
    uint32_t seed = 100;
    for (const smla_dtype q : {SMLA_F32, SMLA_BF16, SMLA_F16, SMLA_E4M3})
        for (const int64_t width : {7, 48, 100, 1000}) {
            const smla_dtype out = q == SMLA_E4M3 ? SMLA_BF16 : SMLA_F32;
            for (const smla_format format : {SMLA_ROW_F32, SMLA_ROW_BF16})
                check_all_ways({.tokens = 3,
                                .heads = 3,
                                .width = width,
                                .value_width = (width + 1) / 2,
                                .primary = hostile(format, 50),
                                .extra = hostile(SMLA_ROW_F32, 9),
                                .q = q,
                                .out = out,
                                .sink = true,
                                .seed = ++seed});
        }
    for (const smla_format format : kWide)
        check_all_ways({.tokens = 2,
                        .heads = 4,
                        .primary = hostile(format, 90),
                        .q = SMLA_F32,
                        .precision = SMLA_PRECISION_EXACT,
                        .seed = ++seed});
    for (const smla_format format : {SMLA_FP8_528, SMLA_FP8_512})
        check_all_ways({.tokens = 2,
                        .heads = 4,
                        .width = 512,
                        .primary = hostile(format, 90),
                        .q = SMLA_BF16,
                        .precision = SMLA_PRECISION_EXACT,
                        .seed = ++seed});
}

TEST(CudaAttend, Fp8Queries) {
    for (const int heads : {16, 64})
        for (const smla_format format : {SMLA_FP8_576, SMLA_FP8_656, SMLA_ROW_BF16})
            check_all_ways({.tokens = 3,
                            .heads = heads,
                            .primary = hostile(format, 300),
                            .q = SMLA_E4M3,
                            .out = SMLA_BF16,
                            .precision = SMLA_PRECISION_ROUNDED,
                            .sink = true});
}

// Nothing listed, nothing valid, empty caches, NaN and infinities in listed rows.
TEST(CudaAttend, Edges) {
    for (const int heads : {16, 128})
        for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_656}) {
            check_all_ways({.tokens = 2,
                            .heads = heads,
                            .primary = {.format = format, .k = 0},
                            .precision = SMLA_PRECISION_ROUNDED,
                            .sink = true});
            check_all_ways({.tokens = 2,
                            .heads = heads,
                            .primary = {.format = format, .k = 70, .pages = 0},
                            .precision = SMLA_PRECISION_ROUNDED});
            Problem nan({.tokens = 3,
                         .heads = heads,
                         .primary = {.format = format, .k = 300, .pages = 16},
                         .precision = SMLA_PRECISION_ROUNDED});
            const CacheView view = nan.view(false);
            std::vector<float> values(576, std::numeric_limits<float>::quiet_NaN());
            const int32_t victim = nan.row(1, 123);
            view.encode(victim, values.data());
            for (const int64_t t : {0, 2})
                for (int64_t j = 0; j < 300; ++j)
                    if (nan.row(t, j) == victim) nan.row(t, j) = -1;
            check_all_ways(nan);
            if (HasFatalFailure()) return;
        }
    Problem infinite({.tokens = 2, .heads = 64, .primary = {.format = SMLA_ROW_BF16, .k = 100, .pages = 16}});
    std::vector<float> values(576, 0.f);
    values[575] = std::numeric_limits<float>::infinity();  // in no value: every logit is +inf or -inf
    for (int64_t j = 0; j < 100; ++j) infinite.view(false).encode(infinite.row(1, j), values.data());
    for (int64_t j = 0; j < 100; ++j) infinite.row(0, j) = -1;
    check_all_ways(infinite);
}

TEST(CudaAttend, ScalesOnTheDevice) {
    Problem problem({.tokens = 3,
                     .heads = 64,
                     .primary = hostile(SMLA_FP8_576, 100),
                     .q = SMLA_E4M3,
                     .out = SMLA_BF16,
                     .precision = SMLA_PRECISION_ROUNDED});
    const Expected expected = oracle(problem);
    Context context = make_context(false, nullptr);
    Device& device = context.device();
    OnDevice on(device, problem);
    const float scales[3] = {float(problem.args.softmax_scale), float(problem.args.q_scale),
                             problem.args.primary.cache.scale};
    DeviceBuffer memory(device, sizeof scales);
    device.upload(memory.data(), scales, sizeof scales, nullptr);
    const auto* at = static_cast<const float*>(memory.data());
    on.args.softmax_scale_device = at;
    on.args.q_scale_device = at + 1;
    on.args.primary.cache.scale_device = at + 2;
    on.args.softmax_scale = on.args.q_scale = 99;
    on.args.primary.cache.scale = 99;
    on.poison();
    run_guarded(context, on.args, 0, "cuda_mma_attend_576");
    on.fetch_outputs();
    const Candidate<smla_attend_args> named{.name = "mma", .refuse = {}, .workspace = {}, .run = {}};
    expect_close(named, problem, expected, kMmaWeights);
}

// ---- times ----

struct Shape {
    int64_t tokens;
    int heads, width;
    smla_format format;
    int64_t k, extra_k;
    int64_t region;  // rows that one token's lists come from
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

class Timer {
public:
    Timer() : context_(make_context(false, nullptr)), flush_(context_.device(), size_t(256) << 20) {
        SMLA_CUDA_CALL(cudaStreamCreate(&stream_));
        for (cudaEvent_t* event : {&begin_, &end_}) SMLA_CUDA_CALL(cudaEventCreate(event));
    }
    Device& device() { return context_.device(); }
    Env env() { return context_.env({}); }

    // Microseconds of one call; `forced` overrides the engine's own schedule.
    double run(const Shape& shape, const CachePool& pool, const cuda_attend::Schedule* forced);
    std::string last;  // kernel

private:
    double replay(cudaGraphExec_t graph, int calls) {
        std::vector<double> times;
        for (int i = 0; i < 33; ++i) {
            SMLA_CUDA_CALL(cudaMemsetAsync(flush_.data(), i, flush_.bytes(), stream_));
            SMLA_CUDA_CALL(cudaEventRecord(begin_, stream_));
            SMLA_CUDA_CALL(cudaGraphLaunch(graph, stream_));
            SMLA_CUDA_CALL(cudaEventRecord(end_, stream_));
            SMLA_CUDA_CALL(cudaEventSynchronize(end_));
            float ms = 0;
            SMLA_CUDA_CALL(cudaEventElapsedTime(&ms, begin_, end_));
            if (i >= 3) times.push_back(double(ms) * 1e3 / calls);
        }
        std::nth_element(times.begin(), times.begin() + 15, times.end());
        return times[15];
    }
    Context context_;
    DeviceBuffer flush_;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

double Timer::run(const Shape& shape, const CachePool& pool, const cuda_attend::Schedule* forced) {
    const int64_t t = shape.tokens, h = shape.heads, k = shape.k + shape.extra_k;
    const int calls = t <= 16 ? 12 : t <= 256 ? 3 : 1;
    std::mt19937 random(7);
    std::vector<uint16_t> q(size_t(t * h * shape.width));
    const size_t noise =
        std::min(q.size(), size_t(1) << 20);  // then repeated: half a billion draws take long
    for (size_t i = 0; i < noise; ++i) q[i] = f32_to_bf16(float(random() % 2000) * 1e-3f - 1.f);
    for (size_t i = noise; i < q.size(); ++i) q[i] = q[i - noise];
    std::vector<int32_t> rows(size_t(t * k * calls));
    for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t token = int64_t(i) / k;  // of all calls
        const int64_t base = token * shape.region % CachePool::kRows;
        rows[i] = int32_t(base + int64_t(random() % uint64_t(shape.region)));
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
    args.q = make_tensor(q_memory.data(), SMLA_BF16, {t, h, shape.width});
    args.out = make_tensor(out_memory.data(), SMLA_BF16, {t, h, 512});
    args.lse = make_tensor(lse_memory.data(), SMLA_F32, {t, h});
    for (Tensor* tensor : {&args.q, &args.out, &args.lse}) tensor->device_type = SMLA_CUDA;
    args.primary.cache = args.extra.cache = pool.cache;
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
        args.primary.rows = list(i * t * k, shape.k);
        if (shape.extra_k) args.extra.rows = list(i * t * k + shape.k, shape.extra_k);
        const Env env = context_.env({scratch.data(), bytes}, stream_);
        if (forced) cuda_attend::run_mma(args, *forced, env);
        else last = run_stage<Stage::attend>(args, env);
    };
    call(0);
    SMLA_CUDA_CALL(cudaStreamSynchronize(stream_));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    SMLA_CUDA_CALL(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call(i);
    SMLA_CUDA_CALL(cudaStreamEndCapture(stream_, &graph));
    SMLA_CUDA_CALL(cudaGraphInstantiate(&exec, graph, 0));
    const double us = replay(exec, calls);
    SMLA_CUDA_CALL(cudaGraphExecDestroy(exec));
    SMLA_CUDA_CALL(cudaGraphDestroy(graph));
    return us;
}

constexpr Shape kShapes[] = {
    {1, 128, 576, SMLA_ROW_BF16, 2048, 0, 65536},   {1, 16, 576, SMLA_ROW_BF16, 2048, 0, 65536},
    {16, 16, 576, SMLA_ROW_BF16, 2048, 0, 16384},   {16, 128, 576, SMLA_ROW_BF16, 2048, 0, 16384},
    {128, 8, 576, SMLA_ROW_BF16, 2048, 0, 8192},    {128, 16, 576, SMLA_ROW_BF16, 2048, 0, 8192},
    {128, 32, 576, SMLA_ROW_BF16, 2048, 0, 8192},   {128, 64, 576, SMLA_ROW_BF16, 2048, 0, 8192},
    {128, 128, 576, SMLA_ROW_BF16, 2048, 0, 8192},  {256, 128, 576, SMLA_ROW_BF16, 2048, 0, 4096},
    {4096, 128, 576, SMLA_ROW_BF16, 2048, 0, 8192}, {1, 128, 576, SMLA_FP8_656, 2048, 0, 65536},
    {1, 16, 576, SMLA_FP8_656, 2048, 0, 65536},     {16, 16, 576, SMLA_FP8_656, 2048, 0, 16384},
    {128, 8, 576, SMLA_FP8_656, 2048, 0, 8192},     {128, 16, 576, SMLA_FP8_656, 2048, 0, 8192},
    {128, 32, 576, SMLA_FP8_656, 2048, 0, 8192},    {128, 64, 576, SMLA_FP8_656, 2048, 0, 8192},
    {128, 128, 576, SMLA_FP8_656, 2048, 0, 8192},   {256, 128, 576, SMLA_FP8_656, 2048, 0, 4096},
    {4096, 128, 576, SMLA_FP8_656, 2048, 0, 8192},  {128, 16, 576, SMLA_FP8_576, 2048, 0, 8192},
    {256, 64, 512, SMLA_FP8_584, 128, 512, 4096},   {256, 128, 512, SMLA_FP8_584, 128, 1024, 4096},
    {256, 64, 512, SMLA_FP8_528, 640, 0, 4096},     {256, 64, 512, SMLA_FP8_512, 640, 0, 4096},
    {256, 64, 512, SMLA_ROW_BF16, 640, 0, 4096},
};

class Pools {
public:
    explicit Pools(Device& device) : device_(device) {}
    const CachePool& of(smla_format format, int width) {
        if (!pool_ || format != format_ || width != width_) {
            pool_.reset();
            pool_ = std::make_unique<CachePool>(device_, format, width);
            format_ = format, width_ = width;
        }
        return *pool_;
    }

private:
    Device& device_;
    std::unique_ptr<CachePool> pool_;
    smla_format format_ = SMLA_FORMAT_NONE;
    int width_ = 0;
};

std::string shape_name(const Shape& s) {
    return text(find_format(s.format)->name, s.format == SMLA_ROW_BF16 ? text("_", s.width) : "", " T",
                s.tokens, " H", s.heads, " K", s.k, s.extra_k ? text("+", s.extra_k) : "");
}

void time_all(const std::string& only) {
    Timer timer;
    Pools pools(timer.device());
    const double mma = mma_peak_tflops(), copy = copy_peak_gbytes();
    std::printf("%s: mma.sync bf16 %.0f TFLOP/s, device copy %.0f GB/s\n",
                timer.device().facts().name.c_str(), mma, copy);
    std::printf("%-30s %-20s %9s %8s %5s %8s %5s\n", "case", "kernel", "us", "TFLOP/s", "%", "GB/s", "%");
    for (const Shape& s : kShapes) {
        if (shape_name(s).find(only) == std::string::npos) continue;
        const CachePool& pool = pools.of(s.format, s.width);
        const double us = timer.run(s, pool, nullptr);
        const double keys = double(s.tokens * (s.k + s.extra_k));
        const double tflops = 2 * keys * s.heads * (s.width + 512) / us * 1e-6;
        const double record = double(find_format(s.format)->record_bytes(s.width));
        const double gbytes = keys * record / us * 1e-3;
        std::printf("%-30s %-20s %9.1f %8.0f %5.1f %8.0f %5.1f\n", shape_name(s).c_str(), timer.last.c_str(),
                    us, tflops, 100 * tflops / mma, gbytes, 100 * gbytes / copy);
        std::fflush(stdout);
    }
}

// Every tile and several splits, to set the costs of schedule.cpp by.
void sweep() {
    Timer timer;
    Pools pools(timer.device());
    constexpr int kSplits[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64};
    std::printf("%-28s", "us, splits:");
    for (const int splits : kSplits) std::printf(" %6d", splits);
    std::printf("\n");
    for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_656})
        for (const auto& [tokens, heads] :
             {std::pair(1, 16), {1, 128}, {4, 128}, {16, 16}, {16, 128}, {128, 16}})
            for (const int tile : {16, 64}) {
                if (tile > heads) continue;
                const Shape shape{tokens, heads, 576, format, 2048, 0, 8192};
                std::printf("%-20s tile %2d", shape_name(shape).c_str(), tile);
                for (const int splits : kSplits) {
                    if (tokens * splits > 1024) break;
                    const cuda_attend::Schedule plan{.heads = tile,
                                                     .tokens = tokens,
                                                     .all_heads = heads,
                                                     .splits = splits,
                                                     .coded = format != SMLA_ROW_BF16};
                    std::printf(" %6.1f", timer.run(shape, pools.of(format, 576), &plan));
                }
                std::printf("\n");
                std::fflush(stdout);
            }
}

}  // namespace

}  // namespace smla::bench

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    const auto asked = [&](const char* what) {
        for (int i = 1; i < argc; ++i)
            if (std::strcmp(argv[i], what) == 0) return true;
        return argc == 1 && std::strcmp(what, "sweep") != 0;
    };
    const int failed = asked("check") ? RUN_ALL_TESTS() : 0;
    std::string only;
    for (int i = 1; i < argc; ++i)
        if (std::strncmp(argv[i], "only=", 5) == 0) only = argv[i] + 5;
    if (asked("time")) smla::bench::time_all(only);
    if (asked("sweep")) smla::bench::sweep();
    return failed;
}
