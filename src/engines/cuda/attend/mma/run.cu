// Launches the mma kernel that a schedule asks for, and combines its splits.
#include "engines/cuda/attend/mma/few/config.h"
#include "engines/cuda/attend/mma/many/config.h"
#include "engines/cuda/attend/run.h"

namespace smla::cuda_attend {

namespace {

template <int Width>
void launch_width(const smla_attend_args& args, const Schedule& schedule, const TileScheduler& scheduler,
                  const Env& env) {
    const bool few = schedule.heads == kFewHeads;
    if (schedule.coded && few) launch_few<Width, true>(args, schedule, scheduler, env);
    else if (schedule.coded) launch_many<Width, true>(args, schedule, scheduler, env);
    else if (few) launch_few<Width, false>(args, schedule, scheduler, env);
    else launch_many<Width, false>(args, schedule, scheduler, env);
}

}  // namespace

void run_mma(const smla_attend_args& args, const Schedule& schedule, const Env& env) {
    Arena arena(env.workspace);
    const TileScheduler scheduler{.head_tiles = Divisor(schedule.head_tiles()),
                                  .by_splits = Divisor(schedule.splits),
                                  .partials = schedule.carve(arena)};
    if (args.q.shape[2] == 576) launch_width<576>(args, schedule, scheduler, env);
    else launch_width<512>(args, schedule, scheduler, env);
    if (scheduler.splits() > 1) combine_splits(args, scheduler, env);
}

template <int Width, bool Coded>
static size_t bytes_of(int heads) {
    return heads == kFewHeads    ? FewHeads<Width, Coded>::bytes
           : heads == kSomeHeads ? ManyHeads<Width, Coded, kSomeHeads>::bytes
                                 : ManyHeads<Width, Coded, kManyHeads>::bytes;
}
size_t shared_bytes(int heads, int width, bool coded) {
    if (width == 576) return coded ? bytes_of<576, true>(heads) : bytes_of<576, false>(heads);
    return coded ? bytes_of<512, true>(heads) : bytes_of<512, false>(heads);
}

}  // namespace smla::cuda_attend
