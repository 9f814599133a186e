// attend by mma.sync on bf16, for keys of 576 or 512 values and values of 512.
//
// Maths:  S = Q K^T; weights = exp2(S * scale - peak), running over tiles of 32 listed rows; O += weights V;
//         V is the first 512 values of K. f32 sums; weights are rounded to bf16 for the second product.
// Tiles:  "few": 16 heads, 4 warps. "many": 64 heads, 8 warps in 4 groups of 16 heads. One token per block, a
//         split of its rows each.
// Roles:  all warps do everything. Score: a group's warps share the width (warp p takes every Parts-th 16
//         columns), queries live in registers, partial products meet in shared memory (exchange), each warp
//         of the group computes the same softmax. Value: a warp takes all heads of the block x 512 / warps
//         columns; with 4 groups the weights pass through shared memory.
// Shared: keys [32, width] bf16, two buffers (swizzled, keys.cuh) | raw records | exchange | weights |
// factors;
//         sizes in tile.cuh. At most 99 KB.
// Stages: bf16 rows: cp.async of tile j + 1 while tile j is multiplied. fp8: raw bytes of tile j + 2 are
// under
//         way while tile j is multiplied; after the values of tile j each 8 lanes decode the row that they
//         themselves copied.
// Barriers per tile: buffers (top), exchange, weights (many only).
// Why:    64 heads x 512 f32 sums are half a register file, so one block of 8 warps per multiprocessor;
// queries
//         in registers (72 each) leave shared memory to keys. Splitting the width instead of the keys lets
//         each warp keep its queries; splitting value columns lets each key pass once per warp pair of tiles.
// Prediction and results: docs/kernels/cuda_attend.md.
#include "engines/cuda_common/launch.cuh"
#include "engines/cuda_common/ptx/grid.cuh"
#include "engines/cuda_mma/attend/keys.cuh"
#include "engines/cuda_mma/attend/run.h"
#include "engines/cuda_mma/attend/softmax.cuh"
#include "engines/cuda_mma/attend/splits.cuh"

namespace smla::cuda_attend {

namespace {

// The queries of a group as left operands: step s of part p holds columns 16 * (Parts * s + p). All loads are
// under way before the first is needed.
template <class T, class Load>
__device__ void load_queries(const Arguments& args, int t, int head, uint32_t (&q)[T::k_steps][4],
                             const Load& load) {
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % T::parts;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int h = head + lane / 4 + 8 * r;
        const bool real = h < args.q.shape[1];
        const int64_t at = cuda::element(args.q, t, real ? h : 0) + 16 * part + 2 * (lane % 4);
#pragma unroll
        for (int s = 0; s < T::k_steps; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i) q[s][r + 2 * i] = real ? load(at + 16 * T::parts * s + 8 * i) : 0u;
    }
}
template <class T>
__device__ void load_queries(const Arguments& args, int t, int head, uint32_t (&q)[T::k_steps][4]) {
    if (args.q.dtype == SMLA_BF16) {
        const auto* const values = static_cast<const uint16_t*>(args.q.data);
        load_queries<T>(args, t, head, q,
                        [&](int64_t at) { return *reinterpret_cast<const uint32_t*>(values + at); });
        return;
    }
    const auto* const codes = static_cast<const uint8_t*>(args.q.data);
    load_queries<T>(args, t, head, q, [&](int64_t at) {
        uint32_t pair, unused;
        cuda::e4m3_to_f16(codes[at] | uint32_t(codes[at + 1]) << 8, pair, unused);
        return cuda::pack_bf16(cuda::f16_low(pair), cuda::f16_high(pair));
    });
}

// This warp's share of the products of its 16 heads with 32 keys.
template <class T>
__device__ void score(const uint32_t (&q)[T::k_steps][4], uint32_t buffer, float (&s)[4][4]) {
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % T::parts;
    const int row = (lane & 7) + (lane >> 4) * 8, piece = 2 * part + (lane >> 3 & 1);
    const uint32_t even = buffer + uint32_t(row * T::row + ((piece ^ (lane & 7)) << 4));
    const uint32_t odd = even ^ 64;  // 4 pieces on; buffers are aligned to 128 bytes
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = 0;
#pragma unroll
    for (int k = 0; k < T::k_steps; ++k) {
        // part p's step k starts at piece 2 * (Parts * k + p)
        const uint32_t at =
            T::parts == 4 ? even + uint32_t(128 * k) : (k & 1 ? odd : even) + uint32_t(128 * (k / 2));
        uint32_t low[4], high[4];
        cuda::ldmatrix_x4(low, at);
        cuda::ldmatrix_x4(high, at + 16 * T::row);
        cuda::mma_bf16(s[0], q[k], low[0], low[1]);
        cuda::mma_bf16(s[1], q[k], low[2], low[3]);
        cuda::mma_bf16(s[2], q[k], high[0], high[1]);
        cuda::mma_bf16(s[3], q[k], high[2], high[3]);
    }
}

// The whole products, from all warps of the group. In the same order in each of them.
template <class T>
__device__ void sum_parts(float (&s)[4][4], float4* exchange) {
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % T::parts, warp = threadIdx.x / 32;
    float4* const own = exchange + derive_here(warp * 128 + lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) own[32 * n] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    __syncthreads();
    const float4* const group = own - part * 128;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        if constexpr (T::parts == 2) {
            const float4 other = group[(part ^ 1) * 128 + 32 * n];
            s[n][0] += other.x, s[n][1] += other.y, s[n][2] += other.z, s[n][3] += other.w;
        } else {
            float4 sum = group[32 * n];
#pragma unroll
            for (int p = 1; p < T::parts; ++p) {
                const float4 other = group[p * 128 + 32 * n];
                sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
            }
            s[n][0] = sum.x, s[n][1] = sum.y, s[n][2] = sum.z, s[n][3] = sum.w;
        }
    }
}

