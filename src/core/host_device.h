// Marks functions that host loops and CUDA kernels share: no heap, no exceptions, no containers.
#pragma once

#if defined(__CUDACC__)
#define SMLA_HOST_DEVICE __host__ __device__
#else
#define SMLA_HOST_DEVICE
#endif
