// The attend kernels of cuda_mma against the oracle of tests/attend, on random and hostile problems: every
// format, heads that fill no tile, holes, lengths, empty tiles, two sources, sinks, NaN and infinities, the
// work cut in every way, scratch between canaries, the same bits twice.
#include "attend/support.h"
#include "engines/context.h"
#include "engines/run.h"
#include "formats/layouts.h"
#include "gpu/needs_gpu.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

namespace {

using namespace smla;
using namespace attend_test;

// Weights are rounded to bf16, as in the bf16 kernels of the cpu engine; where all values are codes, they,
// their scales and their product are rounded to f16.
double mma_weights(const Spec& spec) {
    for (const smla_format format : {spec.primary.format, spec.extra.format})
        if (format == SMLA_ROW_BF16 || format == SMLA_FP8_584) return 0x1p-8;
    return 0x1.8p-10;
}

class CudaAttend : public testing::Test {
protected:
    void SetUp() override { SMLA_NEEDS_GPU(); }
};

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
    expect_close(named, problem, expected, generic ? 0 : mma_weights(problem.spec));
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
    const auto bf16_rope = [](smla_format format) {
        return format == SMLA_FP8_656 || format == SMLA_FP8_584;
    };
    const smla_format first = problem.spec.primary.format, second = problem.spec.extra.format;
    const bool must =
        std::find(std::begin(kMmaWidths), std::end(kMmaWidths), problem.spec.width) != std::end(kMmaWidths) &&
        (problem.spec.q == SMLA_BF16 || problem.spec.q == SMLA_E4M3) &&
        (!second || bf16_rope(first) == bf16_rope(second));
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

TEST_F(CudaAttend, FormatsAndHeads) {
    for (const int heads : {1, 8, 16, 40, 64, 128}) {
        for (const smla_format format : kWide)
            check_all_ways({.tokens = 3,
                            .heads = heads,
                            .primary = {.format = format, .k = 200},
                            .precision = SMLA_PRECISION_EXACT});
        for (const smla_format format : kNarrow)
            check_all_ways({.tokens = 3,
                            .heads = heads,
                            .width = 512,
                            .primary = {.format = format, .k = 200},
                            .out = SMLA_BF16,
                            .precision = SMLA_PRECISION_EXACT});
        if (HasFatalFailure()) return;
    }
}

TEST_F(CudaAttend, HolesLengthsSinkTwoSources) {
    uint32_t seed = 1;
    for (const int heads : {5, 17, 64, 130})
        for (const int64_t k : {1, 33, 640}) {
            for (const smla_format format : kWide)
                check_all_ways({.tokens = 4,
                                .heads = heads,
                                .primary = hostile(format, k),
                                .precision = SMLA_PRECISION_EXACT,
                                .base = SMLA_LSE_LOG2,
                                .sink = true,
                                .head_padding = 2,
                                .seed = ++seed});
            for (const smla_format format : kNarrow)
                check_all_ways({.tokens = 4,
                                .heads = heads,
                                .width = 512,
                                .primary = hostile(format, k),
                                .extra = hostile(format == SMLA_FP8_528 ? SMLA_FP8_512 : format, k + 7),
                                .out = SMLA_F16,
                                .precision = SMLA_PRECISION_EXACT,
                                .sink = true,
                                .head_padding = 2,
                                .seed = ++seed});
            if (HasFatalFailure()) return;
        }
}

// Most tiles of 32 rows hold no row at all, in one source or both.
TEST_F(CudaAttend, EmptyTiles) {
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
                                .precision = SMLA_PRECISION_EXACT,
                                .seed = ++seed});
            }
}

TEST_F(CudaAttend, GenericTakesAnything) {
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
                        .extra = hostile(SMLA_FP8_584, 30),
                        .q = SMLA_BF16,
                        .precision = SMLA_PRECISION_EXACT,
                        .seed = ++seed});
}

TEST_F(CudaAttend, Fp8Queries) {
    for (const int heads : {16, 64})
        for (const smla_format format : {SMLA_FP8_576, SMLA_FP8_656, SMLA_ROW_BF16})
            check_all_ways({.tokens = 3,
                            .heads = heads,
                            .primary = hostile(format, 300),
                            .q = SMLA_E4M3,
                            .out = SMLA_BF16,
                            .precision = SMLA_PRECISION_EXACT,
                            .sink = true});
}

