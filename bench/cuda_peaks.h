// What a GPU can do at most, measured.
#pragma once

#include <functional>
#include <string>

namespace smla::bench {

double mma_peak_tflops();         // mma.sync bf16 with operands in registers
double wgmma_bf16_peak_tflops();  // wgmma with operands in shared memory; 0: not a GPU with wgmma
double wgmma_e4m3_peak_tflops();
double copy_peak_gbytes();                          // device copy of 1 GiB, read and written bytes per second
void launch_nothing();                              // a kernel that does nothing, on the default stream
double best_ms(const std::function<void()>& work);  // shortest of several launches, by events
std::string pci_bus_id();                           // of the current GPU

}  // namespace smla::bench
