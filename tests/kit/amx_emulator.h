// AMX on machines without it: a handler of SIGILL performs the instructions that the library's kernels use,
// so that their object code runs as it is. Tiles belong to threads, as on a processor. What a processor would
// refuse (a wrong configuration, shapes that do not fit) ends the program with a message.
//   ldtilecfg, sttilecfg, tilerelease, tilezero, tileloadd, tileloaddt1, tilestored, tdpbf16ps
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
#pragma once

namespace smla::kit {

// Why AMX code cannot run here; empty: it can, emulated or not, and the library knows it (assume_tiles). A
// processor that has tiles runs its own.
const char* emulate_amx();
// The handler alone, without a word to the library; false where it cannot work: it multiplies with AVX-512,
// and a processor with tiles configures them itself, so that the handler would see half of the instructions.
bool install_amx_emulator();

}  // namespace smla::kit
