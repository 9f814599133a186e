// A problem of attend on a GPU: its memory there, and every way in which cuda may cut the work, against
// the oracle of tests/attend.
#pragma once

#include "attend/support.h"
#include "engines/context.h"
#include "engines/run.h"
#include "formats/layouts.h"
#include "gpu/needs_gpu.h"
#include "kit/scratch.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

namespace gpu {

using namespace smla;
using namespace attend_test;

class CudaAttend : public testing::Test {
protected:
    void SetUp() override { SMLA_NEEDS_GPU(); }
};

// Records that mma kernels make rows of bf16 of: of V4.1.
constexpr smla_format kDecoded[] = {SMLA_FP8_528_G32, SMLA_NVFP4_288, SMLA_FP8_528_G32_SPLIT,
                                    SMLA_NVFP4_288_SPLIT};
inline bool is_decoded(smla_format format) {
    return std::find(std::begin(kDecoded), std::end(kDecoded), format) != std::end(kDecoded);
}

// Whether f16 weights times the scales of 128 codes hold as many bits as weights.
inline bool fits_f16_weights(const Problem& problem) {
    const smla_format format = problem.spec.primary.format;
    if (format != SMLA_FP8_656 && format != SMLA_FP8_528) return true;
    const CacheView cache = problem.view(false);
    for (int64_t row = 0; row < cache.capacity; ++row)
        for (int tile = 0; tile < layout::Fp8_656::tiles && !cache.hole(row); ++tile) {
            float scale;
            std::memcpy(&scale, cache.at(row).row() + layout::Fp8_656::scales_at + 4 * tile, sizeof scale);
            if (scale != 0 && !(scale >= 0x1p-17f && scale <= 1)) return false;
        }
    return true;
}
// Weights are rounded to bf16, as in the bf16 kernels of the cpu engine; where all values are codes, they,
// their scales and their product are rounded to f16.
inline double mma_weights(const Problem& problem, const char* kernel) {
    const Spec& spec = problem.spec;
    if (std::strstr(kernel, "sm90_raw")) return fits_f16_weights(problem) ? 0x1.8p-10 : 0x1p-8;
    if (std::strstr(kernel, "sm90")) return 0x1p-8;
    for (const smla_format format : {spec.primary.format, spec.extra.format})
        if (format == SMLA_ROW_BF16 || format == SMLA_FP8_584 || is_decoded(format)) return 0x1p-8;
    return 0x1.8p-10;
}

inline Context make_context(bool batch_invariant, const char* kernel) {
    smla_context_args args{};
    args.struct_size = sizeof args;
    args.engine = SMLA_ENGINE_CUDA;
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
inline void run_guarded(Context& context, const smla_attend_args& args, size_t budget, const char* expected) {
    const kit::Scratch scratch(context.device(),
                               stage_workspace<Stage::attend>(args, context.env({}), budget));
    context.init_workspace(scratch.get(), nullptr);
    const char* name = run_stage<Stage::attend>(args, context.env(scratch.get()));
    context.device().wait(nullptr);
    ASSERT_STREQ(name, expected);
    ASSERT_EQ(scratch.complaint(), "") << name;
}

// run(args): twice.
template <class Run>
void check_runs(Context& context, Problem& problem, const Expected& expected, const char* kernel,
                const Run& run_once) {
    OnDevice on(context.device(), problem);
    std::unique_ptr<Bits> first;
    for (int run = 0; run < 2; ++run) {
        on.poison();
        run_once(on.args);
        if (testing::Test::HasFatalFailure()) return;
        on.fetch_outputs();
        ASSERT_TRUE(!first || *first == Bits(problem)) << "other bits in a second run";
        first = std::make_unique<Bits>(problem);
    }
    const bool generic = std::strstr(kernel, "generic");
    expect_close(kernel, problem, expected, generic ? 0 : mma_weights(problem, kernel));
    problem.expect_canaries();
}
inline void check_one(Context& context, Problem& problem, const Expected& expected, size_t budget,
                      const char* kernel) {
    SCOPED_TRACE(text(kernel, " budget ", budget, " ", problem.spec.name()));
    check_runs(context, problem, expected, kernel,
               [&](const smla_attend_args& args) { run_guarded(context, args, budget, kernel); });
}

constexpr int64_t kMmaWidths[] = {576, 512};

// The generic kernel, and the mma kernel as it cuts the work itself, unsplit, and batch invariant, then also
// a token at a time.
inline void check_all_ways(Problem& problem) {
    const Expected expected = oracle(problem);
    const char* mma = "cuda_mma_attend";
    Context generic = make_context(false, "attend=cuda_generic_attend");
    check_one(generic, problem, expected, 0, "cuda_generic_attend");
    const std::string demand = text("attend=", mma);
    Context free = make_context(false, demand.c_str());
    std::string refusal = "no such kernel";
    for (const auto& row : explain_stage<Stage::attend>(OnDevice(free.device(), problem).args, free.env({})))
        if (row.kernel == mma) refusal = row.refusal;
    const auto bf16_rope = [](smla_format format) {
        return format == SMLA_FP8_656 || format == SMLA_FP8_584;
    };
    const smla_format first = problem.spec.primary.format, second = problem.spec.extra.format;
    const bool must =
        std::find(std::begin(kMmaWidths), std::end(kMmaWidths), problem.spec.width) != std::end(kMmaWidths) &&
        (problem.spec.q == SMLA_BF16 || problem.spec.q == SMLA_E4M3) &&
        (!first || !second ||
         (bf16_rope(first) == bf16_rope(second) && is_decoded(first) == is_decoded(second)));
    ASSERT_EQ(refusal.empty(), must) << refusal;
    if (!must) return;
    check_one(free, problem, expected, 0, mma);
    check_one(free, problem, expected, kWorkspaceHeader, mma);
    Context invariant = make_context(true, demand.c_str());
    check_one(invariant, problem, expected, 0, mma);
    check_one(invariant, problem, expected, kWorkspaceHeader, mma);
}
inline void check_all_ways(const Spec& spec) {
    Problem problem(spec);
    check_all_ways(problem);
}

constexpr smla_format kWide[] = {SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_576};
constexpr smla_format kNarrow[] = {SMLA_ROW_BF16,  SMLA_FP8_528,        SMLA_FP8_512,
                                   SMLA_FP8_584,   SMLA_FP8_528_G32,    SMLA_FP8_528_G32_SPLIT,
                                   SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT};
// A format that the mma kernels take beside another.
inline smla_format beside(smla_format format) {
    switch (format) {
        case SMLA_FP8_528: return SMLA_FP8_512;
        case SMLA_FP8_528_G32: return SMLA_NVFP4_288;
        case SMLA_FP8_528_G32_SPLIT: return SMLA_NVFP4_288_SPLIT;
        case SMLA_NVFP4_288: return SMLA_FP8_528_G32_SPLIT;
        default: return format;
    }
}

inline SourceSpec hostile(smla_format format, int64_t k) {
    return {.format = format,
            .k = k,
            .page_tokens = 24,
            .page_rows = 40,
            .pages = 20,
            .page_gap = 48 * 12,
            .holes = 0.3,
            .lengths = true};
}

// Scales of the last 128 codes, fp8_584: 64, of every third row are 2^-40 to 2^40 times what they were, or 0,
// or below 0; queries are 0 there, so that the rows weigh what they did.
inline void scatter_scales(Problem& problem) {
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

// All scales of row r of the primary cache, fp8_656, are 2^exponent_of(r).
template <class ExponentOf>
void set_scales(Problem& problem, const ExponentOf& exponent_of) {
    const CacheView cache = problem.view(false);
    for (int64_t row = 0; row < cache.capacity; ++row) {
        if (cache.hole(row)) continue;
        const float scale = std::exp2(float(exponent_of(row)));
        for (int i = 0; i < layout::Fp8_656::tiles; ++i)
            std::memcpy(cache.at(row).row() + layout::Fp8_656::scales_at + 4 * i, &scale, sizeof scale);
    }
}

// Each head has its own power of two; one that is infinite or NaN concerns no other.
inline void scatter_queries(Problem& problem) {
    auto* const q = reinterpret_cast<uint16_t*>(problem.args.q.data);
    const auto& stride = problem.args.q.stride_elems;
    for (int64_t t = 0; t < problem.spec.tokens; ++t)
        for (int64_t h = 0; h < problem.spec.heads; ++h) {
            uint16_t* const row = q + t * stride[0] + h * stride[1];
            const float by = std::exp2(float(h % 8 * 12 - 80));  // to 2^4: logits stay finite
            for (int64_t d = 0; d < problem.spec.width; ++d) row[d] = f32_to_bf16(bf16_to_f32(row[d]) * by);
            if (h % 8 == 6) row[7] = t == 1 ? 0x7f80 : 0x7fc0;  // inf, NaN
            if (h % 8 == 5) row[500] = f32_to_bf16(1e30f * float(t));
            if (h % 8 == 4) std::fill_n(row, problem.spec.width, uint16_t(0));
        }
}

// The mma kernels round no key, allowed or not: the same bits.
inline void expect_no_rounding(Problem& problem, const char* kernel) {
    Context context = make_context(false, text("attend=", kernel).c_str());
    std::unique_ptr<Bits> exact;
    for (const smla_precision precision :
         {SMLA_PRECISION_EXACT, SMLA_PRECISION_ROUNDED, SMLA_PRECISION_DEFAULT}) {
        OnDevice on(context.device(), problem);
        on.args.precision = precision;
        on.poison();
        run_guarded(context, on.args, 0, kernel);
        if (testing::Test::HasFatalFailure()) return;
        on.fetch_outputs();
        ASSERT_TRUE(!exact || *exact == Bits(problem));
        exact = std::make_unique<Bits>(problem);
    }
}

}  // namespace gpu
