// compress: a token that closes a group pools the state rows of its window into one cache entry:
//   entry[d] = sum_j softmax_j(score_j[d]) kv_j[d], then RMS norm, rope of the last channels, encoding.
//
// Tile    A block per token; for most tokens, which close no group, it returns immediately. A thread pools
//         four neighboring channels of every groups-th row of the window, with kBatch rows in flight
//         (soft_pool.h). The batches of a group are joined in order, then the groups, in shared memory. Then
//         the block applies norm and rope, and its warps encode.
// Cluster For few tokens with long windows, on sm_90 and later, a cluster of 8 blocks processes a token, each
//         block an eighth of the channels. A thread has one batch; the first block collects the pooled
//         channels and finishes alone. The order of joins depends only on width and ratio, so a token's bits
//         depend neither on other tokens nor on the number of blocks.
// Shared  Row addresses [kRows] i64 (looked up once, by one thread per row) | sums of warps | peaks, sums and
//         values of the partials, each [groups][shares][columns] float4 | the entry [D] f32. __syncthreads or
//         cluster_sync separates any write from another thread's read.
// Limit   Reads of one SM: 2 * coff * ratio * D * 4 bytes (512 KiB at ratio 128) at 64 bytes per clock. With
//         8 rows per thread in flight, ratio 128 takes 13.6 us on an H200 (4 rows: 15.9); windows of 8 rows
//         are slower with 8 than with 4. Few tokens of a step close a group of 128. Clusters: latencies.
#include "core/tensor.h"
#include "engines/cuda/candidates.h"
#include "engines/cuda/common/hadamard.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/records.cuh"
#include "engines/cuda/common/rotation.cuh"
#include "engines/cuda/generic/generic.h"
#include "ops/compress/compress.h"
#include "ops/compress/soft_pool.h"
#include "ops/map/map.h"

#include <algorithm>

