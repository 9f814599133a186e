// score by mma.sync: 128-wide keys of index_fp8_132, index_mxfp4_68 and row_bf16, any number of heads.
//
// Maths      logit[key] = scale * sum_h w_h relu(q_h . k): m16n8k16 with keys as rows and heads as columns, f32
//            accumulators; relu, weight and the sum over a thread's heads in registers; 3 shuffles per 4 keys
//            finish the sum. e4m3 becomes f16 (queries e4m3) or bf16, both exactly.
// Tile       a warp takes 32 keys x all heads x `rows` query rows of one request. Its keys stay in 64 registers;
//            queries lie in shared memory in the order of mma's second operand, so that one 16-byte load feeds 4
//            products. Keys are converted once for all heads and rows.
// Roles      4 warps, all alike and independent: no barrier after the queries are loaded.
// Shared     queries rows x heads x 256 B | weights | windows | per warp one tile of raw keys, copied by
//            cp.async while the tile before is multiplied.
// Why        shared memory feeds 2 KB per 16 products (16 of about 26 cycles); keys cost 132 B of L2 per `rows`
//            rows. Two accumulator banks let products run under the epilogue of the previous 16 heads.
// Prediction see docs/kernels/cuda_score.md.
#include "engines/cuda_common/launch.cuh"
#include "engines/cuda_mma/score/key_tile.cuh"
#include "ops/quant_index_q/quant_index_q.h"

#include <algorithm>

namespace smla::cuda {

namespace {

constexpr int kWarps = 4, kBlocksPerSm = 3, kHeadGroup = 16;
constexpr int kQueryChunks = kHeadGroup * kTileWidth / 8;  // 16-byte chunks of a group of heads

struct ScoreTile {
    Tensor q, q_scales, w;
    KeySource keys;
    Windows window;
    float* logits;  // of column window.begin
    int64_t stride;
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

// Values 8 d8 .. 8 d8 + 7 of a query row as four pairs.
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
    const uint32_t scale = scales[element(task.q_scales, token, head, 8 * d8 / kQueryScaleGroup)];
    return {e2m1_to_bf16(codes[0] & 0xffu, scale), e2m1_to_bf16(codes[0] >> 8 & 0xffu, scale),
            e2m1_to_bf16(codes[0] >> 16 & 0xffu, scale), e2m1_to_bf16(codes[0] >> 24, scale)};
}

// What a block holds of its query rows.
struct Shared {
    uint4* queries;   // [rows][heads/8][4][32]: lane 4 g + t of part p has values 64 (p/2) + 16 t + 8 (p%2) ..
    float* weights;   // [rows][heads], halved for f16
    Window* windows;  // [rows]

    __device__ Shared(char* memory, const ScoreTile& task)
        : queries(reinterpret_cast<uint4*>(memory)),
          weights(reinterpret_cast<float*>(queries + task.rows * task.groups_of_heads * kQueryChunks)),
          windows(reinterpret_cast<Window*>(weights + task.rows * task.groups_of_heads * kHeadGroup)) {}
};

// relu(x) = (x + |x|) / 2 needs no slow FMNMX and keeps NaN; the half is in the weights. It is for dot products
// that cannot be -inf: those of e4m3.
template <Half Type>
constexpr float kWeightFactor = Type == Half::f16 ? 0.5f : 1.f;

template <Half Type>
__device__ void load_queries(const ScoreTile& task, const Shared& shared, int64_t token, int rows) {
    const int heads = task.groups_of_heads * kHeadGroup;
#pragma unroll 4
    for (int i = int(threadIdx.x); i < rows * heads * 16; i += kWarps * 32) {
        const int d8 = i % 16, head = i / 16 % heads, row = i / 16 / heads;
        const int part = d8 / 8 * 2 + d8 % 2, lane = 4 * (head % 8) + d8 / 2 % 4;
        const bool here = head < task.heads;
        shared.queries[((row * heads + head) / 8 * 4 + part) * 32 + lane] =
            here ? query_chunk<Type>(task, token + row, head, d8) : uint4{};
    }
    for (int i = int(threadIdx.x); i < rows * heads; i += kWarps * 32) {
        const int head = i % heads;
        const int64_t at = element(task.w, token + i / heads, head);
        shared.weights[i] =
            head < task.heads ? kWeightFactor<Type> * static_cast<const float*>(task.w.data)[at] : 0.f;
    }
    if (int(threadIdx.x) < rows) shared.windows[threadIdx.x] = task.window(token + threadIdx.x);
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

// The sums of a query row over its heads, and where they go.
template <Half Type>
class RowSums {
public:
    __device__ RowSums(const ScoreTile& task, const Shared& shared, int64_t token, int column, float factor,
                       bool hole)
        : task_(task),
          window_(shared.windows),
          weights_(shared.weights + 2 * (threadIdx.x % 4)),
          logits_(task.logits + token * task.stride + (column - task.window.begin)),
          column_(column),
          factor_(factor),
          hole_(hole) {}

    // The next 16 heads.
    __device__ void add(const Bank& bank) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float2 w = *reinterpret_cast<const float2*>(weights_ + 8 * n);
            const int head = head_ + 8 * n + 2 * int(threadIdx.x % 4);
#pragma unroll
            for (int keys = 0; keys < 2; ++keys)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float& sum = sums_[2 * keys + i / 2];
                    sum = fmaf(i % 2 ? w.y : w.x, relu(bank[keys][n][i], head + i % 2), sum);
                }
        }
        weights_ += kHeadGroup;
        head_ += kHeadGroup;
        if (head_ >= task_.heads) finish();
    }

private:
    __device__ float relu(float x, int head) const {
        if constexpr (Type == Half::f16) return x + fabsf(x);
        return head < task_.heads ? max_nan(x, 0.f) : 0.f;  // infinite keys make NaN of padded heads
    }

