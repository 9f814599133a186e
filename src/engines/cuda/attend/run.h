// Declares the attend kernels of the cuda engine.
#pragma once

#include "engines/candidate.h"
#include "engines/cuda/attend/schedule.h"

namespace smla::cuda_attend {

// Names of the kernels with block shapes.
constexpr char kSm90Raw[] = "cuda_sm90_raw_attend", kSm90[] = "cuda_sm90_attend", kMma[] = "cuda_mma_attend";

extern const Candidate<smla_attend_args> kSm90RawAttend, kSm90Attend, kMmaAttend;

void run_generic(const smla_attend_args& args, const Env& env);

// The functions below require a workspace of schedule.workspace() bytes if schedule.splits > 1.

// Runs the mma.sync kernels, for keys of 576 or 512 values.
void run_mma(const smla_attend_args& args, const Schedule& schedule, const Env& env);
// Run the wgmma kernels for Hopper. run_sm90 converts records to 16-bit keys in shared memory; run_sm90_raw
// keeps records as stored until they are loaded into registers.
void run_sm90(const smla_attend_args& args, const Schedule& schedule, const Env& env);
void run_sm90_raw(const smla_attend_args& args, const Schedule& schedule, const Env& env);

}  // namespace smla::cuda_attend