namespace smla::cuda {

namespace {

constexpr int kThreads = 512, kRows = 128;
constexpr int kChannels = 4;  // per thread
// Rows in flight per thread. Windows of 8 rows have two per thread if an entry has 512 channels.
constexpr int kFewRows = 2, kManyRows = 8;
constexpr int kMostGroups = 16;
constexpr int kCluster = 8;  // blocks per token with a long window
// Kernels for short windows have no cluster code, which adds 1 us to a call of ratio 4.
template <int kBatch>
constexpr bool kSpreads = kBatch == kManyRows;
static_assert(kRows <= kThreads && kMaxRowWidth <= kThreads * kChannels);

struct CompressParams {
    DeviceCache state, cache;
    BlockTable table;
    Tensor request_of_token, positions, slots, weight, frequencies, entries, latents;
    int64_t ratio, coff;          // coff: windows that an entry pools
    int blocks;                   // per token: 1 or kCluster
    int columns, groups, shares;  // threads along the channels, the rows, the batches of a group
    float eps;
    bool rounds, hadamard;
};

// The window of one token: state rows first, first + 1, ... of a request.
struct Window {
    int64_t request, first, rows;
};

// Finds the addresses of rows [from, from + kRows) of the window; null: no row. Returns whether any exist.
__device__ bool find_rows(const CompressParams& p, const Window& window, int64_t from, const char** found) {
    const int j = int(threadIdx.x);
    const char* at = nullptr;
    if (j < kRows && from + j < window.rows) {
        const int64_t row = row_of(p.table, window.request, window.first + from + j);
        if (!p.state.hole(row)) at = p.state.row_packed(row);
    }
    __syncthreads();  // previous addresses may still be read
    if (j < kRows) found[j] = at;
    return __syncthreads_or(at != nullptr) != 0;
}

// Loads the thread's channels of a row. Channels from `left` on become `missing`.
template <bool kAligned>
__device__ void load_channels(const float* at, int left, float missing, float (&out)[kChannels]) {
    if constexpr (kAligned) {
        const float4 all = *reinterpret_cast<const float4*>(at);
        out[0] = all.x, out[1] = all.y, out[2] = all.z, out[3] = all.w;
    } else {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) out[c] = c < left ? at[c] : missing;
    }
}

// Pools kBatch rows, j, j + groups, ...; channels start at d.
template <bool kAligned, int kBatch>
__device__ void pool_batch(const CompressParams& p, const Window& window, const char* const* found,
                           int64_t from, int j, int d, SoftPool (&pools)[kChannels]) {
    const int width = p.cache.width, overlapped = int(p.coff) * width;
    float kv[kBatch][kChannels], score[kBatch][kChannels];
    const char* rows[kBatch];
    bool whole = true;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
        const int row = j + i * p.groups;
        rows[i] = row < kRows ? found[row] : nullptr;  // null: past the end of the window
        whole = whole && rows[i];
    }
    const auto load = [&](int i) {
        // with overlap, the older half of the window uses channels [0,D), the newer half [D,2D)
        const int half = from + j + i * p.groups < window.rows - p.ratio ? 0 : overlapped - width;
        const float* const first = reinterpret_cast<const float*>(rows[i]) + half + d;
        load_channels<kAligned>(first, width - d, 0, kv[i]);
        load_channels<kAligned>(first + overlapped, width - d, -INFINITY, score[i]);
    };
    if (whole) {  // loads without a branch between them are in flight together
#pragma unroll
        for (int i = 0; i < kBatch; ++i) load(i);
    } else {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
#pragma unroll
            for (int c = 0; c < kChannels; ++c) kv[i][c] = 0, score[i][c] = -INFINITY;
            if (rows[i]) load(i);
        }
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
        float kv_of[kBatch], score_of[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) kv_of[i] = kv[i][c], score_of[i] = score[i][c];
        if constexpr (kSpreads<kBatch>) {  // joins in the same order as with a cluster
            SoftPool batch;
            batch.add(score_of, kv_of);
            pools[c].join(batch);
        } else {
            pools[c].add(score_of, kv_of);
        }
    }
}

// Pools the channels of block `rank` of the token into `entry` of the first block.
template <bool kAligned, int kBatch>
__device__ void pool(const CompressParams& p, const Window& window, int rank, const char** found,
                     float4* parts, float* entry) {
    const bool cluster = kSpreads<kBatch> && p.blocks > 1;
    const int shares = kSpreads<kBatch> ? p.shares : 1;
    const int column = int(threadIdx.x) % p.columns, part = int(threadIdx.x) / p.columns,
              group = part / shares, share = part % shares;
    const int first = rank * p.columns * kChannels;
    SoftPool pools[kChannels];
    bool any = false;
    for (int64_t from = 0; from < window.rows; from += kRows) {
        any |= find_rows(p, window, from, found);
        if (group >= p.groups) continue;
        const int count = int(min(int64_t(kRows), window.rows - from)), step = kBatch * p.groups;
        for (int j = group + share * step; j < count; j += shares * step)
            pool_batch<kAligned, kBatch>(p, window, found, from, j, first + column * kChannels, pools);
    }
    const int size = p.groups * shares * p.columns;
    if (group < p.groups) {
        float4* const at = parts + part * p.columns + column;
        at[0] = {pools[0].peak, pools[1].peak, pools[2].peak, pools[3].peak};
        at[size] = {pools[0].sum, pools[1].sum, pools[2].sum, pools[3].sum};
        at[2 * size] = {pools[0].value, pools[1].value, pools[2].value, pools[3].value};
    }
    __syncthreads();
    if (cluster) cluster_wait();  // until the first block runs
    const int end = min(p.columns * kChannels, p.cache.width - first);
    for (int d = int(threadIdx.x); d < end; d += kThreads) {
        const float* at = reinterpret_cast<const float*>(parts) + d;
        SoftPool joined;
        for (int g = 0; g < p.groups; ++g) {
            SoftPool of_group;
            for (int s = 0; s < shares; ++s, at += p.columns * kChannels)
                of_group.join({at[0], at[size * kChannels], at[2 * size * kChannels]});
            joined.join(of_group);
        }
        const float mean = any ? joined.mean() : 0.f;
        if (cluster) store_in_cluster(in_block(shared_address(entry + first + d), 0), mean);
        else entry[first + d] = mean;
    }
}

