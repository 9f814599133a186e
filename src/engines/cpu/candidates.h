// The kernels of the cpu engine that tables.cpp lists, each defined beside its code.
#pragma once

#include "engines/candidate.h"

namespace smla::cpu {

// attend/kernels.cpp. A name tells the instruction set, the arithmetic and the key width.
extern const Candidate<smla_attend_args> kAmxAttend576, kAmxAttend512, kAvx512Bf16Attend576,
    kAvx512Bf16Attend512, kAvx512Attend576, kAvx512Attend512, kAvx2Attend576, kAvx2Attend512, kNeonAttend576,
    kNeonAttend512, kScalarAttend576, kScalarAttend512, kGenericAttend;
// score/kernels.cpp
extern const Candidate<smla_score_args> kAmxScore, kAvx512Bf16Score, kAvx512Score, kAvx2Score, kNeonScore,
    kScalarScore;
// compress/run.cpp
extern const Candidate<smla_compress_args> kAvx2Compress, kNeonCompress;
// select/kernels.cpp
extern const Candidate<smla_select_args> kAvx512Select, kAvx2Select, kScalarSelect;
// project/: few_tokens.cpp, bf16.cpp and cblas.cpp
// Why cpu_avx512_bf16_project cannot run a call; empty: it can.
std::string refuse_bf16_product(const smla_project_args& args, const Env& env);
extern const Candidate<smla_project_args> kAmxProject, kFewTokens512, kFewTokens256, kAvx512Bf16Project,
    kCblasProject, kLoopsProject;

}  // namespace smla::cpu
