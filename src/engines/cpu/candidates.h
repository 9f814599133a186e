// The kernels of the CPU engine in tables.cpp, each defined next to its code.
#pragma once

#include "engines/candidate.h"

namespace smla::cpu {

// attend/kernels.cpp defines these kernels. A name contains the instruction set and the arithmetic.
extern const Candidate<smla_attend_args> kAmxAttend, kAvx512Bf16Attend, kAvx512Attend, kAvx2Attend,
    kNeonAttend, kScalarAttend;
// compress/run.cpp
extern const Candidate<smla_compress_args> kAvx2Compress, kNeonCompress;
// project/few_tokens.cpp, bf16.cpp and cblas.cpp
// Returns why cpu_avx512_bf16_project cannot run a call; empty if it can.
std::string refuse_bf16_product(const smla_project_args& args, const Env& env);
extern const Candidate<smla_project_args> kAmxProject, kFewTokens512, kFewTokens256, kAvx512Bf16Project,
    kCblasProject, kLoopsProject;
// score_select/run.cpp: only candidates of a row leave a tile, so scratch does not grow with N
extern const Candidate<smla_score_select_args> kStreamed;
// score_select_blocks/run.cpp: tiles contain columns of several blocks, so that separate blocks cost no more
extern const Candidate<smla_score_select_blocks_args> kStreamedBlocks;

}  // namespace smla::cpu
