// AMX on machines without AMX: a SIGILL handler performs the instructions of the library's kernels, so that
// their unmodified object code runs. Each thread has its own tiles, as on a processor. What a processor would
// reject (a wrong configuration, shapes that do not fit) ends the program with a message.
//   ldtilecfg, sttilecfg, tilerelease, tilezero, tileloadd, tileloaddt1, tilestored, tdpbf16ps
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
#pragma once

namespace smla::kit {

// Returns why AMX code cannot run here. Empty: AMX code can run, emulated or not, and the library has been
// told (assume_tiles). A processor with tiles runs AMX code itself.
const char* emulate_amx();
// Installs only the handler, without telling the library. Returns false if the handler cannot work: it needs
// AVX-512, and on a processor with tiles only some of the instructions would reach it.
bool install_amx_emulator();

}  // namespace smla::kit
