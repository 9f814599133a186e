// What the machine's processor can do, and the instruction sets of the cpu engine.
#pragma once

#include <smla/context.h>

#include <string>
#include <vector>

namespace smla {

smla_isa best_isa();                // SCALAR where nothing better is known
std::vector<smla_isa> isas_here();  // those that the machine runs, weakest first
// Whether vdpbf16ps, the product of the avx512_bf16 kernels, is slower than f32 multiply-adds: on Intel it
// runs at a quarter of their rate. One core of a Xeon with AMX, V3.2, 128 heads, 2048 rows of fp8_656: 6.9
// to 8.2 ms with it, 3.8 ms in f32.
bool slow_bf16_dots();
constexpr smla_isa kLastIsa = SMLA_ISA_NEON;
const char* isa_name(smla_isa isa);  // "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"
// Why calls that use the instruction set `here` cannot take a kernel; empty: they can.
std::string why_no_isa(smla_isa needed, smla_isa here);
smla_isa isa_from_name(const char* name);                  // SMLA_ISA_AUTO for "auto" and for unknown names
std::string isa_names(const std::vector<smla_isa>& isas);  // "scalar, avx2 or avx512"

// Why this process may not use AMX tiles; empty: it may. The first call requests permission from the
// operating system, which then holds for the life of the process.
std::string why_no_tiles();
// For tests with emulated AMX: from now on the processor counts as having tiles, with permission.
void assume_tiles();

}  // namespace smla
