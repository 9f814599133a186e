// The attend kernels of cuda where scales, queries and products are as large or small as they can be.
#include "gpu/attend_problem.h"

#include <random>

namespace {

using namespace smla;
using namespace attend_test;
using namespace gpu;

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

TEST_F(CudaAttend, QueriesOfAnySize) {
    for (const int heads : {16, 32, 64})
        for (const smla_format format :
             {SMLA_ROW_BF16, SMLA_FP8_656, SMLA_FP8_576, SMLA_FP8_584, SMLA_FP8_512, SMLA_NVFP4_288}) {
            const int fixed = find_format(format)->width;
            Problem problem({.tokens = 3,
                             .heads = heads,
                             .width = fixed ? fixed : 576,
                             .primary = hostile(format, 200),
                             .precision = SMLA_PRECISION_EXACT,
                             .seed = uint32_t(heads)});
            scatter_queries(problem);
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
    run_guarded(context, on.args, 0, "cuda_mma_attend");
    on.fetch_outputs();
    expect_close("cuda_mma_attend", problem, expected, mma_weights(problem, "cuda_mma_attend"));
}

}  // namespace
