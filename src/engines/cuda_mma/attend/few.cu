// attend by mma.sync on bf16 for 16 heads, for keys of 576 or 512 values and values of 512.
//
// Maths:  S = Q K^T; weights = exp2(S * scale - peak), running over tiles of 32 listed rows; O += weights V;
//         V is the first 512 values of K. f32 sums; weights are rounded to bf16 for the second product.
// Tile:   16 heads x 32 keys, 4 warps. One token per block, a split of its rows each.
// Roles:  all warps do everything. Score: they share the width (warp p takes every fourth 16 columns),
//         queries live in registers, partial products meet in shared memory (exchange), each warp computes
//         the same softmax and keeps the weights as operands. Value: a warp takes 512 / 4 columns.
// Shared: keys [32, width] bf16, two buffers, one for fp8 (swizzled, keys.cuh) | raw records | exchange |
//         factors | rows; sizes in tile.cuh. At most 99 KB.
// Stages: bf16: cp.async of tile j + 1 while tile j is multiplied. fp8: raw bytes of tile j + 1 are under
//         way while tile j is multiplied; after its values each 8 lanes decode the row that they copied.
// Barriers per tile: buffers (top), exchange; fp8, one buffer: once more before it is filled again.
// Why:    memory-bound: small blocks, several on a multiprocessor, hide each other's phases. Splitting the
//         width instead of the keys lets each warp keep its queries.
// Prediction and results: docs/kernels/cuda_attend.md.
#include "engines/cuda_common/launch.cuh"
#include "engines/cuda_common/ptx/grid.cuh"
#include "engines/cuda_mma/attend/keys.cuh"
#include "engines/cuda_mma/attend/products.cuh"
#include "engines/cuda_mma/attend/run.h"
#include "engines/cuda_mma/attend/softmax.cuh"

namespace smla::cuda_attend {

namespace {

using FewSoftmax = Softmax<2, 4>;

// This warp's share of the products of its 16 heads with 32 keys.
template <class T>
__device__ void score(const uint32_t (&q)[T::k_steps][4], uint32_t buffer, float (&s)[4][4]) {
    const uint32_t keys = score_operand<T>(buffer);
#pragma unroll
    for (int i = 0; i < 16; ++i) s[i / 4][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < T::k_steps; ++k) {
        uint32_t low[4], high[4];
        cuda::ldmatrix_x4(low, keys + uint32_t(128 * k));
        cuda::ldmatrix_x4(high, keys + uint32_t(128 * k + 16 * T::row));
        cuda::mma_bf16(s[0], q[k], low[0], low[1]);
        cuda::mma_bf16(s[1], q[k], low[2], low[3]);
        cuda::mma_bf16(s[2], q[k], high[0], high[1]);
        cuda::mma_bf16(s[3], q[k], high[2], high[3]);
    }
}

// The whole products, from all warps. In the same order in each of them.
__device__ inline void sum_parts(float (&s)[4][4], float4* exchange) {
    float4* const first = exchange + derive_here(int(threadIdx.x % 32));
    float4* const own = first + part_of_warp() * 128;
#pragma unroll
    for (int n = 0; n < 4; ++n) own[32 * n] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        float4 sum = first[32 * n];
#pragma unroll
        for (int p = 1; p < kParts; ++p) {
            const float4 other = first[p * 128 + 32 * n];
            sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
        }
        s[n][0] = sum.x, s[n][1] = sum.y, s[n][2] = sum.z, s[n][3] = sum.w;
    }
}

// What a block works with, besides its sums.
template <class T>
struct Block {
    const Arguments& args;
    char* shared;
    int warp;
    FewSoftmax softmax;
    uint32_t q[1][T::k_steps][4];
    float unit;  // turns a product into a logit in powers of two

