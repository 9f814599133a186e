// The attend kernels of cuda where scales, queries and products are as large or small as they can be.
#include "gpu/attend_problem.h"

#include <random>

namespace {

using namespace smla;
using namespace attend_test;
using namespace gpu;

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

TEST_F(CudaAttend, LogitsOfAnySize) {
    with_huge_logits({16, 32, 64}, {SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_576},
                     [](Problem& problem) { check_all_ways(problem); });
}

// A scale of NaN makes NaN of what its row weighs and of nothing else.
TEST_F(CudaAttend, AScaleThatIsNoNumber) {
    for (const int heads : {16, 32, 64})
        for (const int tile : {0, 6}) {
            Problem problem({.tokens = 3,
                             .heads = heads,
                             .width = 512,
                             .primary = {.format = SMLA_FP8_584, .k = 300, .pages = 16},
                             .precision = SMLA_PRECISION_EXACT});
            const CacheView cache = problem.view(false);
            const int32_t victim = problem.row(1, 123);
            for (const int64_t t : {0, 2})
                for (int64_t j = 0; j < 300; ++j)
                    if (problem.row(t, j) == victim) problem.row(t, j) = -1;
            char* const page = cache.data + victim / cache.page_rows * cache.page_stride;
            page[layout::Fp8_584::scales_at(cache.page_tokens, victim % cache.page_rows) + tile] = char(0xff);
            check_all_ways(problem);
            if (HasFatalFailure()) return;
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
    expect_close("cuda_mma_attend_576", problem, expected, mma_weights(problem.spec));
}

}  // namespace
