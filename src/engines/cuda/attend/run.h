// The attend kernels of the cuda engine.
#pragma once

#include "engines/candidate.h"
#include "engines/cuda/attend/schedule.h"

namespace smla::cuda_attend {

extern const Candidate<smla_attend_args> kSm90FewAttend576, kSm90FewAttend512, kSm90Attend576, kSm90Attend512,
    kMmaAttend576, kMmaAttend512;

void run_generic(const smla_attend_args& args, const Env& env);

// mma.sync kernels for keys of 576 or 512 values. With schedule.splits > 1 the workspace must have
// schedule.workspace() bytes.
void run_mma(const smla_attend_args& args, const Schedule& schedule, const Env& env);

// wgmma kernels of Hopper, with the same demand on the workspace.
void run_sm90(const smla_attend_args& args, const Schedule& schedule, const Env& env);

}  // namespace smla::cuda_attend
