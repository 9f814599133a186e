// Features of the machine's processor, and the instruction sets of the CPU engine.
#pragma once

#include <smla/context.h>

#include <string>
#include <vector>

namespace smla {

smla_isa best_isa();                // SMLA_ISA_SCALAR if no better set is known
std::vector<smla_isa> isas_here();  // all sets of this machine, weakest first
// Returns whether vdpbf16ps, the product of the avx512_bf16 kernels, is slower than f32 multiply-adds. On
// Intel, vdpbf16ps runs at a quarter of their rate: V3.2 with 128 heads and 2048 rows of fp8_656 takes 6.9 to
// 8.2 ms with it and 3.8 ms in f32, on one core of a Xeon with AMX.
bool slow_bf16_dots();
constexpr smla_isa kLastIsa = SMLA_ISA_NEON;
const char* isa_name(smla_isa isa);  // "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"
// Returns why a context with the set `here` cannot run a kernel of the set `needed`; empty if it can.
std::string why_no_isa(smla_isa needed, smla_isa here);
smla_isa isa_from_name(const char* name);                  // SMLA_ISA_AUTO for "auto" and for unknown names
std::string isa_names(const std::vector<smla_isa>& isas);  // "scalar, avx2 or avx512"

// Returns why this process may not use AMX tiles; empty if it may. The first call requests the permission
// from the operating system for the life of the process.
std::string why_no_tiles();
// For tests with emulated AMX: treats the processor as one with tiles and permission.
void assume_tiles();

}  // namespace smla
