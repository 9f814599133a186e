// What one core of this machine does in registers alone: the yardstick of the kernel benchmarks. A median, as
// theirs are: clocks move by several per cent within a second.
#pragma once

namespace smla::bench {

// In GFLOP/s; 0 where the machine has no such instruction.
double fma_f32_peak();      // multiply-adds of its widest registers
double fma_f32_peak_256();  // of 256-bit registers
double dot_bf16_peak();     // vdpbf16ps

}  // namespace smla::bench
