// Lists with ids on a GPU. smla verify draws each problem for the kernel that has run the fewest problems,
// which is rarely the generic one, and only that one supports ids.
#include "engines/context.h"
#include "gpu/needs_gpu.h"
#include "kit/context_args.h"
#include "kit/problem.h"

#include <gtest/gtest.h>

namespace smla::test {
namespace {

// Whether a token has an element without an id in its window.
bool skips_an_element(const smla_select_args& args) {
    const int64_t columns = args.scores.shape[1];
    bool skips = false;
    for (int64_t t = 0; t < args.scores.shape[0]; ++t)
        for (int64_t j = present(args.starts) ? std::max<int64_t>(load_int(args.starts, t), 0) : 0;
             j < (present(args.ends) ? std::min(load_int(args.ends, t), columns) : columns); ++j)
            skips = skips || load_int(args.ids, t, j) < 0;
    return skips;
}

TEST(GpuSelect, ElementsWithoutAnIdTakeNoPart) {
    SMLA_NEEDS_GPU();
    Context context(kit::context_args(SMLA_ENGINE_CUDA));
    const auto has_ids = [](const kit::Problem& problem) {
        const auto& args = *static_cast<smla_select_args*>(const_cast<kit::Problem&>(problem).arguments());
        return present(args.ids) && present(args.counts);
    };
    int ran = 0;
    for (uint64_t seed = 1; seed < 1000 && ran < 20; ++seed) {
        const auto problem = kit::make_problem(Stage::select, {.seed = seed, .wanted = has_ids});
        if (!problem || !skips_an_element(*static_cast<smla_select_args*>(problem->arguments()))) continue;
        kit::Comparison result;
        problem->run(context, "cuda_generic_select", 0, result);
        problem->compare("cuda_generic_select", result);
        ASSERT_LE(result.worst, 1) << problem->description << ": " << result.what;
        ++ran;
    }
    EXPECT_EQ(ran, 20);
}

}  // namespace
}  // namespace smla::test
