// Grids of one stream that overlap: the later one is launched by cuda::launch_early. Nothing where an
// architecture has no such instruction; there the later grid starts when the earlier one has ended.
#pragma once

namespace smla::cuda {

// In the earlier grid: the later one may start once all blocks of this one have come here.
__device__ inline void start_next_grid() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// In the later grid, before it touches what the earlier one writes: waits until that has ended.
__device__ inline void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace smla::cuda
