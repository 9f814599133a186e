// map: positions of a request become rows of a cache, through its block table.
//
// A block processes a token, or some of its columns if no counts or lengths are requested. One thread reads
// and writes an element, so the call may be in place. Limit: integer divisions, about 1 us for 128 x 2048
// columns, then memory; the table is cached. Pools have a separate kernel, in which a block finds the end of
// its token's list, then writes all of its columns.
#include "core/tensor.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/values.cuh"
#include "engines/cuda/generic/generic.h"
#include "ops/map/map.h"

#include <algorithm>

namespace smla::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kBatch = 4;                   // columns of a thread with loads in flight
constexpr int64_t kColumns = 2 * kThreads;  // per block, without counts and lengths

struct MapParams {
    Tensor positions, request_of_token, rows, counts, lengths, limits, visible_tokens;
    BlockTable table;
    Pool pool;
    int64_t block_columns;
    unsigned parts;  // blocks per token
};

// Returns, in thread 0, the sum of `count` and the maximum of `length`.
__device__ int2 over_block(int count, int length) {
    __shared__ int counts[kThreads / 32], lengths[kThreads / 32];
    count = __reduce_add_sync(~0u, count), length = __reduce_max_sync(~0u, length);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count, lengths[threadIdx.x / 32] = length;
    __syncthreads();
    const bool reads = threadIdx.x < kThreads / 32;
    return {__reduce_add_sync(~0u, reads ? counts[threadIdx.x] : 0),
            __reduce_max_sync(~0u, reads ? lengths[threadIdx.x] : 0)};
}

__device__ void put_totals(const MapParams& p, int64_t token, int found, int length) {
    if (!present(p.counts) && !present(p.lengths)) return;
    const int2 all = over_block(found, length);
    if (threadIdx.x != 0) return;
    if (present(p.counts)) static_cast<int32_t*>(p.counts.data)[element(p.counts, token)] = all.x;
    if (present(p.lengths)) static_cast<int32_t*>(p.lengths.data)[element(p.lengths, token)] = all.y;
}

__global__ void __launch_bounds__(kThreads) map_kernel(const __grid_constant__ MapParams p) {
    follow_grid_before();
    const int64_t token = blockIdx.x / p.parts, begin = blockIdx.x % p.parts * p.block_columns;
    const int64_t end = min(begin + p.block_columns, p.positions.shape[1]);
    const int64_t request = load_int(p.request_of_token, token);
    const int64_t limit = present(p.limits) ? load_int(p.limits, token) : end;
    int found = 0, length = 0;
    for (int64_t first = begin + threadIdx.x; first < end; first += kBatch * kThreads) {
        const int count = min(kBatch, count_below(int(end - first), 0, kThreads));
        int32_t positions[kBatch], blocks[kBatch];
        load_ints(p.positions, token, first, kThreads, count, positions);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int64_t entry = entry_of(p.table, request, positions[i]);
            const bool listed = entry >= 0 && first + i * kThreads < limit;
            blocks[i] = listed ? p.table.blocks[entry] : -1;
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const int64_t j = first + i * kThreads;
            if (i >= count) break;
            const int32_t row = row_in(p.table, blocks[i], positions[i]);
            static_cast<int32_t*>(p.rows.data)[element(p.rows, token, j)] = row;
            found += row >= 0;
            if (row >= 0) length = int(j) + 1;
        }
    }
    put_totals(p, token, found, length);
}

// Returns the number of pools up to the last listed one, in all threads of the block.
__device__ int64_t listed_pools(const MapParams& p, int64_t token, int64_t limit) {
    __shared__ int last;
    int own = 0;
    for (int64_t j = threadIdx.x; j < limit; j += kThreads) {
        if (load_int(p.positions, token, j) >= 0) own = int(j) + 1;
    }
    const int2 all = over_block(0, own);
    if (threadIdx.x == 0) last = all.y;
    __syncthreads();  // also guards the shared memory of over_block
    return last;
}

__global__ void __launch_bounds__(kThreads) map_pools_kernel(const __grid_constant__ MapParams p) {
    follow_grid_before();
    const int64_t token = blockIdx.x, request = load_int(p.request_of_token, token);
    int64_t limit = p.positions.shape[1];
    if (present(p.limits)) limit = max(int64_t(0), min(limit, load_int(p.limits, token)));
    const int64_t seen = p.pool.tail ? load_int(p.visible_tokens, token) : 0;
    const auto visible = int32_t(seen);
    const int64_t behind = (p.pool.tail ? listed_pools(p, token, limit) : limit) * p.pool.tokens;
    int found = 0, length = 0;
    for (int64_t j = threadIdx.x; j < p.rows.shape[1]; j += kThreads) {
        int64_t position = -1, pool = -1;
        if (j < behind) {
            pool = load_int(p.positions, token, j / p.pool.tokens);
            position = p.pool.token(int32_t(pool), j);
        } else {
            position = p.pool.tail_token(visible, j - behind);
        }
        const int32_t row = row_of(p.table, request, position);
        static_cast<int32_t*>(p.rows.data)[element(p.rows, token, j)] = row;
        found += row >= 0;
        if (row >= 0) length = int(j) + 1;
    }
    put_totals(p, token, found, length);
}

}  // namespace

void run_cuda_map(const smla_map_args& args, const Env& env) {
    const int64_t tokens = args.positions.shape[0], columns = std::max<int64_t>(args.positions.shape[1], 1);
    MapParams p{};
    p.positions = args.positions;
    p.request_of_token = args.request_of_token;
    p.table = block_table_of(args.block_table, args.page_tokens, args.page_rows);
    p.rows = args.rows;
    p.counts = args.counts;
    p.lengths = args.lengths;
    p.limits = args.limits;
    p.visible_tokens = args.visible_tokens;
    p.pool = pool_of(args);
    const bool pools = p.pool.tokens > 1 || p.pool.tail;
    p.block_columns = smla::present(args.counts) || smla::present(args.lengths) ? columns : kColumns;
    p.parts = grid_of(ceil_div(columns, p.block_columns));
    const int64_t blocks = pools ? tokens : tokens * p.parts;
    launch_early(pools ? map_pools_kernel : map_kernel, blocks, kThreads, 0, env, p);
}

}  // namespace smla::cuda
