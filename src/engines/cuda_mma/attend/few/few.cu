// attend by mma.sync for 16 heads, for keys of 576 or 512 values and values of 512: bf16 rows or fp8 records.
//
// Maths:  S = Q K^T; weights = exp2(S * scale - peak), running over tiles of 32 listed rows; O += weights V;
//         V is the first 512 values of K. f32 sums; weights are rounded, to bf16 or to f16 (codes.cuh), for
//         the second product.
// Tile:   16 heads x 32 keys, 4 warps. One token per block, a split of its rows each.
// Roles:  all warps do everything. Score: they share the width (bf16: every fourth 16 columns; fp8: a quarter
//         each), queries live in registers, partial products meet in shared memory (exchange), each warp
//         computes the same softmax and keeps the weights as operands. Value: a warp takes 512 / 4 columns.
//         What they multiply: rows.cuh, records.cuh.
// Shared: two buffers: keys [32, width] bf16 (swizzled, fill.cuh) or [32] records as they are | exchange |
//         factors | scales of values | rows; sizes in tile.cuh. At most 99 KB. At the end sums of 16 heads
//         lie in the buffers (WayOut).
// Stages: cp.async of tile j + 1 while tile j is multiplied.
// Barriers per tile: buffers (top), exchange.
// Why:    memory-bound: small blocks, several on a multiprocessor, hide each other's phases. Splitting the
//         width instead of the keys lets each warp keep its queries.
// Prediction and results: docs/kernels/cuda_attend.md.
#include "engines/cuda_common/launch.cuh"
#include "engines/cuda_common/ptx/grid.cuh"
#include "engines/cuda_mma/attend/few/records.cuh"
#include "engines/cuda_mma/attend/few/rows.cuh"
#include "engines/cuda_mma/attend/softmax.cuh"

#include <type_traits>

namespace smla::cuda_attend {

namespace {

template <class T>
using FewTiles = Tiles<T::keys, T::row_slots>;

template <class T>
using Share = std::conditional_t<T::coded, FewRecords<T>, FewRows<T>>;

// What a block works with. A warp's operands and sums: few/rows.cuh, few/records.cuh.
template <class T>
struct Block {
    const Arguments& args;
    char* const shared;
    Softmax<4, T::lift> softmax;
    Share<T> share;

