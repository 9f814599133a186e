// project of f32 activations and bf16 weights by mma.sync, few tokens: out[t,g,n] = sum_k x[t,g,k] w[g,n,k].
//
// Math      x is the exact sum of three bf16 (project/split.h); each is multiplied by w, the smallest first.
//           Sums are f32.
// Tile      A warp computes 16 kM outputs n, 8 or 16 tokens, over every splits-th pair of steps of 32 k.
// Operands  The first operand is w, the second is x. Both are loaded directly to registers: any n and k may
//           share a fragment if w, x and out agree. In lane 4 r + c, a step has k from 8 c to 8 c + 7, four
//           of them in each of two products, and n has 2 kM neighbors starting at 2 kM r: rows r and r + 8 of
//           kM fragments. If w is dense along k, 16 bytes are 8 k of one n; along n, they are 8 n of one k,
//           paired by PRMT.
// Pipeline  One step of w and x is loaded while another is multiplied; two more pairs are prefetched.
// Shared    Sums of half of the warps that share outputs, which are added in a tree.
// Registers 252 in blocks of four or eight warps: 64 for w; with 16 tokens 32 for x, 32 for sums, 24 for
//           parts.
// Limit     The bytes of w: 2.3 to 2.7 of 4.2 TB/s with long sums, half as much if a warp has four steps.
// Why       cuBLASLt requires equal dtypes: a kernel before it splits x, and one after it adds the f32
//           results of three parts (docs/kernels/log/cuda_stages.md).
// The order of a sum depends only on the shape of w, but differs from other kernels, so batch-invariant calls
// are not supported.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/project/mma/product.cuh"
#include "engines/cuda/project/mma/run.h"

#include <algorithm>

namespace smla::cuda {

namespace {

constexpr int kMostWarps = 8;     // per block
constexpr int kStep = 32;         // k of all lanes, a piece each
constexpr int kPair = 2 * kStep;  // k of two steps: 128-byte lines of w
constexpr int kAhead = 2;         // pairs of steps that are prefetched
constexpr int kLeastPairs = 2;    // minimum for a warp that shares a sum
// Sums are split up to this number of warps: 16 per multiprocessor of an H100. The number is the same on
// every GPU, because the order of a sum depends on it.
constexpr int64_t kWantedWarps = 16 * 132;

struct Grid {
    int warps, splits;       // warps of a block; warps that share sums
    int tiles, token_tiles;  // blocks per group and token tile; token tiles
};

// A warp's product: kM tiles of 16 outputs and kN tiles of eight tokens.
template <int kM, int kN>
struct Tile {
    int64_t group;
    int warp_n, first_n;  // first output of the warp; first of the lane's 2 kM outputs
    int first_token, split;
    bool exists;  // some of the lane's outputs belong to no other lane
    __device__ Tile(const MmaProduct& p, const Grid& grid) {
        const int warp = int(threadIdx.x / 32), row = int(threadIdx.x % 32 / 4);
        const unsigned block = blockIdx.x / unsigned(grid.token_tiles);
        first_token = int(blockIdx.x % unsigned(grid.token_tiles)) * 8 * kN;
        group = block / unsigned(grid.tiles);
        const int tile = int(block % unsigned(grid.tiles)) * (grid.warps / grid.splits) + warp / grid.splits;
        warp_n = 16 * kM * tile;
        first_n = warp_n + 2 * kM * row;
        exists = first_n < p.outer;
        // The last lanes compute some outputs redundantly, with equal sums.
        first_n = min(first_n, p.outer - 2 * kM);
        split = warp % grid.splits;
    }
};

// Prefetches a pair of steps starting at k0, 128 bytes per lane.
template <bool kAlongK, int kM, int kN>
__device__ void prefetch_weights(const MmaProduct& p, const Tile<kM, kN>& tile, int k0) {
    const int lane = int(threadIdx.x % 32);
    const uint16_t* const w = p.w + tile.group * p.w_group;
    if constexpr (kAlongK) {
        for (int n = tile.warp_n + lane; n < min(tile.warp_n + 16 * kM, p.outer); n += 32)
            if (k0 < p.inner) prefetch_line(w + n * p.w_step + k0);
    } else {
        for (int k = k0 + lane; k < min(k0 + kPair, p.inner); k += 32)
            if (tile.warp_n < p.outer) prefetch_line(w + k * p.w_step + tile.warp_n);
    }
}
template <int kM, int kN>
__device__ void prefetch_activations(const MmaProduct& p, const Tile<kM, kN>& tile, int k0) {
    constexpr int kLines = kPair * int(sizeof(float)) / 128;
    const int lane = int(threadIdx.x % 32), token = tile.first_token + lane / kLines,
              k = k0 + kPair / kLines * (lane % kLines);
    static_assert(kLines * 8 * kN <= 32);
    if (lane < kLines * 8 * kN && token < p.tokens && k < p.inner)
        prefetch_line(p.x + token * p.x_token + tile.group * p.x_group + k);
}

// A lane's weights of one step: 8 k of each of 2 kM outputs.
template <bool kAlongK, int kM>
struct Weights {
    static_assert(kAlongK || kM == 4, "along n 16 bytes are 8 outputs");
    uint4 raw[2 * kM];

