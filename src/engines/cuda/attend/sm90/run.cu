// Launches the kernel for Hopper that a schedule asks for, and combines its splits.
#include "engines/cuda/attend/run.h"
#include "engines/cuda/attend/sm90/launch.h"

namespace smla::cuda_attend {

void run_sm90(const smla_attend_args& args, const Schedule& schedule, const Env& env) {
    Arena arena(env.workspace);
    const int64_t groups = schedule.head_tiles();
    const sm90::Tasks tasks{.count = int(schedule.blocks()),
                            .head_groups = Divisor(groups),
                            .by_splits = Divisor(schedule.splits),
                            .partials = schedule.carve(arena)};
    const auto source = [](const smla_cache& cache) -> sm90::KeySource {
        if (cache.format == SMLA_FORMAT_NONE) return {};
        const CacheView view(cache);
        return {
            .data = static_cast<const char*>(cache.data),
            .page_16 = uint32_t(view.page_stride / 16),
            .row_16 = uint32_t(cache.format == SMLA_FP8_584 ? layout::Fp8_584::row : view.row_stride) / 16};
    };
    const auto launch = schedule.raw ? sm90::launch_few : sm90::launch;
    launch(args, schedule, tasks, {source(args.primary.cache), source(args.extra.cache)}, env);
    if (schedule.splits > 1)
        combine_splits(
            args, {.head_tiles = tasks.head_groups, .by_splits = tasks.by_splits, .partials = tasks.partials},
            env);
}

}  // namespace smla::cuda_attend
