// attend by mma.sync on bf16 for 16 heads, for keys of 576 or 512 values and values of 512.
//
// Maths:  S = Q K^T; weights = exp2(S * scale - peak), running over tiles of 32 listed rows; O += weights V;
//         V is the first 512 values of K. f32 sums; weights are rounded to bf16 for the second product.
// Tile:   16 heads x 32 keys, 4 warps. One token per block, a split of its rows each.
// Roles:  all warps do everything. Score: they share the width (warp p takes every fourth 16 columns),
//         queries live in registers, partial products meet in shared memory (exchange), each warp computes
//         the same softmax and keeps the weights as operands. Value: a warp takes 512 / 4 columns.
// Shared: keys [32, width] bf16, two buffers, one for fp8 (swizzled, fill.cuh) | raw records | exchange |
//         factors | rows; sizes in tile.cuh. At most 99 KB.
// Stages: bf16: cp.async of tile j + 1 while tile j is multiplied. fp8: raw bytes of tile j + 1 are under
//         way while tile j is multiplied; after its values each 8 lanes decode the row that they copied.
// Barriers per tile: buffers (top), exchange; fp8, one buffer: once more before it is filled again.
// Why:    memory-bound: small blocks, several on a multiprocessor, hide each other's phases. Splitting the
//         width instead of the keys lets each warp keep its queries.
// Prediction and results: docs/kernels/cuda_attend.md.
#include "engines/cuda_common/launch.cuh"
#include "engines/cuda_common/ptx/grid.cuh"
#include "engines/cuda_mma/attend/fill.cuh"
#include "engines/cuda_mma/attend/queries.cuh"
#include "engines/cuda_mma/attend/softmax.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

namespace {

template <class T>
using FewTiles = Tiles<T::keys, T::row_slots>;

// What a block works with, besides its sums. Of a warp: columns 64 n + 16 part + 8 b of 16 heads.
template <class T>
using Sums = float[T::n_steps][2][4];

template <class T>
struct Block {
    const Arguments& args;
    char* const shared;
    Softmax<4> softmax;
    uint32_t q[T::k_steps][4];

    __device__ Block(const Arguments& args, char* shared)
        : args(args), shared(shared), softmax(args.scale() * kLog2E) {}
    __device__ uint32_t buffer(int i) const {
        return cuda::shared_address(shared) + uint32_t(i * T::keys_bytes);
    }
};

// Which part of the width is this warp's: every fourth 16 columns.
__device__ inline int part_of_warp() { return int(threadIdx.x) / 32; }

// The queries of 16 heads as left operands: step s holds columns 16 * (4 s + part). All loads are under way
// before the first is needed.
template <class T, class Load>
__device__ void load_queries(Block<T>& block, const Place& place, const Load& load) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int h = place.head + lane / 4 + 8 * r;
        const bool real = h < block.args.q.shape[1];
        const int64_t at =
            cuda::element(block.args.q, place.token, real ? h : 0) + 16 * part_of_warp() + 2 * (lane % 4);
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                block.q[s][r + 2 * i] = real ? load(at + 16 * T::warps * s + 8 * i) : 0u;
    }
}
template <class T>
__device__ void load_queries(Block<T>& block, const Place& place) {
    const QueryPairs pairs(block.args.q);
    if (pairs.bf16) load_queries(block, place, [&](int64_t at) { return pairs.of_bf16(at); });
    else load_queries(block, place, [&](int64_t at) { return pairs.of_e4m3(at); });
}

// This warp's share of the products of its 16 heads with 32 keys.
template <class T>
__device__ void score(const uint32_t (&q)[T::k_steps][4], uint32_t buffer, float (&s)[4][4]) {
    const int lane = threadIdx.x % 32, row = (lane & 7) + (lane >> 4) * 8;
    const uint32_t keys =
        piece_at(buffer, T::pitch, uint32_t(row), uint32_t(2 * part_of_warp() + (lane >> 3 & 1)));
#pragma unroll
    for (int i = 0; i < 16; ++i) s[i / 4][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < T::k_steps; ++k) {
        uint32_t low[4], high[4];
        cuda::ldmatrix_x4(low, keys + uint32_t(128 * k));
        cuda::ldmatrix_x4(high, keys + uint32_t(128 * k + 16 * T::pitch));
        cuda::mma_bf16(s[0], q[k], low[0], low[1]);
        cuda::mma_bf16(s[1], q[k], low[2], low[3]);
        cuda::mma_bf16(s[2], q[k], high[0], high[1]);
        cuda::mma_bf16(s[3], q[k], high[2], high[3]);
    }
}

