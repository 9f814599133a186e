// What one core of this machine does at most: the yardstick of the kernel benchmarks. Rates are medians, as
// theirs are: clocks move by several per cent within a second.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smla::bench {

// From registers alone, in GFLOP/s; 0 where the machine has no such instruction.
double fma_f32_peak();      // multiply-adds of its widest registers
double fma_f32_peak_256();  // of 256-bit registers
double dot_bf16_peak();     // vdpbf16ps
double tile_bf16_peak();    // tdpbf16ps of AMX

// Reads memory in order, as fast as it comes, in blocks of 256 bytes; a remainder is left out. The sum keeps
// a compiler from leaving the reads out.
uint64_t read_in_order(const void* memory, size_t bytes);

}  // namespace smla::bench