// Weights [64 heads, 32 keys] in bf16: 64 bytes per head, 16-byte piece c of head h at c ^ (h / 2 & 3).
__device__ inline uint32_t weights_place(int head, int piece) {
    return uint32_t(head * 64 + ((piece ^ (head >> 1 & 3)) << 4));
}

// Each of a group's two warps stores the weights of 16 keys, the first also what its sums shrink by.
template <class T>
__device__ void store_weights(const float (&s)[4][4], const float (&shrink)[2], char* weights,
                              float* factors) {
    const int thread = derive_here(int(threadIdx.x));
    const int lane = thread % 32, warp = thread / 32, part = warp % 2;
    const int head = 16 * (warp / 2) + lane / 4;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float low = part ? s[n + 2][2 * r] : s[n][2 * r];
            const float high = part ? s[n + 2][2 * r + 1] : s[n][2 * r + 1];
            *reinterpret_cast<uint32_t*>(weights + weights_place(head + 8 * r, 2 * part + n) +
                                         4 * (lane % 4)) = cuda::pack_bf16(low, high);
        }
    if (part == 0 && lane % 4 == 0)
        reinterpret_cast<float2*>(factors)[8 * (warp / 2) + lane / 4] = make_float2(shrink[0], shrink[1]);
}

template <class T>
using Sums = float[T::m_tiles][T::n_steps][2][4];

template <class T>
__device__ void shrink_sums(Sums<T>& sums, const float (&shrink)[T::m_tiles][2]) {
    bool changed = false;
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) changed = changed || shrink[m][0] != 1 || shrink[m][1] != 1;
    if (!__any_sync(~0u, changed)) return;
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
        for (int i = 0; i < 8 * T::n_steps; ++i) sums[m][i / 8][i / 4 % 2][i % 4] *= shrink[m][i / 2 % 2];
}

// O += weights V for this warp's columns: 16 * (4 * group of 64 + warp % 4). `between` is called once with
// -1, then with 0 to 7, for work that hides behind the products.
template <class T, class Between>
__device__ void add_values(Sums<T>& sums, const uint32_t (&own)[2][4], uint32_t weights, uint32_t buffer,
                           const Between& between) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int piece = 2 * (warp % 4) + (lane >> 4);
    between(-1);
    const uint32_t values =
        buffer + uint32_t((lane & 15) * T::row + ((piece ^ (lane & 7)) << 4) + (warp / 4) * 128);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        uint32_t a[T::m_tiles][4];
#pragma unroll
        for (int m = 0; m < T::m_tiles; ++m) {
            if constexpr (T::many)
                cuda::ldmatrix_x4(a[m], weights + weights_place(16 * m + (lane & 15), 2 * k + (lane >> 4)));
            else
                for (int i = 0; i < 4; ++i) a[m][i] = own[k][i];  // the warp's own weights
        }
