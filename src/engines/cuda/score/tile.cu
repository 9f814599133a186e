// score by mma.sync: 128-wide keys of index_fp8_132, index_mxfp4_68 and row_bf16, any number of heads.
//
// Math       logit[key] = scale * sum_h w_h relu(q_h . k): m16n8k16 with keys as rows and heads as columns,
//            f32 accumulators. Relu, weights and the sum over a thread's heads are in registers; 3 shuffles
//            per 4 keys finish the sum. e4m3 becomes f16 (if queries are e4m3) or bf16, both exactly.
// Tile       A warp processes 32 keys x all heads x up to 8 query rows of one request. Its keys stay in 64
//            registers. Queries are in shared memory in the order of the second operand, so that one 16-byte
//            load feeds 4 products. Keys are converted once for all heads and rows.
// Roles      4 identical, independent warps.
// Shared     Queries, rows x heads x 256 B | weights | windows | per warp one tile of raw keys, copied by
//            cp.async while the previous tile is multiplied.
// Barriers   One __syncthreads, after the queries are loaded.
// Registers  168 per thread: three blocks per multiprocessor.
// Why        Shared memory feeds 2 KB per 16 products (16 of about 26 cycles); keys cost 132 B of L2 per
//            `rows` rows. Two accumulator banks let products overlap the epilogue of the previous 16 heads.
// Results    docs/kernels/cuda_score.md.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/score/key_tile.cuh"
#include "ops/quant_index_q/quant_index_q.h"

#include <algorithm>
#include <cfloat>

namespace smla::cuda {

namespace {

constexpr int kWarps = 4, kBlocksPerSm = 3, kHeadGroup = 16, kMostTileRows = 8;
static_assert(kMostTileRows <= 32);                        // TileRows::again_ has one bit per row
constexpr int kQueryChunks = kHeadGroup * kTileWidth / 8;  // 16-byte chunks of a group of heads

struct ScoreTile {
    Tensor q, q_scales, w;
    KeySource keys;
    Windows window;
    Logits logits;  // starting at column window.begin
    int tokens, heads, groups_of_heads, rows, groups, splits, fill;
    bool wide_queries;
};

template <int Bytes>
__device__ void load_bytes(const uint8_t* from, bool wide, uint32_t (&out)[Bytes / 4]) {
    if (!wide) {
#pragma unroll
        for (int i = 0; i < Bytes / 4; ++i) {
            const uint8_t* at = from + 4 * i;
            out[i] = at[0] | at[1] << 8 | at[2] << 16 | uint32_t(at[3]) << 24;
        }
    } else if constexpr (Bytes == 16) {
        const uint4 all = __ldg(reinterpret_cast<const uint4*>(from));
        out[0] = all.x, out[1] = all.y, out[2] = all.z, out[3] = all.w;
    } else if constexpr (Bytes == 8) {
        const uint2 all = __ldg(reinterpret_cast<const uint2*>(from));
        out[0] = all.x, out[1] = all.y;
    } else {
        out[0] = __ldg(reinterpret_cast<const uint32_t*>(from));
    }
}

// Returns values 8 d8 to 8 d8 + 7 of a query as four pairs of 16-bit floats.
template <Half Type>
__device__ uint4 query_chunk(const ScoreTile& task, int64_t token, int head, int d8) {
    const int64_t at = element(task.q, token, head, 8 * d8);
    const auto* bytes = static_cast<const uint8_t*>(task.q.data);
    if (task.q.dtype == SMLA_E4M3) {
        uint32_t codes[2];
        load_bytes<8>(bytes + at, task.wide_queries, codes);
        uint4 out;
        e4m3_pairs<Type>(codes[0], out.x, out.y);
        e4m3_pairs<Type>(codes[1], out.z, out.w);
        return out;
    }
    if (task.q.dtype == SMLA_BF16) {
        uint32_t words[4];
        load_bytes<16>(bytes + 2 * at, task.wide_queries, words);
        return {words[0], words[1], words[2], words[3]};
    }
    uint32_t codes[1];
    load_bytes<4>(bytes + at / 2, task.wide_queries, codes);
    const auto* scales = static_cast<const uint8_t*>(task.q_scales.data);
    const uint32_t scale =
        e8m0_to_bf16_pair(scales[element(task.q_scales, token, head, 8 * d8 / kQueryScaleGroup)]);
    uint4 out;
    e2m1_to_bf16(codes[0], scale, out.x, out.y);
    e2m1_to_bf16(codes[0] >> 16, scale, out.z, out.w);
    return out;
}

// Shared memory of a block: its query rows, then the warps' tiles of raw keys.
struct Shared {
    uint4* queries;     // [rows][heads/8][4][32], in the order of QueryOrder
    float* weights;     // [rows][heads], halved
    int64_t* requests;  // [rows]
    Window* windows;    // [rows]

