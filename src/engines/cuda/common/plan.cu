// The batch plan on a GPU. plan/job.h has the rule for one token, which the host's loops share.
//
// First, one block computes each request's start, the split into decodes and prefills, and prefix sums of
// keys. Then each block processes eight tokens: a thread per token for its numbers, a warp per token for its
// rows. Limit: launch latency for decodes, writes of rows for long lists.
#include "engines/cuda/common/jobs.h"

#include "engines/cuda/common/launch.cuh"
#include "plan/job.h"
#include "plan/split.h"

namespace smla::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Inclusive prefix scan over the block; `total` is the result for all threads.
template <class T, class Join>
__device__ T scan(T value, T neutral, T* shared, const Join& join, T& total) {
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
    for (int step = 1; step < 32; step *= 2) {
        const T before = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value = join(value, before);
    }
    __syncthreads();  // shared may still be read
    if (lane == 31) shared[warp] = value;
    __syncthreads();
    T below = neutral;
    total = neutral;
    for (int w = 0; w < kWarps; ++w) {
        if (w < warp) below = join(below, shared[w]);
        total = join(total, shared[w]);
    }
    return join(value, below);
}

__device__ void place_starts(const PlanJob& p, int32_t* shared) {
    const auto larger = [](int32_t a, int32_t b) { return a > b ? a : b; };
    int32_t before = 0, total = 0;
    if (threadIdx.x == 0) p.starts_in_step[0] = 0;
    for (int64_t begin = 0; begin < p.requests; begin += kThreads) {
        const int64_t r = begin + threadIdx.x;
        const int32_t own = r < p.requests ? start_in_step(p, r + 1, 0) : 0;
        const int32_t start = larger(scan(own, 0, shared, larger, total), before);
        if (r < p.requests) p.starts_in_step[r + 1] = start;
        before = larger(before, total);
    }
    __syncthreads();
}

// Returns the number of decodes, in every thread.
__device__ int64_t split_requests(const PlanJob& p) {
    __shared__ int32_t longest, first_prefill, unlike;
    if (threadIdx.x == 0) longest = unlike = 0, first_prefill = INT32_MAX;
    __syncthreads();
    const auto query = [&](int64_t r) { return int64_t(p.starts_in_step[r + 1]) - p.starts_in_step[r]; };
    const int64_t first = p.requests > 0 ? query(0) : 0;
    QueryLengths mine;
    for (int64_t r = threadIdx.x; r < p.requests; r += kThreads)
        mine.add(r, query(r), first, p.threshold, p.uniform);
    atomicMax(&longest, int32_t(mine.longest));
    atomicMin(&first_prefill, within_int32(mine.first_prefill));
    if (!mine.alike) unlike = 1;
    __syncthreads();
    const QueryLengths all{longest, first_prefill, unlike == 0};
    return decode_requests(all, p.requests, first, p.threshold, p.uniform);
}

__device__ void add_up_keys(const PlanJob& p, int64_t decodes, int64_t* shared) {
    const auto sum = [](int64_t a, int64_t b) { return a + b; };
    int64_t before = 0, total = 0;
    if (threadIdx.x == 0) p.out.ragged_cu[0] = 0;
    for (int64_t begin = 0; begin < p.max_requests; begin += kThreads) {
        const int64_t r = begin + threadIdx.x;
        const bool gathered = r >= decodes && r < p.requests;
        const int64_t own = gathered ? gathered_keys(p, r, p.starts_in_step[r + 1] - p.starts_in_step[r]) : 0;
        const int64_t end = before + scan(own, int64_t(0), shared, sum, total);
        if (r < p.max_requests) p.out.ragged_cu[r + 1] = within_int32(end);
        before += total;
    }
}

__global__ void __launch_bounds__(kThreads) plan_requests_kernel(const __grid_constant__ PlanJob p) {
    __shared__ int64_t shared[kWarps];
    follow_grid_before();
    place_starts(p, reinterpret_cast<int32_t*>(shared));
    const int64_t decodes = split_requests(p);
    if (p.out.ragged_cu) add_up_keys(p, decodes, shared);
    if (threadIdx.x != 0) return;
    const int32_t tokens = p.starts_in_step[p.requests], decode_tokens = p.starts_in_step[decodes];
    p.out.batch_split[0] = int32_t(decodes);
    p.out.batch_split[1] = int32_t(p.requests - decodes);
    p.out.batch_split[2] = decode_tokens;
    p.out.batch_split[3] = tokens - decode_tokens;
    // rows that an earlier build wrote past this step's tokens become padding
    p.reach[1] = p.reach[0] > p.tokens ? p.reach[0] : int32_t(p.tokens);
    p.reach[0] = int32_t(p.tokens);
}

__device__ PlanToken find_token(const PlanJob& p, int64_t t) {
    if (t >= p.starts_in_step[p.requests]) return {};
    return token_of(p, p.starts_in_step, request_of(p.starts_in_step, p.requests, t), t);
}

__global__ void __launch_bounds__(kThreads) plan_tokens_kernel(const __grid_constant__ PlanJob p) {
    __shared__ Visible sees[kWarps];
    __shared__ int32_t request[kWarps];
    follow_grid_before();
    const int64_t first = int64_t(blockIdx.x) * kWarps, end = p.reach[1];
    if (first >= end) return;
    if (threadIdx.x < kWarps && first + threadIdx.x < end) {
        const PlanToken token = find_token(p, first + threadIdx.x);
        request[threadIdx.x] = token.request;
        sees[threadIdx.x] = place_token(p, first + threadIdx.x, token);
    }
    __syncthreads();
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
    const int64_t t = first + warp;
    if (t >= end) return;
    if (p.out.window_rows)
        for (int32_t j = lane; j < p.window; j += 32)
            p.out.window_rows[t * p.window + j] =
                window_row(p.window_table, request[warp], sees[warp].tokens, p.window, j);
    if (!p.out.entry_rows) return;
    const int32_t entries = sees[warp].entries, listed = p.listed[t];
    int32_t* const rows = p.out.entry_rows + t * p.entry_columns;
    for (int32_t c = lane; c < max(entries, listed); c += 32)
        rows[c] = c < entries ? row_of(p.entry_table, request[warp], c) : -1;
    __syncwarp();  // every lane has read `listed`
    if (lane == 0) p.listed[t] = entries;
}

}  // namespace

void build_plan_on_gpu(const PlanJob& job, Device& device, smla_stream stream) {
    Device::Scope scope(device);
    Env env;
    env.device = &device;
    env.stream = stream;
    launch_early(plan_requests_kernel, 1, kThreads, 0, env, job);
    launch_early(plan_tokens_kernel, ceil_div(job.max_tokens, kWarps), kThreads, 0, env, job);
}

}  // namespace smla::cuda