#pragma unroll
        for (int n = 0; n < T::n_steps; ++n) {
            uint32_t b[4];
            cuda::ldmatrix_x4_trans(b, values + uint32_t(k * 16 * T::row + n * (T::warps / 4) * 128));
#pragma unroll
            for (int m = 0; m < T::m_tiles; ++m) {
                cuda::mma_bf16(sums[m][n][0], a[m], b[0], b[1]);
                cuda::mma_bf16(sums[m][n][1], a[m], b[2], b[3]);
            }
            constexpr int kEvery = 2 * T::n_steps / 8;
            const int step = k * T::n_steps + n;
            if (step % kEvery == 0) between(step / kEvery);
        }
    }
}

// One tile: products, weights, values.
template <class T, class Between>
__device__ void attend_tile(const uint32_t (&q)[T::k_steps][4], Softmax& softmax, Sums<T>& sums, char* shared,
                            int buffer, uint32_t mask, float unit, const Between& between) {
    const uint32_t base = cuda::shared_address(shared);
    const uint32_t keys = base + uint32_t(buffer * T::keys_bytes);
    float s[4][4];
    score<T>(q, keys, s);
    sum_parts<T>(s, reinterpret_cast<float4*>(
                        shared + (T::exchange_in_buffer ? (buffer ^ 1) * T::keys_bytes : T::exchange_at)));
    float shrink[2];
    softmax.weigh(s, mask, unit, shrink);
    uint32_t own[2][4];
    float all[T::m_tiles][2];
    if constexpr (T::many) {
        float* const factors = reinterpret_cast<float*>(shared + T::factors_at);
        store_weights<T>(s, shrink, shared + T::weights_at, factors);
        __syncthreads();
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < T::m_tiles; ++m) {
            const float2 pair = reinterpret_cast<const float2*>(factors)[8 * m + lane / 4];
            all[m][0] = pair.x, all[m][1] = pair.y;
        }
    } else {
#pragma unroll
        for (int k = 0; k < 2; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                own[k][i] = cuda::pack_bf16(s[2 * k + i / 2][2 * (i & 1)], s[2 * k + i / 2][2 * (i & 1) + 1]);
        all[0][0] = shrink[0], all[0][1] = shrink[1];
    }
    shrink_sums<T>(sums, all);
    add_values<T>(sums, own, base + T::weights_at, keys, between);
}

// What a block works with, besides its sums.
template <class T>
struct Block {
    const Arguments& args;
    Board& board;
    char* shared;
    int lane, warp;
    Softmax softmax;
    uint32_t q[T::k_steps][4];
    float unit;  // turns a product into a logit in powers of two

    __device__ Block(const Arguments& args, char* shared)
        : args(args),
          board(*reinterpret_cast<Board*>(shared + T::board_at)),
          shared(shared),
          lane(int(threadIdx.x % 32)),
          warp(int(threadIdx.x / 32)),
          softmax(reinterpret_cast<HeadPair*>(shared + T::pairs_at)),
          unit(args.scale() * kLog2E) {}
    __device__ void load() { load_queries<T>(args, board.token, board.head + 16 * (warp / T::parts), q); }
};

// bf16 rows: the next tile is copied into the other buffer while this one is multiplied.
template <class T>
__device__ void walk_bf16(Block<T>& block, const Tiles& tiles, Sums<T>& sums) {
    const uint32_t base = cuda::shared_address(block.shared);
    Filler<T>::copy_bf16(block.args, tiles, 0, base);
    cuda::cp_async_commit();
    block.load();
    uint32_t mask = tiles.mask(0);
    for (int i = 0; i < tiles.count(); ++i) {
        const int buffer = i & 1;
        cuda::cp_async_wait<0>();
        __syncthreads();  // the tile is whole, and nobody reads the one before it any more
        const uint32_t next = i + 1 < tiles.count() ? tiles.mask(i + 1) : 0;
        if (next)
            Filler<T>::copy_bf16(block.args, tiles, i + 1, base + uint32_t((buffer ^ 1) * T::keys_bytes));
        if (block.warp == i % T::warps) tiles.fetch(i + 3);
        cuda::cp_async_commit();
        if (mask)
            attend_tile<T>(block.q, block.softmax, sums, block.shared, buffer, mask, block.unit, [](int) {});
        mask = next;
    }
}