    __device__ Shared(char* memory, const ScoreTile& task)
        : queries(reinterpret_cast<uint4*>(memory)),
          weights(reinterpret_cast<float*>(queries + task.rows * task.groups_of_heads * kQueryChunks)),
          requests(reinterpret_cast<int64_t*>(weights + task.rows * task.groups_of_heads * kHeadGroup)),
          windows(reinterpret_cast<Window*>(requests + task.rows)) {}
    __device__ char* keys(const ScoreTile& task) const {
        return reinterpret_cast<char*>(windows + task.rows);
    }
};

template <smla_format Format, Half Type>
__device__ void load_queries(const ScoreTile& task, const Shared& shared, int64_t token, int rows) {
    const int heads = task.groups_of_heads * kHeadGroup;
#pragma unroll 8
    for (int i = int(threadIdx.x); i < rows * heads * 16; i += kWarps * 32) {
        const int d8 = i % 16, head = i / 16 % heads, row = i / 16 / heads;
        const int part = QueryOrder<Format>::steps(d8), lane = 4 * (head % 8) + QueryOrder<Format>::t(d8);
        const bool here = head < task.heads;
        shared.queries[((row * heads + head) / 8 * 4 + part) * 32 + lane] =
            here ? query_chunk<Type>(task, token + row, head, d8) : uint4{};
    }
    for (int i = int(threadIdx.x); i < rows * heads; i += kWarps * 32) {
        const int head = i % heads;
        const int64_t at = element(task.w, token + i / heads, head);
        shared.weights[i] = head < task.heads ? 0.5f * static_cast<const float*>(task.w.data)[at] : 0.f;
    }
    if (int(threadIdx.x) < rows) {
        shared.windows[threadIdx.x] = task.window(token + threadIdx.x);
        shared.requests[threadIdx.x] = task.keys.place.request(token + threadIdx.x);
    }
}

using Bank = float[2][2][4];  // keys 0-15 and 16-31, heads 0-7 and 8-15 of a group

template <Half Type>
__device__ void multiply(const uint4* queries, const KeyOperand& a, Bank& bank) {
#pragma unroll
    for (int i = 0; i < 16; ++i) bank[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const uint4 b[2] = {queries[part * 32], queries[(4 + part) * 32]};
#pragma unroll
        for (int keys = 0; keys < 2; ++keys)
#pragma unroll
            for (int n = 0; n < 2; ++n) mma_half<Type>(bank[keys][n], a[keys][2 * part], b[n].x, b[n].y);
#pragma unroll
        for (int keys = 0; keys < 2; ++keys)
#pragma unroll
            for (int n = 0; n < 2; ++n) mma_half<Type>(bank[keys][n], a[keys][2 * part + 1], b[n].z, b[n].w);
    }
}

// Stores the logits of a lane's key for the query rows of a run.
struct TileLogits {
    const Window* windows;  // per row
    const Logits& logits;
    int64_t at;  // offset of the key's logit in the first row
    int column;
    float factor;
    bool hole;

    // Returns false if the sum is NaN or infinite; then the row is computed again with Careful.
    __device__ bool store(int row, float sum) const {
        if (!windows[row].has(column)) return true;
        store_logit(logits, at + row * logits.stride, hole ? -INFINITY : sum * factor);
        return hole || fabsf(sum) <= FLT_MAX;
    }
};

// Sums of a query row over its heads, 16 at a time. relu(x) = (x + |x|) / 2 avoids the low-rate FMNMX and
// keeps NaN; the weights contain the 1/2. -inf and infinite keys times padded heads become NaN; such rows are
// computed again with Careful.
class RowSums {
public:
    __device__ RowSums(const float* weights, int heads)
        : weights_(weights + 2 * (threadIdx.x % 4)), heads_(heads) {}