// The whole products, from all warps. In the same order in each of them.
template <class T>
__device__ void sum_parts(float (&s)[4][4], float4* exchange) {
    float4* const first = exchange + cuda::keep(threadIdx.x % 32);
    float4* const own = first + part_of_warp() * 128;
#pragma unroll
    for (int n = 0; n < 4; ++n) own[32 * n] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        float4 sum = first[32 * n];
#pragma unroll
        for (int p = 1; p < T::warps; ++p) {
            const float4 other = first[p * 128 + 32 * n];
            sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
        }
        s[n][0] = sum.x, s[n][1] = sum.y, s[n][2] = sum.z, s[n][3] = sum.w;
    }
}

// One tile: products, weights, values. Bit k of mask: key k is no hole.
template <class T>
__device__ void attend_tile(Block<T>& block, Sums<T>& sums, int buffer, uint32_t mask) {
    float s[4][4], shrink[2];
    score<T>(block.q, block.buffer(buffer), s);
    sum_parts<T>(s, reinterpret_cast<float4*>(block.shared + T::exchange_at));
    if (mask != ~0u) {
        const uint32_t columns = mask >> (2 * (threadIdx.x % 4));
#pragma unroll
        for (int i = 0; i < 16; ++i)
            if (!(columns >> (8 * (i / 4) + i % 2) & 1)) s[i / 4][i % 4] = -INFINITY;
    }
    if (block.softmax.weigh(s, shrink)) {
#pragma unroll
        for (int i = 0; i < 8 * T::n_steps; ++i) sums[i / 8][i / 4 % 2][i % 4] *= shrink[i / 2 % 2];
    }
    const int lane = threadIdx.x % 32;
    const uint32_t values = piece_at(block.buffer(buffer), T::pitch, uint32_t(lane & 15),
                                     uint32_t(2 * part_of_warp() + (lane >> 4)));
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        uint32_t weights[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            weights[i] = cuda::pack_bf16(s[2 * k + i / 2][2 * (i & 1)], s[2 * k + i / 2][2 * (i & 1) + 1]);
#pragma unroll
        for (int n = 0; n < T::n_steps; ++n) {
            uint32_t b[4];
            cuda::ldmatrix_x4_trans(b, values + uint32_t(k * 16 * T::pitch + 128 * n));
            cuda::mma_bf16(sums[n][0], weights, b[0], b[1]);
            cuda::mma_bf16(sums[n][1], weights, b[2], b[3]);
        }
    }
}

// Row i of this thread in a tile: 8 threads a row.
template <class T>
__device__ Lane lane_of(int i) {
    return {threadIdx.x / T::lanes + uint32_t(i * (T::threads / T::lanes)), threadIdx.x % T::lanes};
}

template <class T>
__device__ void copy_bf16(const FewTiles<T>& tiles, int tile, uint32_t buffer) {
#pragma unroll
    for (int i = 0; i < T::rows_per_thread; ++i) {
        const auto lane = lane_of<T>(i);
        const Reader::Row row = tiles.row(tile, int(lane.row));
        copy_row<T::width>(piece_at(buffer, T::pitch, lane.row, lane.piece), tiles.reader(tile).record(row),
                           row.valid, lane.piece);
    }
}

template <class T>
__device__ uint32_t mask_of(const FewTiles<T>& tiles, int tile) {
    return tile < tiles.count() ? __ballot_sync(~0u, tiles.row(tile, int(threadIdx.x % 32)).valid) : 0;
}

