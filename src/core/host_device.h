// Marks functions for host loops and CUDA kernels. Such functions use no heap, exceptions or containers.
#pragma once

#if defined(__CUDACC__)
#define SMLA_HOST_DEVICE __host__ __device__
#else
#define SMLA_HOST_DEVICE
#endif