    template <bool Careful>
    __device__ void add(const Bank& bank) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float2 w = *reinterpret_cast<const float2*>(weights_ + 8 * n);
            const int head = head_ + 8 * n + 2 * int(threadIdx.x % 4);
#pragma unroll
            for (int keys = 0; keys < 2; ++keys)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float x = bank[keys][n][i];
                    float twice = x + fabsf(x);
                    if constexpr (Careful) twice = head + i % 2 < heads_ ? 2 * max_nan(x, 0.f) : 0.f;
                    float& sum = sums_[2 * keys + i / 2];
                    sum = fmaf(i % 2 ? w.y : w.x, twice, sum);
                }
        }
        weights_ += kHeadGroup;
        head_ += kHeadGroup;
    }
    __device__ bool complete() const { return head_ >= heads_; }

    // Returns the sum of key g + 8 t to lane 4 g + t; every key is summed in the same order. Resets the sums.
    __device__ float finish() {
        const int t = int(threadIdx.x % 4);
        const bool high = t & 2, odd = t & 1;
        float a = high ? sums_[2] : sums_[0], b = high ? sums_[3] : sums_[1];
        a += __shfl_xor_sync(~0u, high ? sums_[0] : sums_[2], 2);
        b += __shfl_xor_sync(~0u, high ? sums_[1] : sums_[3], 2);
#pragma unroll
        for (float& each : sums_) each = 0;
        head_ = 0;
        return (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
    }

private:
    const float* weights_;
    int heads_, head_ = 0;
    float sums_[4] = {};
};

// A run of query rows multiplied by a warp's tile of keys. Products of 16 heads start before the previous 16
// heads' epilogue, even across rows.
template <Half Type>
class TileRows {
public:
    __device__ TileRows(const uint4* queries, const float* weights, const ScoreTile& task,
                        const KeyOperand& a, const TileLogits& out)
        : queries_(queries), weights_(weights), task_(task), a_(a), out_(out), sums_(weights, task.heads) {}

    __device__ void run(int rows) {
        const int count = rows * task_.groups_of_heads;
        const uint4* queries = queries_;
        Bank even, odd;
        multiply<Type>(queries, a_, even);
        int i = 0;
        for (; i + 2 < count; i += 2) {
            multiply<Type>(queries += kQueryChunks, a_, odd);
            add(even);
            multiply<Type>(queries += kQueryChunks, a_, even);
            add(odd);
        }
        if (i + 1 < count) {
            multiply<Type>(queries + kQueryChunks, a_, odd);
            add(even);
            add(odd);
        } else {
            add(even);
        }
        for (; again_; again_ &= again_ - 1) run_carefully(__ffs(int(again_)) - 1);
    }

private:
    __device__ void add(const Bank& bank) {
        sums_.add<false>(bank);
        if (!sums_.complete()) return;
        const bool number = out_.store(row_, sums_.finish());
        // products of e4m3 are finite or valid NaN
        if (Type == Half::bf16 && __any_sync(~0u, !number)) again_ |= 1u << row_;
        ++row_;
    }
    __device__ void run_carefully(int row) const {
        const int groups = task_.groups_of_heads;
        RowSums sums(weights_ + row * groups * kHeadGroup, task_.heads);
        for (int i = 0; i < groups; ++i) {
            Bank bank;
            multiply<Type>(queries_ + (row * groups + i) * kQueryChunks, a_, bank);
            sums.add<true>(bank);
        }
        out_.store(row, sums.finish());
    }

    const uint4* queries_;
    const float* weights_;
    const ScoreTile& task_;
    const KeyOperand& a_;
    const TileLogits& out_;
    RowSums sums_;
    int row_ = 0;
    uint32_t again_ = 0;
};