// bf16 rows: the next tile is copied into the other buffer while this one is multiplied.
template <class T>
__device__ void walk_bf16(Block<T>& block, const FewTiles<T>& tiles, const Place& place, Sums<T>& sums) {
    copy_bf16<T>(tiles, 0, block.buffer(0));
    cuda::cp_async_commit();
    load_queries(block, place);
    uint32_t mask = mask_of<T>(tiles, 0);
    for (int i = 0; i < tiles.count(); ++i) {
        const int buffer = i & 1;
        cuda::cp_async_wait<0>();
        __syncthreads();  // the tile is whole, and nobody reads the one before it any more
        const uint32_t next = mask_of<T>(tiles, i + 1);
        if (next) copy_bf16<T>(tiles, i + 1, block.buffer(buffer ^ 1));
        if (part_of_warp() == i % T::warps) tiles.fetch(i + 3, int(threadIdx.x % 32));
        cuda::cp_async_commit();
        if (mask) attend_tile<T>(block, sums, buffer, mask);
        mask = next;
    }
}

// fp8 records: raw bytes of the next tile are under way while a tile is multiplied. The raw bytes of a row
// concern its 8 lanes alone.
template <class T>
__device__ void walk_coded(Block<T>& block, const FewTiles<T>& tiles, const Place& place, Sums<T>& sums) {
    const auto raw = [&](uint32_t row) { return block.buffer(0) + uint32_t(T::raw_at) + row * kRawPitch; };
    const auto send = [&](int tile) {
        __syncwarp();  // the warp has decoded what lies there
        if (tile < tiles.count()) {
#pragma unroll
            for (int i = 0; i < T::rows_per_thread; ++i) {
                const auto lane = lane_of<T>(i);
                copy_record<T::lanes>(raw(lane.row), tiles.reader(tile), tiles.row(tile, int(lane.row)),
                                      lane.piece);
            }
        }
        cuda::cp_async_commit();
    };
    const auto decode = [&](int tile) {
        cuda::cp_async_wait<0>();
        __syncwarp();
#pragma unroll 1
        for (int i = 0; i < T::rows_per_thread; ++i) {
            const auto lane = lane_of<T>(i);
            Decoder<T::lanes>(block.args, tiles.extra(tile), tiles.reader(tile).format, lane.piece,
                              raw(lane.row), piece_at(block.buffer(0), T::pitch, lane.row, lane.piece))
                .run();
        }
    };
    send(0);
    load_queries(block, place);
    decode(0);
    send(1);
    uint32_t mask = mask_of<T>(tiles, 0);
    for (int i = 0; i < tiles.count(); ++i) {
        cuda::cp_async_wait<1>();  // the rows of tile i + 2
        __syncthreads();           // the tile is decoded
        const uint32_t next = mask_of<T>(tiles, i + 1);
        if (part_of_warp() == i % T::warps) tiles.fetch(i + 3, int(threadIdx.x % 32));
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
    auto& board = *reinterpret_cast<Board<T::keys, T::row_slots>*>(block.shared + T::board_at);
    const FewTiles<T> tiles(block.args, board, place.token, place.part % cut.splits, cut.splits);
    if (tiles.count() == 0) return;
    if (part_of_warp() < 3) tiles.fetch(part_of_warp(), int(threadIdx.x % 32));
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
    const int lane = threadIdx.x % 32;
    float* const factors = reinterpret_cast<float*>(shared + T::factors_at);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = block.softmax.total(r), largest = block.softmax.top(r);
        const int in_block = lane / 4 + 8 * r;
        if (part_of_warp() == 0 && lane % 4 == 0 && place.head + in_block < args.q.shape[1])
            factors[in_block] = finish_head(args, cut, place, place.head + in_block, block.softmax.any(),
                                            block.softmax.peak2[r], largest, sum);
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const HeadRow row(args, cut, place, lane / 4 + 8 * r, factors[lane / 4 + 8 * r]);
#pragma unroll
        for (int i = 0; i < 2 * T::n_steps; ++i)
            row.store(64 * (i / 2) + 16 * part_of_warp() + 8 * (i % 2) + 2 * (lane % 4),
                      sums[i / 2][i % 2][2 * r], sums[i / 2][i % 2][2 * r + 1]);
    }
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
