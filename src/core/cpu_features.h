// What the machine's processor can do, and the instruction sets of the cpu engine.
#pragma once

#include <smla/context.h>

namespace smla {

smla_isa best_isa();                       // SCALAR where nothing better is known (aarch64 too)
const char* isa_name(smla_isa isa);        // "scalar", "avx2", "avx512", "avx512_bf16"
smla_isa isa_from_name(const char* name);  // 0 if unknown, SMLA_ISA_AUTO for "auto" is 0 too

}  // namespace smla
