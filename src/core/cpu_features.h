// What the machine's processor can do, and the instruction sets of the cpu engine.
#pragma once

#include <smla/context.h>

namespace smla {

smla_isa best_isa();  // SCALAR where nothing better is known (aarch64 too)
// Whether vdpbf16ps, the product of the avx512_bf16 kernels, is slower than f32 multiply-adds: on Intel it
// runs at a quarter of their rate. One core of a Xeon with AMX, V3.2, 128 heads, 2048 rows of fp8_656: 6.9
// to 8.2 ms with it, 3.8 ms in f32.
bool slow_bf16_dots();
const char* isa_name(smla_isa isa);        // "scalar", "avx2", "avx512", "avx512_bf16"
smla_isa isa_from_name(const char* name);  // 0 if unknown, SMLA_ISA_AUTO for "auto" is 0 too

}  // namespace smla