    // Returns the address of piece i; `lane` is the address of the lane's first piece.
    __device__ static const uint16_t* piece(const MmaProduct& p, const uint16_t* lane, int k, int i) {
        return kAlongK ? lane + i * p.w_step + k : lane + (k + i) * p.w_step;
    }
    __device__ void load(const MmaProduct& p, const uint16_t* lane, int k) {
#pragma unroll
        for (int i = 0; i < 2 * kM; ++i)
            raw[i] =
                k < p.inner ? *reinterpret_cast<const uint4*>(piece(p, lane, k, i)) : make_uint4(0, 0, 0, 0);
    }
    __device__ uint32_t word(int i, int at) const { return (&raw[i].x)[at]; }
    // Writes the operand of outputs 2 m and 2 m + 1, for k from 4 half to 4 half + 3, to `a`.
    __device__ void operand(int m, int half, uint32_t (&a)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int n = 2 * m + i % 2, pair = 2 * half + i / 2;
            if constexpr (kAlongK) a[i] = word(n, pair);
            else a[i] = __byte_perm(word(2 * pair, m), word(2 * pair + 1, m), i % 2 ? 0x7632 : 0x5410);
        }
    }
};

// A lane's activations of one step: 8 k of token `row` of each tile of eight tokens.
template <int kN>
struct Activations {
    float values[kN][kPiece];

    __device__ void load(const MmaProduct& p, const float* const (&x)[kN], int k) {
#pragma unroll
        for (int u = 0; u < kN; ++u)
#pragma unroll
            for (int i = 0; i < kPiece; i += 4) {
                const float4 four =
                    k < p.inner ? *reinterpret_cast<const float4*>(x[u] + k + i) : make_float4(0, 0, 0, 0);
                values[u][i] = four.x, values[u][i + 1] = four.y;
                values[u][i + 2] = four.z, values[u][i + 3] = four.w;
            }
    }
};

// A product needs the previous sums after about 30 cycles, so the kM x kN tiles alternate.
template <bool kAlongK, int kM, int kN>
__device__ void multiply(const Weights<kAlongK, kM>& w, Activations<kN>& x, float (&sums)[kM][kN][4]) {
    uint32_t parts[kN][kParts][kPiece / 2];
#pragma unroll
    for (int u = 0; u < kN; ++u) split(x.values[u], parts[u]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t a[kM][4];
#pragma unroll
        for (int m = 0; m < kM; ++m) w.operand(m, half, a[m]);
#pragma unroll
        for (int part = kParts - 1; part >= 0; --part)
#pragma unroll
            for (int m = 0; m < kM; ++m)
#pragma unroll
                for (int u = 0; u < kN; ++u)
                    mma_bf16(sums[m][u], a[m], parts[u][part][2 * half], parts[u][part][2 * half + 1]);
    }
}

// Adds the sums of the warps that share outputs into split 0, in a fixed order.
template <int kM, int kN>
__device__ void reduce_splits(int splits, int split, float (&sums)[kM][kN][4]) {
    constexpr int kValues = kM * kN * 4;
    __shared__ float slabs[kMostWarps / 2][kValues][32];
    const int lane = int(threadIdx.x % 32), first = int(threadIdx.x / 32) / splits * (splits / 2);
    float* const own = &sums[0][0][0];
    for (int half = splits / 2; half > 0; half /= 2) {
        __syncthreads();
        if (split >= half && split < 2 * half)
#pragma unroll
            for (int i = 0; i < kValues; ++i) slabs[first + split - half][i][lane] = own[i];
        __syncthreads();
        if (split < half)
#pragma unroll
            for (int i = 0; i < kValues; ++i) own[i] += slabs[first + split][i][lane];
    }
}

template <int kM, int kN>
__device__ void store(const MmaProduct& p, const Tile<kM, kN>& tile, const float (&sums)[kM][kN][4]) {
    if (!tile.exists) return;
#pragma unroll
    for (int u = 0; u < kN; ++u)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const int token = tile.first_token + 8 * u + 2 * int(threadIdx.x % 4) + odd;
            if (token >= p.tokens) continue;
            float run[2 * kM];
#pragma unroll
            for (int i = 0; i < 2 * kM; ++i) run[i] = sums[i / 2][u][2 * (i % 2) + odd];
            const int64_t at = element(p.out, token, tile.group, tile.first_n);
            if (p.whole_runs) store_run(p.out, at, run);
            else
#pragma unroll
                for (int i = 0; i < 2 * kM; ++i) store_value(p.out, at + i * p.out.stride_elems[2], run[i]);
        }
}

