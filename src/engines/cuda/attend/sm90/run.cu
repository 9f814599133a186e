// Launches a kernel for Hopper and combines its splits.
#include "engines/cuda/attend/run.h"
#include "engines/cuda/attend/sm90/tasks.cuh"

namespace smla::cuda_attend {

namespace {

using LaunchFunction = void (*)(const smla_attend_args&, const Schedule&, const sm90::Tasks&,
                                const sm90::KeySources&, const Env&);

void run(LaunchFunction launch, const smla_attend_args& args, const Schedule& schedule, const Env& env) {
    Arena arena(env.workspace);
    const int64_t groups = schedule.head_tiles();
    const sm90::Tasks tasks{.count = int(schedule.blocks()),
                            .head_tiles = Divisor(groups),
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
    launch(args, schedule, tasks, {source(args.primary.cache), source(args.extra.cache)}, env);
    if (schedule.splits > 1)
        combine_splits(
            args, {.head_tiles = tasks.head_tiles, .by_splits = tasks.by_splits, .partials = tasks.partials},
            env);
}

}  // namespace

void run_sm90(const smla_attend_args& args, const Schedule& schedule, const Env& env) {
    run(sm90::launch, args, schedule, env);
}
void run_sm90_raw(const smla_attend_args& args, const Schedule& schedule, const Env& env) {
    run(sm90::launch_raw, args, schedule, env);
}

}  // namespace smla::cuda_attend