// `weight` is the weight of channel threadIdx.x, loaded early; channels from kThreads on load theirs here.
__device__ void norm(const CompressParams& p, float* entry, float weight, float* scratch) {
    const int width = p.cache.width;
    float square = 0;
    for (int d = int(threadIdx.x); d < width; d += kThreads) {
        if (p.cache.writer & SMLA_WRITER_BF16_POOLED) entry[d] = round_to_bf16(entry[d]);
        square += entry[d] * entry[d];
    }
    const float factor = 1.f / sqrtf(block_sum(square, scratch) / float(width) + p.eps);
    for (int d = int(threadIdx.x); d < width; d += kThreads)
        entry[d] *= factor * (d < kThreads ? weight : load_value(p.weight, element(p.weight, d)));
}

// Computes angles in the block's last warp, which has no rows to find.
__device__ void find_angles(const CompressParams& p, int64_t position, float2* angles) {
    if (threadIdx.x < kThreads - 32) return;
    for (int i = int(threadIdx.x % 32); i < int(p.frequencies.shape[0]); i += 32)
        angles[i] = turn_of(double(position) * frequency_of(p.frequencies, i));
}

__device__ void rotate(const CompressParams& p, float* entry, const float2* angles) {
    const int pairs = int(p.frequencies.shape[0]);
    for (int i = int(threadIdx.x); i < pairs; i += kThreads) {
        float* const pair = entry + p.cache.width - 2 * pairs + 2 * i;
        rotate_pair(angles[i], pair[0], pair[1]);
    }
}

// Writes the optional f32 row, then rounds to bf16 for formats with scales.
__device__ void store_entry(const CompressParams& p, int64_t token, float* entry) {
    for (int d = int(threadIdx.x); d < p.cache.width; d += kThreads) {
        const float v = entry[d];
        if (present(p.entries)) store_value(p.entries, element(p.entries, token, d), v);
        if (p.rounds) entry[d] = round_to_bf16(v);
    }
}

// kAligned: a thread loads its four channels of a row at once. kBatch: rows of a thread in flight.
template <bool kAligned, int kBatch>
__global__ void __launch_bounds__(kThreads)
    compress_kernel(const GridOrder order, const __grid_constant__ CompressParams p) {
    __shared__ const char* found[kRows];
    __shared__ float2 angles[kMaxRowWidth / 2];
    __shared__ float scratch[kThreads / 32];
    extern __shared__ float4 parts[];
    float* const entry = reinterpret_cast<float*>(parts + 3 * p.groups * p.shares * p.columns);
    if (!order.start()) return;
    const bool cluster = kSpreads<kBatch> && p.blocks > 1;
    const int64_t token = cluster ? blockIdx.x / kCluster : blockIdx.x;
    const int rank = cluster ? int(blockIdx.x % kCluster) : 0;
    const int64_t slot = load_int(p.slots, token), position = load_int(p.positions, token),
                  request = load_int(p.request_of_token, token);
    if (position < 0 || position % p.ratio != p.ratio - 1 || p.cache.hole(slot)) return;

    const int64_t rows = p.coff * p.ratio;
    const Window window{request, position - rows + 1, rows};
    const int channel = min(int(threadIdx.x), p.cache.width - 1);
    const float weight = present(p.weight) ? load_value(p.weight, element(p.weight, channel)) : 1;
    if (cluster) cluster_arrive();
    if (rank == 0) find_angles(p, position / p.ratio * p.ratio, angles);
    pool<kAligned, kBatch>(p, window, rank, found, parts, entry);
    if (cluster) cluster_sync();
    if (rank > 0) return;
    // One block needs no barrier here: until the next one, a thread accesses only its channels of `entry`.
    if (present(p.weight)) norm(p, entry, weight, scratch);
    for (int d = int(threadIdx.x); present(p.latents) && d < p.cache.width; d += kThreads)
        store_value(p.latents, element(p.latents, token, d), entry[d]);
    __syncthreads();
    rotate(p, entry, angles);
    __syncthreads();
    store_entry(p, token, entry);
    __syncthreads();
    const Warps all{int(threadIdx.x) / 32, kThreads / 32};
    if (p.hadamard) {
        if (all.index == 0) warp_hadamard(entry, p.cache.width);
        __syncthreads();
        for (int d = int(threadIdx.x); p.rounds && d < p.cache.width; d += kThreads)
            entry[d] = round_to_bf16(entry[d]);
        __syncthreads();
    }
    encode(all, p.cache, slot, entry);
}

