// Launches the mma kernels and combines their splits.
#include "engines/cuda/attend/mma/few/config.h"
#include "engines/cuda/attend/mma/many/config.h"
#include "engines/cuda/attend/run.h"

namespace smla::cuda_attend {

namespace {

template <int Width>
void launch_width(const smla_attend_args& args, const Schedule& schedule, const TileScheduler& scheduler,
                  const Env& env) {
    const bool few = schedule.shape->heads == kFewHeads;
    const auto launch = [&]<KeyForm Form>() {
        if (few) launch_few<Width, Form>(args, schedule, scheduler, env);
        else launch_many<Width, Form>(args, schedule, scheduler, env);
    };
    switch (schedule.shape->keys) {
        case KeyForm::rows: return launch.template operator()<KeyForm::rows>();
        case KeyForm::codes: return launch.template operator()<KeyForm::codes>();
        case KeyForm::decoded:
            if constexpr (Width == 512) return launch.template operator()<KeyForm::decoded>();
    }
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

template <int Width, KeyForm Form>
static size_t bytes_of(int heads) {
    return heads == kFewHeads    ? FewHeads<Width, Form>::bytes
           : heads == kSomeHeads ? ManyHeads<Width, Form, kSomeHeads>::bytes
                                 : ManyHeads<Width, Form, kManyHeads>::bytes;
}
size_t shared_bytes(int heads, int width, KeyForm keys) {
    if (width == 576)
        return keys == KeyForm::codes ? bytes_of<576, KeyForm::codes>(heads)
                                      : bytes_of<576, KeyForm::rows>(heads);
    return keys == KeyForm::codes     ? bytes_of<512, KeyForm::codes>(heads)
           : keys == KeyForm::decoded ? bytes_of<512, KeyForm::decoded>(heads)
                                      : bytes_of<512, KeyForm::rows>(heads);
}

}  // namespace smla::cuda_attend
