// The mma kernels of attend: which of them a schedule means.
#include "engines/cuda_mma/attend/run.h"
#include "engines/cuda_mma/attend/splits.cuh"
#include "engines/cuda_mma/attend/tile.cuh"

namespace smla::cuda_attend {

namespace {

template <int Width>
void launch_width(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env) {
    const bool few = schedule.heads == kFewHeads;
    if (schedule.coded && few) launch_few<Width, true>(args, schedule, cut, env);
    else if (schedule.coded) launch_many<Width, true>(args, schedule, cut, env);
    else if (few) launch_few<Width, false>(args, schedule, cut, env);
    else launch_many<Width, false>(args, schedule, cut, env);
}

}  // namespace

void run_mma(const smla_attend_args& args, const Schedule& schedule, const Env& env) {
    Arena arena(env.workspace);
    const Cut cut{.head_tiles = Divisor(schedule.head_tiles()),
                  .by_splits = Divisor(schedule.splits),
                  .parts = schedule.carve(arena)};
    if (args.q.shape[2] == 576) launch_width<576>(args, schedule, cut, env);
    else launch_width<512>(args, schedule, cut, env);
    if (cut.splits() > 1) join_splits(args, cut, env);
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
