// What a GPU can do at most, measured.
#pragma once

#include <functional>
#include <string>

namespace smla::bench {

double mma_peak_tflops();         // mma.sync bf16 with operands in registers
double wgmma_bf16_peak_tflops();  // wgmma with operands in shared memory; 0 if the GPU has no wgmma
double wgmma_e4m3_peak_tflops();
double copy_peak_gbytes();                          // device copy of 1 GiB; counts bytes read and written
void launch_nothing();                              // a kernel that does nothing, on the default stream
double best_ms(const std::function<void()>& work);  // shortest of several launches, measured with events
std::string pci_bus_id();                           // PCI bus ID of the current GPU

}  // namespace smla::bench