// Computes rows [first, last) of a block, all of one request, for one split of the columns that any row sees.
template <smla_format Format, Half Type>
__device__ void score_rows(const ScoreTile& task, const Shared& shared, int64_t token, int first, int last,
                           int split) {
    Window all{INT32_MAX, 0};
    for (int row = first; row < last; ++row) {
        const Window window = shared.windows[row];
        if (window.begin < window.end) all = {min(all.begin, window.begin), max(all.end, window.end)};
    }
    if (all.begin >= all.end) return;
    const int64_t start = all.begin / kTileKeys, tiles = (all.end - 1) / kTileKeys + 1 - start;
    const int end = int(start + tiles * (split + 1) / task.splits), warp = int(threadIdx.x / 32);
    int tile = int(start + tiles * split / task.splits) + warp;
    const KeyColumns::Pages pages = task.keys.place.pages_of(shared.requests[first]);
    KeyTile<Format> keys(shared.keys(task) + warp * KeyTile<Format>::bytes);
    const uint4* const queries =
        shared.queries + first * task.groups_of_heads * kQueryChunks + threadIdx.x % 32;
    const float* const weights = shared.weights + first * task.groups_of_heads * kHeadGroup;
    const int64_t at = (token + first) * task.logits.stride - task.window.begin;
    if (tile < end) keys.fetch(task.keys, pages, all, tile);
    for (; tile < end; tile += kWarps) {
        KeyOperand a;
        keys.template take<Type>(a);
        const int column = tile * kTileKeys + keys.own_key();
        const TileLogits out{shared.windows + first, task.logits, at + column, column,
                             keys.factor(),          keys.hole()};
        if (tile + kWarps < end) keys.fetch(task.keys, pages, all, tile + kWarps);
        TileRows<Type>(queries, weights, task, a, out).run(last - first);
    }
}

template <smla_format Format, Half Type>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm)
    score_tiles(const __grid_constant__ ScoreTile task) {
    extern __shared__ __align__(16) char memory[];
    const Shared shared(memory, task);
    const int split = int(blockIdx.x / task.groups);  // concurrent blocks share keys in L2
    // the last tokens come first, because they see most columns in a causal prompt
    const int64_t token = int64_t(task.groups - 1 - blockIdx.x % task.groups) * task.rows;
    const int rows = int(min(int64_t(task.rows), task.tokens - token));
    if (task.fill) fill_outside<kWarps * 32>(task.window, task.logits, token, rows, split, task.splits);
    load_queries<Format, Type>(task, shared, token, rows);
    __syncthreads();
    for (int first = 0, last; first < rows; first = last) {
        for (last = first + 1; last < rows && shared.requests[last] == shared.requests[first];) ++last;
        score_rows<Format, Type>(task, shared, token, first, last, split);
    }
}

bool aligned(const void* data, std::initializer_list<int64_t> strides, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0 &&
           std::all_of(strides.begin(), strides.end(), [&](int64_t s) { return s % bytes == 0; });
}

int bytes_of_row(smla_format format) {
    return format == SMLA_INDEX_FP8_132 ? 128 : format == SMLA_INDEX_MXFP4_68 ? 64 : 256;
}

bool keys_aligned(const CacheView& keys, smla_format format, int64_t bytes) {
    return aligned(keys.data, {keys.page_stride, format == SMLA_ROW_BF16 ? keys.row_stride : 0}, bytes);
}

// Rows per block, splits and shared memory, chosen from shapes and the device.
struct TilePlan {
    int rows = 1, splits = 1, resident;  // blocks per multiprocessor
    int64_t groups;
    size_t shared_bytes;

    TilePlan(const smla_score_args& args, int64_t columns, const Env& env) {
        const int64_t tokens = args.q.shape[0], heads = round_up(args.q.shape[1], kHeadGroup);
        const int64_t requests = args.block_table.ndim ? std::max<int64_t>(1, args.block_table.shape[0]) : 1;
        const int64_t wanted = std::clamp<int64_t>(ceil_div(tokens, requests), 1, kMostTileRows);
        const size_t row_bytes = size_t(heads) * (kTileWidth * 2 + sizeof(float)) + sizeof(int64_t) +
                                 sizeof(Window);  // a multiple of 16
        const size_t key_bytes = kWarps * kTileKeys * size_t(bytes_of_row(args.keys.format));
        // More rows share a conversion of keys; three blocks hide more latency than two. 1 KB per block is
        // reserved by CUDA.
        for (resident = kBlocksPerSm; resident > 0; --resident) {
            const size_t each = (env.device->facts().shared_bytes + 1024) / size_t(resident);
            const int64_t fit = each > key_bytes + 1024 ? int64_t((each - key_bytes - 1024) / row_bytes) : 0;
            rows = int(std::clamp<int64_t>(fit, 1, wanted));
            if (fit > 0 && (resident < kBlocksPerSm || rows >= std::min<int64_t>(2, wanted))) break;
        }
        resident = std::max(resident, 1);
        groups = ceil_div(tokens, rows);
        shared_bytes = rows * row_bytes + key_bytes;
        splits = best_splits(columns, std::max(1, resident * env.device->facts().multiprocessors));
    }

private:
    // Cost model: blocks run in waves, a start costs as much as 2 tiles of a warp, all windows are full.
    // Returns the most splits within 1/32 of the least cost, because windows are not all full.
    int best_splits(int64_t columns, int64_t slots) const {
        constexpr int64_t kStart = 2, kMostRounds = 32;
        const int64_t tiles = std::max<int64_t>(1, ceil_div(columns, kTileKeys));
        const int64_t most = ceil_div(tiles, kWarps), blocks = std::max<int64_t>(groups, 1);
        const int64_t fewest = ceil_div(blocks, slots);
        int64_t best = 1, least = INT64_MAX / 2;
        for (int64_t rounds = fewest; rounds <= std::max(fewest, kMostRounds); ++rounds) {
            const int64_t splits = std::min(most, rounds * slots / blocks);
            const int64_t cost = rounds * (kStart + ceil_div(tiles, splits * kWarps));
            if (cost > least + least / 32) continue;
            least = std::min(least, cost);
            best = splits;
        }
        return int(best);
    }
};

