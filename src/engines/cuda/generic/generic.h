// Generic kernels, one file each, for every shape and every record format of a stage: correct first, and fast
// where the stage is small.
#pragma once

#include "engines/candidate.h"

namespace smla::cuda {

void run_cuda_norm(const smla_norm_args& args, const Env& env);

constexpr int64_t kMaxRopePairs = 4096;  // their cosines and sines use 32 KB of shared memory
void run_cuda_rope(const smla_rope_args& args, const Env& env);

void run_cuda_quant_index_q(const smla_quant_index_q_args& args, const Env& env);
void run_cuda_gather(const smla_gather_args& args, const Env& env);
void run_cuda_copy_pages(const smla_copy_pages_args& args, const Env& env);

void run_cuda_write(const smla_write_args& args, const Env& env);
void run_cuda_save_state(const smla_save_state_args& args, const Env& env);
void run_cuda_compress(const smla_compress_args& args, const Env& env);
void run_cuda_map(const smla_map_args& args, const Env& env);
void run_cuda_project_loops(const smla_project_args& args, const Env& env);

}  // namespace smla::cuda

namespace smla::cuda_merge {

void run_generic(const smla_merge_args& args, const Env& env);

}  // namespace smla::cuda_merge