    // Lane 4 g + t ends with the sum of key g + 8 t; all keys are summed in one order.
    __device__ void finish() {
        const int t = int(threadIdx.x % 4);
        const bool high = t & 2, odd = t & 1;
        float a = high ? sums_[2] : sums_[0], b = high ? sums_[3] : sums_[1];
        a += __shfl_xor_sync(~0u, high ? sums_[0] : sums_[2], 2);
        b += __shfl_xor_sync(~0u, high ? sums_[1] : sums_[3], 2);
        const float sum = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
        if (window_->has(column_)) *logits_ = hole_ ? -INFINITY : sum * factor_;
#pragma unroll
        for (float& each : sums_) each = 0;
        ++window_;
        logits_ += task_.stride;
        head_ = 0;
    }

    const ScoreTile& task_;
    const Window* window_;
    const float* weights_;
    float* logits_;
    int column_, head_ = 0;
    float factor_;
    bool hole_;
    float sums_[4] = {};
};

// `count` groups of 16 heads, those of one row after those of another, against a tile of keys: the products of a
// group are started before the epilogue of the one before.
template <Half Type>
__device__ void score_tile(const uint4* queries, int count, const KeyOperand& a, RowSums<Type>& sums) {
    Bank even, odd;
    multiply<Type>(queries, a, even);
    int i = 0;
    for (; i + 2 < count; i += 2) {
        multiply<Type>(queries += kQueryChunks, a, odd);
        sums.add(even);
        multiply<Type>(queries += kQueryChunks, a, even);
        sums.add(odd);
    }
    if (i + 1 < count) {
        multiply<Type>(queries + kQueryChunks, a, odd);
        sums.add(even);
        sums.add(odd);
    } else {
        sums.add(even);
    }
}

__device__ void fill_outside(const ScoreTile& task, int64_t token, int rows, int split) {
    const int64_t length = task.window.end - task.window.begin;
    const int first = task.window.begin + int(length * split / task.splits);
    const int last = task.window.begin + int(length * (split + 1) / task.splits);
    for (int row = 0; row < rows; ++row) {
        const Window window = task.window(token + row);
        float* const logits = task.logits + (token + row) * task.stride - task.window.begin;
        const bool empty = window.begin == window.end;
        const int before = empty ? last : min(window.begin, last), after = empty ? last : max(window.end, first);
        for (int j = first + int(threadIdx.x); j < before; j += kWarps * 32) logits[j] = -INFINITY;
        for (int j = after + int(threadIdx.x); j < last; j += kWarps * 32) logits[j] = -INFINITY;
    }
}

// Query rows [token, token + rows) of one request against one part of the columns that any of them sees.
template <smla_format Format, Half Type>
__device__ void score_rows(const ScoreTile& task, char* memory, int64_t token, int rows, int split) {
    Window all{INT32_MAX, 0};
    for (int row = 0; row < rows; ++row) {
        const Window window = task.window(token + row);
        if (window.begin < window.end) all = {min(all.begin, window.begin), max(all.end, window.end)};
    }
    if (all.begin >= all.end) return;
    const int64_t first = all.begin / kTileKeys, tiles = (all.end - 1) / kTileKeys + 1 - first;
    const int last = int(first + tiles * (split + 1) / task.splits), warp = int(threadIdx.x / 32);
    const int begin = int(first + tiles * split / task.splits);
    if (begin == last) return;

    const Shared shared(memory, task);
    char* const slots = reinterpret_cast<char*>(shared.windows + (task.rows + 1) / 2 * 2);
    KeyTile<Format> keys(slots + warp * KeyTile<Format>::bytes);
    const int64_t request = task.keys.place.request(token);
    int tile = begin + warp;
    if (tile < last) keys.fetch(task.keys, request, all, tile);
    __syncthreads();  // the queries of the rows before may still be read
    load_queries<Type>(task, shared, token, rows);
    __syncthreads();
    for (; tile < last; tile += kWarps) {
        KeyOperand a;
        keys.template take<Type>(a);
        RowSums<Type> sums(task, shared, token, tile * kTileKeys + keys.own_key(), keys.factor(), keys.hole());
        if (tile + kWarps < last) keys.fetch(task.keys, request, all, tile + kWarps);
        score_tile<Type>(shared.queries + threadIdx.x % 32, rows * task.groups_of_heads, a, sums);
    }
}

