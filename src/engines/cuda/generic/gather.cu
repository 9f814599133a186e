// gather: row i of out is a cached token, dequantized or raw, of the request whose range of `cu` contains i.
//
// A warp processes a row of out, four rows per block. Its lanes search the request, 32 ranges at a time (the
// last matching range wins), then copy neighboring values. Limit: memory for long requests; the search takes
// R / 32 steps through cached prefix sums.
#include "core/tensor.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/records.cuh"
#include "engines/cuda/generic/generic.h"
#include "ops/map/map.h"

namespace smla::cuda {

namespace {

constexpr int kWarps = 4;

struct GatherParams {
    DeviceCache cache;
    BlockTable table;
    Tensor starts, cu, out, scales;
    bool raw;
};

__device__ int find_request(const Tensor& cu, int64_t requests, int64_t out_row) {
    int last = -1;
    for (int64_t r = threadIdx.x % 32; r < requests; r += 32)
        if (load_int(cu, r) <= out_row && out_row < load_int(cu, r + 1)) last = int(r);
    return __reduce_max_sync(~0u, last);
}

// Returns the cache row of a request's token, or -1 if the block table is too short or has no page there.
__device__ int64_t cached_row(const GatherParams& p, int64_t request, int64_t token) {
    const int64_t row = row_of(p.table, request, token);
    return p.cache.hole(row) ? -1 : row;
}

__device__ void copy_raw(const GatherParams& p, int64_t row, int64_t out_row) {
    using L = layout::IndexFp8_132;
    const int lane = int(threadIdx.x % 32);
    auto* const codes = static_cast<uint8_t*>(p.out.data) + element(p.out, out_row);
    auto* const scale = static_cast<float*>(p.scales.data) + element(p.scales, out_row);
    if (row < 0) {
        for (int d = lane; d < L::width; d += 32) codes[d] = 0;
        if (lane == 0) *scale = 0;
        return;
    }
    const char* const page = p.cache.page(row);
    const int64_t token = row % p.cache.page_rows;
    const char* const from = page + L::row_at(token);
    for (int d = lane; d < L::width; d += 32) codes[d] = uint8_t(from[d]);
    if (lane == 0) *scale = f32_at(page + L::scale_at(p.cache.page_tokens, token));
}

__global__ void __launch_bounds__(32 * kWarps) gather_kernel(const __grid_constant__ GatherParams p) {
    follow_grid_before();
    const int64_t out_row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (out_row >= p.out.shape[0]) return;
    const int request = find_request(p.cu, p.table.requests, out_row);
    if (request < 0) return;
    const int64_t start = present(p.starts) ? load_int(p.starts, request) : 0;
    const int64_t row = cached_row(p, request, start + out_row - load_int(p.cu, request));
    if (p.raw) return copy_raw(p, row, out_row);
    for (int d = int(threadIdx.x % 32); d < p.cache.width; d += 32)
        store_value(p.out, element(p.out, out_row, d), row < 0 ? 0.f : p.cache.value(row, d));
}

}  // namespace

void run_cuda_gather(const smla_gather_args& args, const Env& env) {
    GatherParams p{};
    p.cache = DeviceCache(args.cache);
    p.table = block_table_of(args.block_table, p.cache.page_tokens, p.cache.page_rows);
    p.starts = args.starts;
    p.cu = args.cu;
    p.out = args.out;
    p.scales = args.scales;
    p.raw = args.raw != 0;
    launch_early(gather_kernel, ceil_div(args.out.shape[0], kWarps), 32 * kWarps, 0, env, p);
}

}  // namespace smla::cuda