bool aligned(const DeviceCache& state, int width) {
    const auto address = reinterpret_cast<uintptr_t>(state.data);
    return (address | uintptr_t(state.page_stride) | uintptr_t(state.row_stride)) % sizeof(float4) == 0 &&
           width % kChannels == 0;
}

CompressParams compress_params(const smla_compress_args& args) {
    CompressParams p{};
    p.state = DeviceCache(args.state);
    p.cache = DeviceCache(args.cache);
    p.table = block_table_of(args.state_table, p.state.page_tokens, p.state.page_rows);
    p.request_of_token = args.request_of_token;
    p.positions = args.positions;
    p.slots = args.slots;
    p.weight = args.norm_weight;
    p.frequencies = args.frequencies;
    p.entries = args.entries;
    p.latents = args.latents;
    p.ratio = args.ratio;
    p.coff = overlap(args);
    p.eps = float(args.eps);
    p.rounds = find_format(args.cache.format)->rounds_entries();
    p.hadamard = args.hadamard != 0;
    p.columns = int(ceil_div(p.cache.width, kChannels));
    p.groups = int(
        std::min<int64_t>({kThreads / p.columns, kMostGroups, p.coff * std::min<int64_t>(p.ratio, kRows)}));
    p.blocks = p.shares = 1;
    return p;
}

// Uses a cluster per token and a thread per batch if the GPU has clusters and room.
void spread(CompressParams& p, int64_t tokens, int64_t rows, const Env& env) {
    const DeviceFacts& facts = env.device->facts();
    const int columns = p.columns / kCluster;
    const int64_t shares = ceil_div(rows, int64_t(p.groups) * kManyRows);
    if (facts.capability < 90 || tokens * kCluster > facts.multiprocessors || p.columns % kCluster != 0 ||
        rows > kRows || columns * p.groups * shares > kThreads)
        return;
    p.blocks = kCluster;
    p.columns = columns;
    p.shares = int(shares);
}

}  // namespace

void run_cuda_compress(const smla_compress_args& args, const Env& env) {
    CompressParams p = compress_params(args);
    const int64_t tokens = args.slots.shape[0], rows = p.coff * p.ratio;
    const bool vectors = aligned(p.state, p.cache.width), many = rows > 32;
    if (vectors && many) spread(p, tokens, rows, env);
    const auto kernel = !vectors ? compress_kernel<false, kFewRows>
                        : many   ? compress_kernel<true, kManyRows>
                                 : compress_kernel<true, kFewRows>;
    const size_t shared =
        3 * size_t(p.groups * p.shares * p.columns) * sizeof(float4) + size_t(p.cache.width) * sizeof(float);
    launch_ordered(p.blocks, kernel, tokens * p.blocks, kThreads, shared, env, p);
}

}  // namespace smla::cuda