template <smla_format Format, Half Type>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm) score_tiles(const __grid_constant__ ScoreTile task) {
    extern __shared__ __align__(16) char memory[];
    const int split = int(blockIdx.x / task.groups);  // blocks that run together share keys
    const int begin = int(blockIdx.x % task.groups) * task.rows, end = min(begin + task.rows, task.tokens);
    if (task.fill) fill_outside(task, begin, end - begin, split);
    for (int token = begin, next; token < end; token = next) {
        const int64_t request = task.keys.place.request(token);
        for (next = token + 1; next < end && task.keys.place.request(next) == request;) ++next;
        score_rows<Format, Type>(task, memory, token, next - token, split);
    }
}

bool aligned(const void* data, std::initializer_list<int64_t> strides, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(data) % bytes == 0 &&
           std::all_of(strides.begin(), strides.end(), [&](int64_t s) { return s % bytes == 0; });
}

int piece_of(smla_format format) { return format == SMLA_INDEX_MXFP4_68 ? 8 : 16; }
int row_bytes(smla_format format) {
    return format == SMLA_INDEX_FP8_132 ? 128 : format == SMLA_INDEX_MXFP4_68 ? 64 : 256;
}

bool keys_aligned(const CacheView& keys, smla_format format, int64_t bytes) {
    return aligned(keys.data, {keys.page_stride, format == SMLA_ROW_BF16 ? keys.row_stride : 0}, bytes);
}

// Rows per block, splits and shared memory: from shapes and the device.
struct TilePlan {
    int rows, splits;
    int64_t groups;
    size_t shared_bytes;

    TilePlan(const smla_score_args& args, int64_t columns, const Env& env) {
        constexpr size_t kQueryBudget = 32 << 10;  // 3 blocks of 48 KB on a multiprocessor
        const int64_t tokens = args.q.shape[0], heads = round_up(args.q.shape[1], kHeadGroup);
        const size_t query_bytes = size_t(heads) * kTileWidth * 2;
        const int64_t requests = args.block_table.ndim ? std::max<int64_t>(1, args.block_table.shape[0]) : 1;
        rows = int(std::clamp<int64_t>(ceil_div(tokens, requests), 1, std::max<int64_t>(1, kQueryBudget / query_bytes)));
        groups = ceil_div(tokens, rows);
        shared_bytes = rows * (query_bytes + size_t(heads) * sizeof(float)) +
                       round_up(size_t(rows), 2) * sizeof(Window) +
                       kWarps * kTileKeys * size_t(row_bytes(args.keys.format));
        // Enough blocks for an even load, of at least two tiles per warp.
        const int64_t wanted = 8 * kBlocksPerSm * env.device->facts().multiprocessors;
        const int64_t most = std::max<int64_t>(1, columns / (2 * kWarps * kTileKeys));
        splits = int(std::clamp<int64_t>(ceil_div(wanted, std::max<int64_t>(1, groups)), 1, most));
    }
};

template <smla_format Format, Half Type>
void run_tiles(const ScoreTile& task, size_t shared_bytes, const Env& env) {
    launch(score_tiles<Format, Type>, int64_t(task.groups) * task.splits, kWarps * 32, shared_bytes, env, task);
}

}  // namespace

std::string refuse_score_tile(const smla_score_args& args, const Env& env) {
    const smla_format format = args.keys.format;
    if (args.q.dtype == SMLA_F64 || args.q.dtype == SMLA_F32) return "q is f32 or f64, mma multiplies 16-bit floats";
    if (args.q.shape[2] != kTileWidth) return text("width ", args.q.shape[2], ", made for ", kTileWidth);
    if (format == SMLA_ROW_F32) return "keys are f32, mma multiplies 16-bit floats";
    if (args.q.shape[0] > INT32_MAX) return "more than 2^31 tokens";
    const CacheView keys(args.keys);
    if (!keys_aligned(keys, format, 4)) return "pages or rows of keys do not lie at multiples of 4 bytes";
    const TilePlan plan(args, 1, env);
    if (env.device->facts().shared_bytes < plan.shared_bytes)
        return text("needs ", plan.shared_bytes, " bytes of shared memory, the device has ",
                    env.device->facts().shared_bytes);
    return {};
}

void run_score_tile(const smla_score_args& args, const ScorePart& part, const Env& env) {
    const TilePlan plan(args, part.end - part.begin, env);
    const CacheView keys(args.keys);
    const smla_format format = args.keys.format;
    const int64_t bits = dtype_bits(args.q.dtype);  // of 8 values: as many bytes
    const int64_t* const strides = args.q.stride_elems;
    const bool wide = aligned(args.q.data, {strides[0] * bits / 8, strides[1] * bits / 8}, bits);
    const ScoreTile task{.q = args.q,
                         .q_scales = args.q_scales,
                         .w = args.w,
                         .keys = {.place = KeyColumns(args, keys),
                                  .data = keys.data,
                                  .page_stride = keys.page_stride,
                                  .row_stride = keys.row_stride,
                                  .wide = keys_aligned(keys, format, piece_of(format))},
                         .window = Windows(args.starts, args.ends, part.columns, part.begin, part.end),
                         .logits = part.logits,
                         .stride = part.stride,
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