    __device__ Block(const Arguments& args, char* shared)
        : args(args),
          shared(shared),
          warp(int(threadIdx.x / 32)),
          softmax(shared + T::peaks_at),
          unit(args.scale() * kLog2E) {}
};

// One tile: products, weights, values. Bit k of mask: key k is no hole.
template <class T>
__device__ void attend_tile(Block<T>& block, Sums<T>& sums, int buffer, uint32_t mask) {
    const uint32_t keys = cuda::shared_address(block.shared) + uint32_t(buffer * T::keys_bytes);
    float s[4][4];
    score<T>(block.q[0], keys, s);
    sum_parts(s, reinterpret_cast<float4*>(block.shared + T::exchange_at));
    float shrink[1][2];
    const uint32_t columns = mask >> (2 * (threadIdx.x % 4));
    block.softmax.weigh(s, block.unit, shrink[0], mask != ~0u,
                        [&](int n, int c) { return !(columns >> (8 * n + c) & 1); });
    shrink_sums<T>(sums, shrink);
    const uint32_t values = value_operand<T>(keys);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        uint32_t weights[1][4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            weights[0][i] = cuda::pack_bf16(s[2 * k + i / 2][2 * (i & 1)], s[2 * k + i / 2][2 * (i & 1) + 1]);
        add_values<T>(sums, weights, values + uint32_t(k * 16 * T::row));
    }
}

template <class T>
__device__ void copy_bf16(const Tiles<T::keys>& tiles, int tile, uint32_t buffer) {
#pragma unroll
    for (int i = 0; i < T::rows_per_thread; ++i) Filler<T>::copy_bf16(tiles, tile, i, buffer);
}

template <class T>
__device__ uint32_t mask_of(const Tiles<T::keys>& tiles, int tile) {
    return tile < tiles.count() ? __ballot_sync(~0u, tiles.row(tile, int(threadIdx.x % 32)).valid) : 0;
}

// bf16 rows: the next tile is copied into the other buffer while this one is multiplied.
template <class T>
__device__ void walk_bf16(Block<T>& block, const Tiles<T::keys>& tiles, const Place& place, Sums<T>& sums) {
    const uint32_t base = cuda::shared_address(block.shared);
    copy_bf16<T>(tiles, 0, base);
    cuda::cp_async_commit();
    load_queries<T>(block.args, place.token, place.head, block.q);
    uint32_t mask = mask_of<T>(tiles, 0);
    for (int i = 0; i < tiles.count(); ++i) {
        const int buffer = i & 1;
        cuda::cp_async_wait<0>();
        __syncthreads();  // the tile is whole, and nobody reads the one before it any more
        const uint32_t next = mask_of<T>(tiles, i + 1);
        if (next) copy_bf16<T>(tiles, i + 1, base + uint32_t((buffer ^ 1) * T::keys_bytes));
        if (block.warp == i % T::warps) tiles.fetch(i + 3, int(threadIdx.x % 32));
        cuda::cp_async_commit();
        if (mask) attend_tile<T>(block, sums, buffer, mask);
        mask = next;
    }
}

// fp8 records: raw bytes of the next tile are under way while a tile is multiplied. The raw bytes of a row
// concern its 8 lanes alone.
template <class T>
__device__ void walk_coded(Block<T>& block, const Tiles<T::keys>& tiles, const Place& place, Sums<T>& sums) {
    char* const raw = block.shared + T::raw_at;
    const auto send = [&](int tile) {
        __syncwarp();  // the warp has decoded what lies there
        if (tile < tiles.count()) {
#pragma unroll
            for (int i = 0; i < T::rows_per_thread; ++i)
                Filler<T>::copy_raw(tiles, tile, i, cuda::shared_address(raw));
        }
        cuda::cp_async_commit();
    };
    const auto decode = [&](int tile) {
        cuda::cp_async_wait<0>();
        __syncwarp();
#pragma unroll 1
        for (int i = 0; i < T::rows_per_thread; ++i)
            Filler<T>::decode_row(block.args, tiles, tile, i, raw, block.shared);
    };
    send(0);
    load_queries<T>(block.args, place.token, place.head, block.q);
    decode(0);
    send(1);
    uint32_t mask = mask_of<T>(tiles, 0);
    for (int i = 0; i < tiles.count(); ++i) {
        cuda::cp_async_wait<1>();  // the rows of tile i + 2
        __syncthreads();           // the tile is decoded
        const uint32_t next = mask_of<T>(tiles, i + 1);
        if (block.warp == i % T::warps) tiles.fetch(i + 3, int(threadIdx.x % 32));
        cuda::cp_async_commit();
        if (mask) attend_tile<T>(block, sums, 0, mask);
        __syncthreads();  // all have read this tile's values
        if (next) decode(i + 1);
        else cuda::cp_async_wait<0>();
        send(i + 2);
        mask = next;
    }
}

template <class T>
__device__ void walk(Block<T>& block, const Place& place, const Cut& cut, Sums<T>& sums) {
    auto& board = *reinterpret_cast<Board<T::keys>*>(block.shared + T::board_at);
    const Tiles<T::keys> tiles(block.args, board, place.token, place.part % cut.splits, cut.splits);
    if (tiles.count() == 0) return;
    if (block.warp < 3) tiles.fetch(block.warp, int(threadIdx.x % 32));
    cuda::cp_async_commit();
    cuda::cp_async_wait<0>();
    __syncthreads();
    if constexpr (T::coded) walk_coded<T>(block, tiles, place, sums);
    else walk_bf16<T>(block, tiles, place, sums);
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::resident)
    attend_few(const __grid_constant__ Arguments args, const __grid_constant__ Cut cut) {
    extern __shared__ __align__(128) char shared[];
    Block<T> block(args, shared);
    if (cut.splits > 1) cuda::start_next_grid();
    Sums<T> sums = {};
    walk<T>(block, Place(cut, T::heads), cut, sums);
    const Place place(cut, T::heads);
    float* const factors = reinterpret_cast<float*>(shared + T::factors_at);
    const FewSoftmax& softmax = block.softmax;
    __syncwarp();  // one lane of four has written them
    const Peaks<2> peaks = *softmax.heads;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = softmax.total(r);
        const int h = int(threadIdx.x % 32) / 4 + 8 * r;
        if (block.warp == 0 && threadIdx.x % 4 == 0 && place.head + h < args.q.shape[1])
            finish_head(args, cut, place, place.head + h, softmax.any(), peaks.peak2[r], peaks.largest[r],
                        sum, factors[h]);
    }
    __syncthreads();
    if (cut.splits == 1 || softmax.any()) store_sums<T>(args, cut, place, 0, factors, sums);
}

}  // namespace

template <int Width, bool Coded>
void launch_few(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env) {
    using T = FewHeads<Width, Coded>;
    cuda::launch(attend_few<T>, schedule.blocks(), T::threads, T::bytes, env, Arguments(args), cut);
}
template void launch_few<576, false>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);
template void launch_few<576, true>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);
template void launch_few<512, false>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);
template void launch_few<512, true>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);

}  // namespace smla::cuda_attend
