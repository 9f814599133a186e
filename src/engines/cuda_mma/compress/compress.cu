// compress: a token that closes a group pools the state rows of its window into one cache entry:
//   entry[d] = sum_j softmax_j(score_j[d]) kv_j[d],  RMS norm,  rope of the last channels,  encode.
//
// A block takes a token; the many that close no group leave at once. A thread takes a channel at a time and
// passes twice over the window, for the peak and for the sums, in the order of the reference; neighbouring
// threads read neighbouring channels. Where rows lie is looked up once by one thread per row, for up to
// kRows rows at a time. Then the row lies in shared memory: norm and rope by the block, encoding by one warp.
// Bound by latency: 2 * coff * ratio reads per channel in a row, of which the second half comes from cache;
// few tokens of a step close a group of 128.
//
// Shared memory: offsets of rows [kRows] i64, sums of warps, then the entry [D] f32. What one thread
// writes and another reads has a __syncthreads between.
#include "core/tensor.h"
#include "engines/cuda_common/hadamard.cuh"
#include "engines/cuda_common/launch.cuh"
#include "engines/cuda_common/records.cuh"
#include "engines/cuda_mma/compress/compress.h"
#include "ops/compress/compress.h"
#include "ops/map/map.h"

namespace smla {

namespace cuda {

namespace {

constexpr int kThreads = 256, kRows = 128;

struct CompressParams {
    DeviceCache state, cache;
    BlockTable table;
    Tensor request_of_token, positions, slots, weight, frequencies, entries;
    int64_t ratio;
    float eps;
    bool rounds, hadamard;
};

// The window of one token: state rows first, first + 1, ... of a request.
struct Window {
    int64_t request, first, rows;
};

// Where rows [from, from + kRows) of the window lie; null where there is none.
__device__ void find_rows(const CompressParams& p, const Window& window, int64_t from, const char** found) {
    __syncthreads();  // the last ones may still be read
    for (int j = int(threadIdx.x); j < kRows && from + j < window.rows; j += kThreads) {
        const int64_t row = row_of(p.table, window.request, window.first + from + j);
        found[j] = p.state.hole(row) ? nullptr : p.state.row_packed(row);
    }
    __syncthreads();
}

// Calls use(kv, score) of channel d for each row that exists, oldest first. `found` holds the first rows
// where the window fits, else they are looked up as they come: so every thread of the block must take part.
template <class Use>
__device__ void each_row(const CompressParams& p, const Window& window, const char** found, int d, Use use) {
    const int64_t width = p.cache.width, overlapped = overlap(p.ratio) * width;
    for (int64_t from = 0; from < window.rows; from += kRows) {
        if (window.rows > kRows) find_rows(p, window, from, found);
        const int count = int(min(int64_t(kRows), window.rows - from));
        for (int j = 0; j < count && d < width; ++j) {
            if (!found[j]) continue;
            // with overlap, the older half of the window went through channels [0,D), the newer through
            // [D,2D)
            const int64_t half = from + j < window.rows - p.ratio ? 0 : overlapped - width;
            const float* const kv = reinterpret_cast<const float*>(found[j]) + half + d;
            use(kv[0], kv[overlapped]);
        }
    }
}

__device__ void pool(const CompressParams& p, const Window& window, const char** found, float* entry) {
    if (window.rows <= kRows) find_rows(p, window, 0, found);
    const int width = p.cache.width;
    for (int begin = 0; begin < width; begin += kThreads) {
        const int d = begin + int(threadIdx.x);
        float peak = -INFINITY, sum = 0, value = 0;
        bool any = false;
        each_row(p, window, found, d, [&](float, float score) { peak = score > peak ? score : peak; });
        each_row(p, window, found, d, [&](float kv, float score) {
            const float weight = expf(score - peak);
            any = true;
            sum += weight;
            value += weight * kv;
        });
        if (d < width) entry[d] = any ? value / sum : 0.f;
    }
}

__device__ void norm(const CompressParams& p, float* entry, float* scratch) {
    const int width = p.cache.width;
    float square = 0;
    for (int d = int(threadIdx.x); d < width; d += kThreads) square += entry[d] * entry[d];
    const float factor = 1.f / sqrtf(block_sum(square, scratch) / float(width) + p.eps);
    for (int d = int(threadIdx.x); d < width; d += kThreads)
        entry[d] = entry[d] * factor * load_value(p.weight, element(p.weight, d));
}

__device__ void rotate(const CompressParams& p, float* entry, int64_t position) {
    const int pairs = int(p.frequencies.shape[0]);
    for (int i = int(threadIdx.x); i < pairs; i += kThreads) {
        double s, c;
        sincos(double(position) * static_cast<const double*>(p.frequencies.data)[i], &s, &c);
        float* const pair = entry + p.cache.width - 2 * pairs + 2 * i;
        const float a = pair[0], b = pair[1], cosine = float(c), sine = float(s);
        pair[0] = a * cosine - b * sine;
        pair[1] = b * cosine + a * sine;
    }
}

// The row as a caller may want it, then what the encoder sees: formats with scales get bf16.
__device__ void store_entry(const CompressParams& p, int64_t token, float* entry) {
    for (int d = int(threadIdx.x); d < p.cache.width; d += kThreads) {
        const float v = entry[d];
        if (present(p.entries)) store_value(p.entries, element(p.entries, token, d), v);
        if (p.rounds) entry[d] = round_to_bf16(v);
    }
}

__global__ void __launch_bounds__(kThreads) compress_kernel(const __grid_constant__ CompressParams p) {
    __shared__ const char* found[kRows];
    __shared__ float scratch[kThreads / 32];
    extern __shared__ float entry[];
    const int64_t token = blockIdx.x;
    const int64_t slot = load_int(p.slots, token), position = load_int(p.positions, token);
    if (position < 0 || (position + 1) % p.ratio != 0 || p.cache.hole(slot)) return;

    const int64_t rows = overlap(p.ratio) * p.ratio;
    const Window window{load_int(p.request_of_token, token), position - rows + 1, rows};
    pool(p, window, found, entry);
    norm(p, entry, scratch);  // of channels that the thread pooled itself; its sum joins the block
    __syncthreads();
    rotate(p, entry, position / p.ratio * p.ratio);
    __syncthreads();
    store_entry(p, token, entry);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (p.hadamard) warp_hadamard(entry, p.cache.width);
    warp_encode(p.cache, slot, entry);
}

}  // namespace

}  // namespace cuda

void run_cuda_compress(const smla_compress_args& args, const Env& env) {
    cuda::CompressParams p{};
    p.state = cuda::DeviceCache(args.state);
    p.cache = cuda::DeviceCache(args.cache);
    p.table = block_table_of(args.state_table, p.state.page_tokens, p.state.page_rows);
    p.request_of_token = args.request_of_token;
    p.positions = args.positions;
    p.slots = args.slots;
    p.weight = args.norm_weight;
    p.frequencies = args.frequencies;
    p.entries = args.entries;
    p.ratio = args.ratio;
    p.eps = float(args.eps);
    p.rounds = find_format(args.cache.format)->scale != ScaleKind::none;
    p.hadamard = args.hadamard != 0;
    cuda::launch(cuda::compress_kernel, args.slots.shape[0], cuda::kThreads,
                 size_t(p.cache.width) * sizeof(float), env, p);
}

}  // namespace smla
