// Programmatic dependent launch: two grids of a stream that overlap; cuda::launch_early launches the later
// one. Before sm_90 these do nothing, and the later grid starts when the earlier one has ended.
//
// A later grid should read what an earlier one writes by plain loads: __ldg() promises that it never changes,
// so a compiler may move it before the wait. (Of nvcc 13.0 none was seen to.)
//
// A grid that waits lets the next one start after that; one that runs concurrently with the previous grid
// (GridOrder) does so at once. Both end after all grids before them. So a grid that waits sees all earlier
// results, and one that does not must be independent of all grids that may still run (Runner::beside).
#pragma once

#include <cstdint>

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

// The first statement of a kernel that launch_early launches: waits for the grid before, then lets the one
// after it start.
__device__ inline void follow_grid_before() {
    wait_for_grid_before();
    start_next_grid();
}

// How a grid stands to the one before; the first argument of a kernel that launch_ordered launches. By
// default it follows that one. Beside it, it does not wait, but for one more block that does, so that it ends
// later all the same. (An H200 keeps that order anyway; PTX does not promise it.)
struct GridOrder {
    uint32_t work_blocks = 0;  // beside the grid before: the blocks behind these wait; 0: all do

    __device__ bool has_work() const { return work_blocks == 0 || blockIdx.x < work_blocks; }
    // The first statement of such a kernel. False: the block has done what it is for.
    __device__ bool start() const {
        if (work_blocks == 0) wait_for_grid_before();
        start_next_grid();
        if (has_work()) return true;
        wait_for_grid_before();
        return false;
    }
};

}  // namespace smla::cuda