// Rows of queries that begin between two pieces of 16 bytes: pairs of values are aligned, no more.
TEST_F(CudaAttend, QueriesBetweenPieces) {
    for (const int heads : {16, 64})
        for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_584}) {
            const int width = format == SMLA_FP8_584 ? 512 : 576;
            Problem problem(
                {.tokens = 3, .heads = heads, .width = width, .primary = hostile(format, 300), .sink = true});
            problem.q.insert(problem.q.begin(), 4, uint8_t(0xFF));
            problem.args.q.data = problem.q.data() + 4;
            check_all_ways(problem);
            if (HasFatalFailure()) return;
        }
}

// Nothing listed, nothing valid, empty caches, NaN and infinities in listed rows; one token in many splits.
TEST_F(CudaAttend, Edges) {
    check_all_ways({.tokens = 1, .heads = 100, .primary = hostile(SMLA_FP8_656, 3000), .sink = true});
    for (const int heads : {16, 128})
        for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_656}) {
            check_all_ways({.tokens = 2,
                            .heads = heads,
                            .primary = {.format = format, .k = 0},
                            .precision = SMLA_PRECISION_EXACT,
                            .sink = true});
            check_all_ways({.tokens = 2,
                            .heads = heads,
                            .primary = {.format = format, .k = 70, .pages = 0},
                            .precision = SMLA_PRECISION_EXACT});
            Problem nan({.tokens = 3,
                         .heads = heads,
                         .primary = {.format = format, .k = 300, .pages = 16},
                         .precision = SMLA_PRECISION_EXACT});
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

// Scales of the last 128 codes, fp8_584: 64, of every third row are 2^-40 to 2^40 times what they were, or 0,
// or below 0; queries are 0 there, so that the rows weigh what they did.
void scatter_scales(Problem& problem) {
    const CacheView cache = problem.view(false);
    const bool e8m0 = problem.spec.primary.format == SMLA_FP8_584;
    std::uniform_int_distribution<int> power(-40, 40);
    for (int64_t row = 0; row < cache.capacity; row += 3) {
        const int64_t token = row % cache.page_rows;
        if (token >= cache.page_tokens) continue;
        char* const page = cache.data + row / cache.page_rows * cache.page_stride;
        if (e8m0) {
            char& code = page[layout::Fp8_584::scales_at(cache.page_tokens, token) + 6];
            code = char(std::clamp(int(uint8_t(code)) + power(problem.rng), 0, 254));
            continue;
        }
        char* const at = page + token * cache.row_stride + layout::Fp8_656::scales_at + 4 * 3;
        float scale;
        std::memcpy(&scale, at, 4);
        scale *= row % 5 == 0 ? 0.f : std::exp2(float(power(problem.rng))) * (row % 7 == 0 ? -1.f : 1.f);
        std::memcpy(at, &scale, 4);
    }
    auto* const q = reinterpret_cast<uint16_t*>(problem.args.q.data);
    const auto& stride = problem.args.q.stride_elems;
    for (int64_t t = 0; t < problem.spec.tokens; ++t)
        for (int64_t h = 0; h < problem.spec.heads; ++h)
            for (int64_t d = 384; d < (e8m0 ? 448 : 512); ++d) q[t * stride[0] + h * stride[1] + d] = 0;
}

// Out of the range of f16, in one tile with scales that are in it, first or later.
TEST_F(CudaAttend, ScalesOfAnySize) {
    uint32_t seed = 200;
    for (const int heads : {16, 32, 64})
        for (const smla_format format : {SMLA_FP8_656, SMLA_FP8_528, SMLA_FP8_584}) {
            Problem problem({.tokens = 4,
                             .heads = heads,
                             .width = format == SMLA_FP8_656 ? 576 : 512,
                             .primary = hostile(format, 300),
                             .precision = SMLA_PRECISION_EXACT,
                             .seed = ++seed});
            scatter_scales(problem);
            check_all_ways(problem);
            if (HasFatalFailure()) return;
        }
    for (const float scale : {1e-30f, 1e-5f, 1e5f, 1e20f}) {
        Problem problem({.tokens = 2,
                         .heads = 64,
                         .primary = {.format = SMLA_FP8_576, .k = 100},
                         .precision = SMLA_PRECISION_EXACT,
                         .seed = ++seed});
        problem.args.softmax_scale *= problem.args.primary.cache.scale / scale;
        problem.args.primary.cache.scale = scale;
        check_all_ways(problem);
    }
}

// Each head has its own power of two; one that is infinite or NaN concerns no other.
TEST_F(CudaAttend, QueriesOfAnySize) {
    for (const int heads : {16, 32, 64})
        for (const smla_format format :
             {SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_576, SMLA_FP8_584, SMLA_FP8_512}) {
            Problem problem({.tokens = 3,
                             .heads = heads,
                             .width = format == SMLA_FP8_584 || format == SMLA_FP8_512 ? 512 : 576,
                             .primary = hostile(format, 200),
                             .precision = SMLA_PRECISION_EXACT,
                             .seed = uint32_t(heads)});
            auto* const q = reinterpret_cast<uint16_t*>(problem.args.q.data);
            const auto& stride = problem.args.q.stride_elems;
            for (int64_t t = 0; t < 3; ++t)
                for (int64_t h = 0; h < heads; ++h) {
                    uint16_t* const row = q + t * stride[0] + h * stride[1];
                    const float by = std::exp2(float(h % 8 * 12 - 80));  // to 2^4: logits stay finite
                    for (int64_t d = 0; d < problem.spec.width; ++d)
                        row[d] = f32_to_bf16(bf16_to_f32(row[d]) * by);
                    if (h % 8 == 6) row[7] = t == 1 ? 0x7f80 : 0x7fc0;  // inf, NaN
                    if (h % 8 == 5) row[500] = f32_to_bf16(1e30f * float(t));
                    if (h % 8 == 4) std::fill_n(row, problem.spec.width, uint16_t(0));
                }
            check_all_ways(problem);
            if (HasFatalFailure()) return;
        }
}

// Heads of zeros beside holes, and scales that make next to nothing of any product.
TEST_F(CudaAttend, ProductsOfAnySize) {
    for (const int heads : {16, 32, 64})
        for (const double scale : {1e-38, 1e-9}) {
            Problem problem({.tokens = 2,
                             .heads = heads,
                             .primary = hostile(SMLA_FP8_656, 70),
                             .precision = SMLA_PRECISION_EXACT,
                             .seed = uint32_t(heads)});
            auto* const q = reinterpret_cast<uint16_t*>(problem.args.q.data);
            std::fill_n(q + problem.args.q.stride_elems[1], 576, uint16_t(0));
            problem.args.softmax_scale = scale;
            check_all_ways(problem);
            if (HasFatalFailure()) return;
        }
}

// Rounded keys are allowed, not asked for: the same bits.
TEST_F(CudaAttend, RoundedIsExact) {
    Problem problem({.tokens = 2,
                     .heads = 64,
                     .primary = {.format = SMLA_FP8_656, .k = 200},
                     .precision = SMLA_PRECISION_EXACT});
    Context context = make_context(false, nullptr);
    std::unique_ptr<Bits> exact;
    for (const smla_precision precision :
         {SMLA_PRECISION_EXACT, SMLA_PRECISION_ROUNDED, SMLA_PRECISION_DEFAULT}) {
        OnDevice on(context.device(), problem);
        on.args.precision = precision;
        on.poison();
        run_guarded(context, on.args, 0, "cuda_mma_attend_576");
        on.fetch_outputs();
        ASSERT_TRUE(!exact || *exact == Bits(problem));
        exact = std::make_unique<Bits>(problem);
    }
}

TEST_F(CudaAttend, ScalesOnTheDevice) {
    Problem problem({.tokens = 3,
                     .heads = 64,
                     .primary = hostile(SMLA_FP8_576, 100),
                     .q = SMLA_E4M3,
                     .out = SMLA_BF16,
                     .precision = SMLA_PRECISION_EXACT});
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
    expect_close(named, problem, expected, mma_weights(problem.spec));
}

}  // namespace