// fp8 records: raw bytes of the tile after the next are under way while a tile is multiplied. The raw bytes
// of a row concern its 8 lanes alone. With two buffers, the next tile is decoded between this one's value
// products.
template <class T>
__device__ void walk_coded(Block<T>& block, const Tiles& tiles, Sums<T>& sums) {
    using Decoder = typename Filler<T>::Decoder;
    char* const raw = block.shared + T::raw_at;
    const auto send = [&](int tile) {
        __syncwarp();  // the warp has decoded what lies there
        if (tile < tiles.count()) Filler<T>::copy_raw(block.args, tiles, tile, cuda::shared_address(raw));
        cuda::cp_async_commit();
    };
    const auto arrive = [] {
        cuda::cp_async_wait<0>();
        __syncwarp();
    };
    const auto decode = [&](int tile) {
        arrive();
        char* const buffer = block.shared + tile % T::buffers * T::keys_bytes;
#pragma unroll 1
        for (int i = 0; i < T::rows_per_thread; ++i) {
            Decoder decoder;
            decoder.begin(block.args, tiles.extra(tile), i, raw, buffer);
#pragma unroll
            for (int half = 0; half < 8; half += 4) {
                typename Decoder::Codes codes[4];
#pragma unroll
                for (int c = 0; c < 4; ++c) codes[c] = decoder.load(half + c);
#pragma unroll
                for (int c = 0; c < 4; ++c) decoder.convert(half + c, codes[c]);
            }
            decoder.finish();
        }
    };
    send(0);
    block.load();
    decode(0);
    send(1);
    uint32_t mask = tiles.mask(0);
    for (int i = 0; i < tiles.count(); ++i) {
        const int buffer = i % T::buffers;
        cuda::cp_async_wait<1>();  // the rows of tile i + 2
        __syncthreads();           // the tile is decoded, and nobody reads the one before it any more
        const uint32_t next = i + 1 < tiles.count() ? tiles.mask(i + 1) : 0;
        if (block.warp == i % T::warps) tiles.fetch(i + 3);
        cuda::cp_async_commit();
        if (T::many && mask) {
            static_assert(!T::many || (T::rows_per_thread == 1 && T::buffers == 2));
            char* const other = block.shared + (buffer ^ 1) * T::keys_bytes;
            Decoder decoder;  // where no tile follows it decodes what nobody reads
            typename Decoder::Codes codes;
            attend_tile<T>(block.q, block.softmax, sums, block.shared, buffer, mask, block.unit, [&](int c) {
                if (c >= 0) {
                    decoder.convert(c, codes);
                } else {
                    arrive();
                    decoder.begin(block.args, tiles.extra(i + 1), 0, raw, other);
                }
                if (c < 7) codes = decoder.load(c + 1);
            });
            decoder.finish();
        } else {
            if (mask)
                attend_tile<T>(block.q, block.softmax, sums, block.shared, buffer, mask, block.unit,
                               [](int) {});
            if (T::buffers == 1) __syncthreads();  // all have read this tile's values
            if (next) decode(i + 1);
            else arrive();
        }
        send(i + 2);
        mask = next;
    }
}

template <class T>
__device__ void walk(Block<T>& block, int splits, Sums<T>& sums) {
    const Tiles tiles(block.args, block.board, splits);
    if (tiles.count() == 0) return;
    if (block.warp < 3) tiles.fetch(block.warp);
    cuda::cp_async_commit();
    cuda::cp_async_wait<0>();
    __syncthreads();
    if constexpr (T::coded) walk_coded<T>(block, tiles, sums);
    else walk_bf16<T>(block, tiles, sums);
}

// The statistics of the block's heads; the factor of each head's sums goes to shared memory.
template <class T>
__device__ void finish_heads(const Block<T>& block, const Cut& cut) {
    float* const factors = reinterpret_cast<float*>(block.shared + T::factors_at);
    const Softmax& softmax = block.softmax;
    const HeadPair peaks = *softmax.heads;
    const float scale = block.args.scale();
    const bool writes = block.warp % T::parts == 0 && block.lane % 4 == 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = softmax.total(r);
        const int in_block = 16 * (block.warp / T::parts) + block.lane / 4 + 8 * r;
        const int64_t h = block.board.head + in_block;
        if (!writes || h >= block.args.q.shape[1]) continue;
        if (cut.splits > 1) {
            cut.parts.statistics[block.board.part * block.args.q.shape[1] + h] = {
                peaks.peak2[r], sum, peaks.largest[r], block.softmax.any() ? 1.f : 0.f};
            continue;
        }
        Totals totals = {0.f, -INFINITY};
        if (block.softmax.any()) totals = finish(peaks.peak2[r] * kLn2, sum, sink_of(block.args, h));
        factors[in_block] = totals.factor;
        store_statistics(block.args, block.board.token, h, totals.lse, peaks.largest[r] * scale);
    }
}

