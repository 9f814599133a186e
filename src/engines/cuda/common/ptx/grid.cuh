// Programmatic dependent launch: two grids of a stream overlap, and cuda::launch_early launches the later
// one. Before sm_90 these functions do nothing, and the later grid starts when the earlier one has ended.
//
// A later grid should read the results of an earlier one by plain loads: __ldg() promises that the data never
// changes, so a compiler may move the load before the wait. (nvcc 13.0 has not been seen to do so.)
//
// A grid that waits lets the next grid start after the wait. A grid that runs concurrently with the previous
// grid (GridOrder) lets the next one start immediately. Both end after all preceding grids. So a grid that
// waits sees all earlier results; a grid that does not must be independent of all running ones
// (Runner::beside).
#pragma once

#include <cstdint>

namespace smla::cuda {

// Called in the earlier grid: the later grid may start when all blocks have called this.
__device__ inline void start_next_grid() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits for the end of the earlier grid. The later grid calls this before it reads results of the earlier
// one.
__device__ inline void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The first statement of a kernel that launch_early launches. Waits for the previous grid, then lets the next
// grid start.
__device__ inline void follow_grid_before() {
    wait_for_grid_before();
    start_next_grid();
}

// Order of a grid relative to the previous grid: first argument of a kernel that launch_ordered launches. By
// default the grid waits. A concurrent grid does not wait, except for one additional block, so that the grid
// still ends after the previous one. (An H200 keeps that order anyway; PTX does not promise it.)
struct GridOrder {
    uint32_t work_blocks = 0;  // blocks of a concurrent grid that do not wait; 0: all blocks wait

    __device__ bool has_work() const { return work_blocks == 0 || blockIdx.x < work_blocks; }
    // The first statement of such a kernel. Returns false if the block only had to wait.
    __device__ bool start() const {
        if (work_blocks == 0) wait_for_grid_before();
        start_next_grid();
        if (has_work()) return true;
        wait_for_grid_before();
        return false;
    }
};

}  // namespace smla::cuda
