// Programmatic dependent launch: two grids of a stream overlap, and cuda::launch_early launches the later
// one. Before sm_90 these functions do nothing, and the later grid starts after the end of the earlier one.
//
// A later grid should read an earlier grid's results by plain loads: __ldg() promises constant data, so a
// compiler may move the load before the wait. (nvcc 13.0 has not been seen to do so.)
//
// A grid that waits lets the next grid start after the wait; a grid that runs concurrently with the previous
// one (GridOrder) does so immediately. Every grid ends after all preceding grids. So a grid that waits sees
// all earlier results; a grid that does not must be independent of all running grids (Runner::beside).
#pragma once

#include <cstdint>

namespace smla::cuda {

// The later grid may start when all blocks of the earlier grid have called this.
__device__ inline void start_next_grid() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits in the later grid for the end of the earlier grid, before reading its results.
__device__ inline void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// First statement of a kernel for launch_early: waits for the previous grid, then lets the next grid start.
__device__ inline void follow_grid_before() {
    wait_for_grid_before();
    start_next_grid();
}

// Order of a grid relative to the previous grid: first argument of a kernel for launch_ordered. By default
// the grid waits. A concurrent grid does not wait, except for one additional block, so that the grid still
// ends after the previous one. (An H200 keeps that order anyway; PTX does not promise it.)
struct GridOrder {
    uint32_t work_blocks = 0;  // blocks of a concurrent grid that do not wait; 0: all blocks wait

    __device__ bool has_work() const { return work_blocks == 0 || blockIdx.x < work_blocks; }
    // First statement of a kernel for launch_ordered. Returns false in the additional block, after its wait.
    __device__ bool start() const {
        if (work_blocks == 0) wait_for_grid_before();
        start_next_grid();
        if (has_work()) return true;
        wait_for_grid_before();
        return false;
    }
};

}  // namespace smla::cuda