template <class T>
__device__ void store_sums(const Block<T>& block, const Cut& cut, const Sums<T>& sums) {
    const float* const factors = reinterpret_cast<const float*>(block.shared + T::factors_at);
    const int64_t heads = block.args.q.shape[1];
    const int column = 64 * (block.warp / 4) + 16 * (block.warp % 4) + 2 * (block.lane % 4);
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int in_block = 16 * m + block.lane / 4 + 8 * r;
            const int64_t h = block.board.head + in_block;
            if (h >= heads) continue;
            const bool whole = cut.splits == 1;
            const float factor = whole ? factors[in_block] : 1.f;
            const int64_t out_at = whole ? cuda::element(block.args.out, block.board.token, h) + column : 0;
            float* const sums_at = cut.parts.sums + (block.board.part * heads + h) * kValueWidth + column;
#pragma unroll
            for (int n = 0; n < T::n_steps; ++n)
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    const int d = 64 * (T::warps / 4) * n + 8 * b;
                    const float low = sums[m][n][b][2 * r] * factor, high = sums[m][n][b][2 * r + 1] * factor;
                    if (whole) store_pair(block.args.out, out_at + d, low, high);
                    else *reinterpret_cast<float2*>(sums_at + d) = make_float2(low, high);
                }
        }
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::resident)
    attend_mma(const __grid_constant__ Arguments args, const __grid_constant__ Cut cut) {
    extern __shared__ __align__(128) char shared[];
    Block<T> block(args, shared);
    if (threadIdx.x == 0) {
        const int part = int(blockIdx.x / unsigned(cut.head_tiles));
        block.board.part = part;
        block.board.token = part / cut.splits;
        block.board.head = int(blockIdx.x % unsigned(cut.head_tiles)) * T::heads;
    }
    if (cut.splits > 1) cuda::start_next_grid();
    __syncthreads();
    Sums<T> sums = {};
    walk<T>(block, cut.splits, sums);
    __syncthreads();  // factors are free
    finish_heads<T>(block, cut);
    __syncthreads();
    if (cut.splits == 1 || block.softmax.any()) store_sums<T>(block, cut, sums);
}

template <class T>
void launch_tile(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env) {
    cuda::launch(attend_mma<T>, schedule.blocks(), T::threads, T::bytes, env, Arguments(args), cut);
}
template <int Width>
void launch_width(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env) {
    const bool few = schedule.heads == kFewHeads;
    if (schedule.coded && few) launch_tile<FewHeads<Width, true>>(args, schedule, cut, env);
    else if (schedule.coded) launch_tile<ManyHeads<Width, true>>(args, schedule, cut, env);
    else if (few) launch_tile<FewHeads<Width, false>>(args, schedule, cut, env);
    else launch_tile<ManyHeads<Width, false>>(args, schedule, cut, env);
}

}  // namespace

void run_mma(const smla_attend_args& args, const Schedule& schedule, const Env& env) {
    Arena arena(env.workspace);
    const Cut cut{
        .head_tiles = int(schedule.head_tiles()), .splits = schedule.splits, .parts = schedule.carve(arena)};
    if (args.q.shape[2] == 576) launch_width<576>(args, schedule, cut, env);
    else launch_width<512>(args, schedule, cut, env);
    if (cut.splits > 1) join_splits(args, cut, env);
}

size_t shared_bytes(int heads, int width, bool coded) {
    const auto pick = [&](size_t few_coded, size_t few, size_t many_coded, size_t many) {
        return heads == kFewHeads ? (coded ? few_coded : few) : coded ? many_coded : many;
    };
    return width == 576 ? pick(FewHeads<576, true>::bytes, FewHeads<576, false>::bytes,
                               ManyHeads<576, true>::bytes, ManyHeads<576, false>::bytes)
                        : pick(FewHeads<512, true>::bytes, FewHeads<512, false>::bytes,
                               ManyHeads<512, true>::bytes, ManyHeads<512, false>::bytes);
}

}  // namespace smla::cuda_attend
