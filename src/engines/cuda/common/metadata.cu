// Computes the metadata of a step on a GPU by the rules of engines/metadata_job.h.
//
// The first block processes the requests and the schedule. In the others, a warp processes a token: lane 0
// its numbers, all lanes its rows. Limit: launch latency for decodes, writes of rows for long prefills.
#include "engines/cuda/common/jobs.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/metadata_job.h"

namespace smla::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads) metadata_kernel(const __grid_constant__ MetadataJob p) {
    follow_grid_before();
    if (blockIdx.x == 0) {
        for (int64_t r = threadIdx.x; r <= p.max_requests; r += kThreads) place_request(p, r);
        for (int64_t part = threadIdx.x; part < p.schedule_parts; part += kThreads)
            place_schedule_part(p, part);
        return;
    }
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
    const int64_t t = int64_t(blockIdx.x - 1) * kWarps + warp;
    if (t >= p.max_tokens) return;
    if (lane == 0) place_numbers(p, t);
    if (p.window_prefill_rows)
        for (int32_t c = lane; c < p.window; c += 32)
            p.window_prefill_rows[t * p.window + c] = window_prefill_row(p, t, c);
    if (p.entry_prefill_rows)
        for (int64_t c = lane; c < p.entry_columns; c += 32)
            p.entry_prefill_rows[t * p.entry_columns + c] = entry_prefill_row(p, t, c);
}

}  // namespace

void fill_metadata_on_gpu(const MetadataJob& job, Device& device, smla_stream stream) {
    Device::Scope scope(device);
    Env env;
    env.device = &device;
    env.stream = stream;
    launch_early(metadata_kernel, 1 + ceil_div(job.max_tokens, kWarps), kThreads, 0, env, job);
}

}  // namespace smla::cuda