template <bool kAlongK, int kM, int kN>
__global__ void __launch_bounds__(32 * kMostWarps)
    mma_few(const GridOrder order, const __grid_constant__ MmaProduct p, const __grid_constant__ Grid grid) {
    const Tile<kM, kN> tile(p, grid);
    const uint16_t* const w = p.w + tile.group * p.w_group + tile.first_n * (kAlongK ? p.w_step : 1);
    const int first = kPair * tile.split, apart = kPair * grid.splits;
    const int row = int(threadIdx.x % 32 / 4), own_k = kPiece * int(threadIdx.x % 4);
    for (int i = 0; order.has_work() && i < kAhead; ++i)
        prefetch_weights<kAlongK>(p, tile, first + i * apart);
    if (!order.start()) return;
    const float* x[kN];
#pragma unroll
    for (int u = 0; u < kN; ++u)  // tokens past the end repeat the last; those sums are not stored
        x[u] = p.x + min(tile.first_token + 8 * u + row, p.tokens - 1) * p.x_token + tile.group * p.x_group;
    for (int i = 0; i < kAhead; ++i) prefetch_activations(p, tile, first + i * apart);
    Weights<kAlongK, kM> weights[2];
    Activations<kN> activations[2];
    const auto load = [&](int stage, int k) {
        asm volatile("" ::: "memory");  // not earlier, because a third step does not fit in registers
        weights[stage].load(p, w, k + own_k);
        activations[stage].load(p, x, k + own_k);
    };
    float sums[kM][kN][4] = {};
    load(0, first);
    for (int k = first; k < p.inner; k += apart) {
        prefetch_weights<kAlongK>(p, tile, k + kAhead * apart);
        prefetch_activations(p, tile, k + kAhead * apart);
        load(1, k + kStep);
        multiply(weights[0], activations[0], sums);
        load(0, k + apart);
        multiply(weights[1], activations[1], sums);  // zeros past the end
    }
    if (grid.splits > 1) reduce_splits(grid.splits, tile.split, sums);
    if (tile.split == 0) store(p, tile, sums);
}

template <bool kAlongK, int kM, int kN>
void launch_tiles(const MmaProduct& p, int64_t groups, const Env& env) {
    Grid grid{.warps = 4, .splits = 1, .tiles = 0, .token_tiles = int(ceil_div(p.tokens, 8 * kN))};
    const int64_t warps = groups * ceil_div(p.outer, 16 * kM);
    while (grid.splits < kMostWarps && 2 * grid.splits * kLeastPairs * kPair <= p.inner &&
           warps * grid.splits < kWantedWarps)
        grid.splits *= 2;
    grid.warps = std::max(grid.warps, grid.splits);
    grid.tiles = int(ceil_div(p.outer, 16 * kM * grid.warps / grid.splits));
    launch_ordered(mma_few<kAlongK, kM, kN>, groups * grid.tiles * grid.token_tiles, 32 * grid.warps, 0, env,
                   p, grid);
}

}  // namespace

void run_mma_few(const MmaProduct& p, int64_t groups, const Env& env) {
    if (p.along_k && !enough_tiles(groups, p.outer)) return launch_tiles<true, 1, 2>(p, groups, env);
    // Up to eight tokens with fewer tiles are handled by cuda_few_project (candidate.cpp).
    const bool one_tile = p.tokens <= 8;
    if (p.along_k && one_tile) return launch_tiles<true, 4, 1>(p, groups, env);
    if (p.along_k) return launch_tiles<true, 4, 2>(p, groups, env);
    if (one_tile) return launch_tiles<false, 4, 1>(p, groups, env);
    launch_tiles<false, 4, 2>(p, groups, env);
}

}  // namespace smla::cuda