    __device__ Block(const Arguments& args, char* shared)
        : args(args), shared(shared), softmax(args.scale() * kLog2E), share(shared) {}
    __device__ uint32_t buffer(int i) const {
        return cuda::shared_address(shared) + uint32_t(i * T::keys_bytes);
    }
};

__device__ inline int part_of_warp() { return int(threadIdx.x) / 32; }

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
__device__ void attend_tile(Block<T>& block, const typename Share<T>::Kind& kind, int buffer, uint32_t mask) {
    float s[4][4], shrink[2];
    block.share.score(block.buffer(buffer), kind, s);
    sum_parts<T>(s, reinterpret_cast<float4*>(block.shared + T::exchange_at));
    if (mask != ~0u) {
        const uint32_t columns = mask >> (2 * (threadIdx.x % 4));
#pragma unroll
        for (int i = 0; i < 16; ++i)
            if (!(columns >> (8 * (i / 4) + i % 2) & 1)) s[i / 4][i % 4] = -INFINITY;
    }
    if (block.softmax.weigh(s, shrink)) block.share.shrink(shrink);
    if (T::coded) block.softmax.settle();
    block.share.add(block.buffer(buffer), kind, s);
}

// A tile is under way: which of its keys are no holes, a bit each. Every lane finds the row of one key;
// 8 threads copy a row, which for fp8 they learn from that lane (2.5 % faster; bf16: 1.6 % slower).
template <class T>
__device__ uint32_t copy(const FewTiles<T>& tiles, int tile, uint32_t buffer) {
    if (tile >= tiles.count()) return 0;
    const Reader reader = tiles.reader(tile);  // at once: each field by itself would be waited for
    const int key = int(threadIdx.x % 32);
    const Reader::Row row = tiles.row(tile, key, reader);
    const uint32_t mask = __ballot_sync(~0u, row.valid);
    if (mask == 0) return 0;
    const auto record = reinterpret_cast<unsigned long long>(reader.record(row));
#pragma unroll
    for (int i = 0; i < T::rows_per_thread; ++i) {
        const uint32_t to = threadIdx.x / T::lanes + uint32_t(i * (T::threads / T::lanes));
        const uint32_t piece = threadIdx.x % T::lanes;
        const bool valid = mask >> to & 1;
        if constexpr (T::coded)
            copy_record<T::width, T::lanes>(buffer + to * T::pitch,
                                            reinterpret_cast<const char*>(__shfl_sync(~0u, record, int(to))),
                                            reader.pieces, valid, piece);
        else
            copy_row<T::width>(piece_at(buffer, T::pitch, to, piece),
                               reader.record(tiles.row(tile, int(to), reader)), valid, piece);
    }
    if constexpr (T::coded)
        if (key / 8 == part_of_warp()) copy_scales(buffer + uint32_t(key) * T::pitch, reader, row);
    return mask;
}

// Queries come by way of the second buffer. Then the next tile is copied into the other buffer while one is
// multiplied.
template <class T>
__device__ void walk(Block<T>& block, const Place& place, const Cut& cut) {
    auto& board = *reinterpret_cast<Board<T::keys, T::row_slots>*>(block.shared + T::board_at);
    const QueryRows<T::width, T::query_rows> queries{block.buffer(1)};
    const uint32_t first_query = uint32_t(T::query_rows * part_of_warp());
    queries.fetch(block.args, place, first_query);
    const FewTiles<T> tiles(block.args, board, place.token, place.split(cut), cut.by_splits);
    if (tiles.count() == 0) {
        cuda::cp_async_commit();
        cuda::cp_async_wait<0>();  // sums go where queries do
        return;
    }
    if (part_of_warp() < 3) tiles.fetch(part_of_warp(), int(threadIdx.x % 32));
    cuda::cp_async_commit();
    cuda::cp_async_wait<0>();
    __syncthreads();
    uint32_t mask = copy<T>(tiles, 0, block.buffer(0));
    cuda::cp_async_commit();
    const uint32_t largest = cuda::shared_address(block.shared) + T::exchange_at;
    if (T::coded) queries.scale(any_format(block.args), first_query, largest);
    __syncthreads();  // all queries are there
    block.share.load_queries(queries, largest, block.softmax.unit);
    for (int i = 0; i < tiles.count(); ++i) {
        const int buffer = i & 1;
        const typename Share<T>::Kind kind(tiles.reader(i));
        cuda::cp_async_wait<0>();
        __syncthreads();  // the tile is whole, and nobody reads the one before it any more
        const uint32_t next = copy<T>(tiles, i + 1, block.buffer(buffer ^ 1));
        if (part_of_warp() == i % T::warps) tiles.fetch(i + 3, int(threadIdx.x % 32));
        cuda::cp_async_commit();
        if (mask) attend_tile<T>(block, kind, buffer, mask);
        mask = next;
    }
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::resident)
    attend_few(const __grid_constant__ Arguments args, const __grid_constant__ Cut cut) {
    extern __shared__ __align__(128) char shared[];
    Block<T> block(args, shared);
    if (cut.splits() > 1) cuda::start_next_grid();
    walk<T>(block, Place(cut, T::heads), cut);
    const Place place(cut, T::heads);
    const int lane = threadIdx.x % 32;
    float* const factors = reinterpret_cast<float*>(shared + T::factors_at);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = block.softmax.total(r), largest2 = block.softmax.top2(r);
        const int in_block = lane / 4 + 8 * r;
        if (part_of_warp() == 0 && lane % 4 == 0 && place.head + in_block < args.q.shape[1])
            factors[in_block] = finish_head(args, cut, place, place.head + in_block, block.softmax.any(),
                                            block.softmax.peak2[r], largest2, sum);
    }
    __syncthreads();  // the factors are there, nobody reads keys any more
    const uint32_t base = cuda::shared_address(shared);
    const WayOut<128> out{base + uint32_t(part_of_warp()) * WayOut<128>::bytes};
    static_assert(T::warps * WayOut<128>::bytes <= T::exchange_at);
    block.share.put(out, any_format(args));
    out.take(args, cut, place, 0, base + T::factors_at, [](int c) { return Share<T>::column_of(c); });
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
