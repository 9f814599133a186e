// Programmatic dependent launch: two grids of a stream that overlap; cuda::launch_early launches the later
// one. Before sm_90 these do nothing, and the later grid starts when the earlier one has ended.
#pragma once

namespace smla::cuda {

// In the earlier grid: the later one may start once all blocks have called this.
__device__ inline void start_next_grid() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// In the later grid, before it reads what the earlier one writes: waits for the end of the earlier one.
__device__ inline void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The first statement of a small kernel that launch_early launches: lets the grid after it start, then waits
// for the one before.
__device__ inline void follow_grid_before() {
    start_next_grid();
    wait_for_grid_before();
}

}  // namespace smla::cuda
