// What a GPU can do at most, measured.
#pragma once

namespace smla::bench {

double mma_peak_tflops();   // mma.sync bf16 from registers alone
double copy_peak_gbytes();  // device copy of 1 GiB, read and written bytes per second
void launch_nothing();      // a kernel that does nothing, on the default stream

}  // namespace smla::bench