template <smla_format Format, Half Type>
void run_tiles(const ScoreTile& task, size_t shared_bytes, const Env& env) {
    launch(score_tiles<Format, Type>, int64_t(task.groups) * task.splits, kWarps * 32, shared_bytes, env,
           task);
}

}  // namespace

std::string refuse_score_tile(const smla_score_args& args, const Env& env) {
    const smla_format format = args.keys.format;
    if (args.q.dtype == SMLA_F64 || args.q.dtype == SMLA_F32) return "q must be a 16-bit or narrower float";
    if (args.q.shape[2] != kTileWidth)
        return text("it requires a width of ", kTileWidth, ", got ", args.q.shape[2]);
    if (format == SMLA_ROW_F32) return "row_f32 keys cannot be converted to 16 bits exactly";
    if (args.q.shape[0] > INT32_MAX) return "calls of 2^31 tokens or more are not supported";
    const CacheView keys(args.keys);
    if (!keys_aligned(keys, format, 4)) return "pages and rows of keys must be aligned to 4 bytes";
    const TilePlan plan(args, 1, env);
    if (env.device->facts().shared_bytes < plan.shared_bytes)
        return text("it requires ", plan.shared_bytes, " bytes of shared memory; the device has ",
                    env.device->facts().shared_bytes);
    return {};
}

void run_score_tile(const smla_score_args& args, const ScorePart& part, const Env& env) {
    const TilePlan plan(args, part.end - part.begin, env);
    const CacheView keys(args.keys);
    const smla_format format = args.keys.format;
    const int64_t bits = dtype_bits(args.q.dtype);  // bits per value, bytes per 8 values
    const int64_t* const strides = args.q.stride_elems;
    const bool wide = aligned(args.q.data, {strides[0] * bits / 8, strides[1] * bits / 8}, bits);
    KeyColumns place(args, keys);
    if (part.part_tokens) place.divide_pages(part.part_tokens, part.part_bits);
    const ScoreTile task{.q = args.q,
                         .q_scales = args.q_scales,
                         .w = args.w,
                         .keys = {.place = place,
                                  .data = keys.data,
                                  .page_stride = keys.page_stride,
                                  .row_stride = keys.row_stride,
                                  .wide = keys_aligned(keys, format, 16)},
                         .window = Windows(args.starts, args.ends, part.columns, part.begin, part.end),
                         .logits = part.logits,
                         .tokens = int(args.q.shape[0]),
                         .heads = int(args.q.shape[1]),
                         .groups_of_heads = int(ceil_div(args.q.shape[1], kHeadGroup)),
                         .rows = plan.rows,
                         .groups = int(plan.groups),
                         .splits = plan.splits,
                         .fill = args.fill,
                         .wide_queries = wide};
    if (part.begin == part.end || task.tokens == 0) return;
    if (format == SMLA_ROW_BF16) run_tiles<SMLA_ROW_BF16, Half::bf16>(task, plan.shared_bytes, env);
    else if (format == SMLA_INDEX_MXFP4_68)
        run_tiles<SMLA_INDEX_MXFP4_68, Half::bf16>(task, plan.shared_bytes, env);
    else if (args.q.dtype == SMLA_E4M3)
        run_tiles<SMLA_INDEX_FP8_132, Half::f16>(task, plan.shared_bytes, env);
    else run_tiles<SMLA_INDEX_FP8_132, Half::bf16>(task, plan.shared_bytes, env);
}

}  // namespace smla::cuda
