// project of f32 activations and bf16 weights by mma.sync, more tokens: out[t,g,n] = sum_k x[t,g,k] w[g,n,k].
//
// Math      As in few.cu: x is the exact sum of three bf16, the smallest multiplied first. Sums are f32.
// Tile      A block computes 128 outputs n x 64 tokens, a warp 64 x 32 of them, 64 k at a time.
// Shared    Three stages of w, copied by cp.async | two of x in parts | finally the results, as f32. 96 KB in
//           total: every GPU since sm_80 has as much, and an H100 runs two blocks.
// Pipeline  w is loaded two stages ahead. x is loaded to registers a stage ahead and split into parts during
//           the other block's products. After the one barrier per stage, w and parts are stored and the
//           previous stage is free.
// Limit     Products, three for each: a stage of a block takes 1229 cycles at mma.sync's rate on Hopper, 960
//           of shared memory, and about 2000 in practice.
// Why       x is split once for 128 outputs, and no f32 results of parts are written, unlike with cuBLASLt.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/bulk.cuh"
#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/common/ptx/shared.cuh"
#include "engines/cuda/project/mma/product.cuh"
#include "engines/cuda/project/mma/run.h"

namespace smla::cuda {

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kOuter = 128, kTokens = 64, kDepth = 64;  // n, tokens and k per stage
constexpr int kStages = 3;
constexpr int kWarpOuter = 64, kWarpTokens = 32;
constexpr int kM = kWarpOuter / 16, kN = kWarpTokens / 8;
static_assert(kOuter / kWarpOuter * (kTokens / kWarpTokens) == kWarps);
constexpr int kResultPitch = kOuter + 4;  // floats per row; avoids bank conflicts of stores

struct Smem {
    alignas(128) uint16_t w[kStages][kOuter * kDepth];  // [n][k], or [k][n] if w is dense along n
    uint16_t x[2][kParts][kTokens * kDepth];            // [part][token][k]
};
static_assert(sizeof(Smem) <= 99 * 1024 && sizeof(Smem) >= sizeof(float) * kTokens * kResultPitch);

// Returns the offset of a 16-byte piece, permuted within its row to avoid bank conflicts of ldmatrix.
__device__ inline uint32_t piece_at(int row, int piece, int pieces) {
    return uint32_t((row * pieces + (piece ^ (row & 7))) * 16);
}

struct Block {
    int64_t group;
    int first_n, first_token;
    __device__ explicit Block(const MmaProduct& p) {
        const unsigned token_tiles = unsigned((p.tokens + kTokens - 1) / kTokens),
                       tiles = unsigned((p.outer + kOuter - 1) / kOuter);
        first_token = int(blockIdx.x % token_tiles) * kTokens;
        first_n = int(blockIdx.x / token_tiles % tiles) * kOuter;
        group = blockIdx.x / token_tiles / tiles;
    }
};

// A thread's part of the weights of a stage: four pieces.
template <bool kAlongK>
class WeightCopies {
public:
    __device__ WeightCopies(const MmaProduct& p, const Block& block, uint32_t shared)
        : p_(p), first_n_(block.first_n), shared_(shared), w_(p.w + block.group * p.w_group) {}

    __device__ void prefetch(int k0) const {
        each(k0, [](uint32_t, const uint16_t* from, bool exists) {
            if (exists) prefetch_line(from);
        });
    }
    __device__ void start(int k0, int stage) const {
        const uint32_t to = shared_ + uint32_t(offsetof(Smem, w) + size_t(stage) * sizeof(Smem::w[0]));
        each(k0, [&](uint32_t at, const uint16_t* from, bool exists) { cp_async_16(to + at, from, exists); });
        cp_async_commit();
    }

private:
    template <class Use>
    __device__ void each(int k0, Use use) const {
        constexpr int kPieces = (kAlongK ? kDepth : kOuter) / kPiece,
                      kEach = kOuter * kDepth / kPiece / kThreads;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int index = int(threadIdx.x) + i * kThreads, row = index / kPieces, piece = index % kPieces;
            const int n = first_n_ + (kAlongK ? row : kPiece * piece),
                      k = k0 + (kAlongK ? kPiece * piece : row);
            const bool exists = n < p_.outer && k < p_.inner;
            const int64_t at = kAlongK ? n * p_.w_step + k : k * p_.w_step + n;
            use(piece_at(row, piece, kPieces), exists ? w_ + at : w_, exists);
        }
    }

    const MmaProduct& p_;
    const int first_n_;
    const uint32_t shared_;
    const uint16_t* const w_;
};

// A thread's part of the activations of a stage: a piece of each of two tokens.
class Activations {
public:
    __device__ Activations(const MmaProduct& p, const Block& block) : inner_(p.inner) {
#pragma unroll
        for (int i = 0; i < kEach; ++i)  // tokens past the end repeat the last; those sums are not stored
            x_[i] = p.x + min(block.first_token + token(i), p.tokens - 1) * p.x_token +
                    block.group * p.x_group + kPiece * piece();
    }
    __device__ void load(int k0) {
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
            for (int j = 0; j < kPiece; j += 4) {
                const float4 four = k0 + kPiece * piece() < inner_
                                        ? *reinterpret_cast<const float4*>(x_[i] + k0 + j)
                                        : make_float4(0, 0, 0, 0);
                values_[i][j] = four.x, values_[i][j + 1] = four.y;
                values_[i][j + 2] = four.z, values_[i][j + 3] = four.w;
            }
    }
    __device__ void store_parts(uint32_t to) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            uint32_t parts[kParts][kPiece / 2];
            split(values_[i], parts);
#pragma unroll
            for (int part = 0; part < kParts; ++part)
                store_shared(to + uint32_t(part * sizeof(Smem::x[0][0])) +
                                 piece_at(token(i), piece(), kDepth / kPiece),
                             make_uint4(parts[part][0], parts[part][1], parts[part][2], parts[part][3]));
        }
    }

private:
    static constexpr int kEach = kTokens * kDepth / kPiece / kThreads;
    __device__ static int piece() { return int(threadIdx.x) % (kDepth / kPiece); }
    __device__ static int token(int i) {
        return int(threadIdx.x) / (kDepth / kPiece) + i * (kThreads * kPiece / kDepth);
    }

    const float* x_[kEach];
    float values_[kEach][kPiece];
    const int inner_;
};

// Position of the warp in the block's tile.
__device__ inline int warp_n() { return int(threadIdx.x / 32) % (kOuter / kWarpOuter) * kWarpOuter; }
__device__ inline int warp_token() { return int(threadIdx.x / 32) / (kOuter / kWarpOuter) * kWarpTokens; }

// Loads outputs n to n + 15, 16 k starting at `k`, as the first operand.
template <bool kAlongK>
__device__ void load_weights(uint32_t w, int n, int k, uint32_t (&a)[4]) {
    const int lane = int(threadIdx.x % 32);
    if constexpr (kAlongK) {
        ldmatrix_x4(a, w + piece_at(n + lane % 16, k / kPiece + lane / 16, kDepth / kPiece));
    } else {
        const int row = k + lane / 16 * 8 + lane % 8;
        ldmatrix_x4_trans(a, w + piece_at(row, n / kPiece + lane / 8 % 2, kOuter / kPiece));
    }
}

template <bool kAlongK>
__device__ void multiply(uint32_t w, uint32_t x, float (&sums)[kM][kN][4]) {
    const int lane = int(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
        uint32_t a[kM][4];
#pragma unroll
        for (int m = 0; m < kM; ++m) load_weights<kAlongK>(w, warp_n() + 16 * m, k, a[m]);
#pragma unroll
        for (int part = kParts - 1; part >= 0; --part) {
            uint32_t b[kN / 2][4];
#pragma unroll
            for (int u = 0; u < kN / 2; ++u)
                ldmatrix_x4(b[u], x + uint32_t(part * sizeof(Smem::x[0][0])) +
                                      piece_at(warp_token() + 16 * u + lane / 16 * 8 + lane % 8,
                                               k / kPiece + lane / 8 % 2, kDepth / kPiece));
#pragma unroll
            for (int m = 0; m < kM; ++m)
#pragma unroll
                for (int u = 0; u < kN; ++u)
                    mma_bf16(sums[m][u], a[m], b[u / 2][u % 2 * 2], b[u / 2][u % 2 * 2 + 1]);
        }
    }
}

// Stores through shared memory, so that neighboring threads store neighboring outputs.
__device__ void store(const MmaProduct& p, const Block& block, float* results,
                      const float (&sums)[kM][kN][4]) {
    const int row = int(threadIdx.x % 32 / 4), column = 2 * int(threadIdx.x % 4);
    __syncthreads();  // all products are done
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int u = 0; u < kN; ++u)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                results[(warp_token() + 8 * u + column + i % 2) * kResultPitch + warp_n() + 16 * m + row +
                        8 * (i / 2)] = sums[m][u][i];
    __syncthreads();
    for (int i = int(threadIdx.x); i < kTokens * kOuter / kPiece; i += kThreads) {
        const int token = i / (kOuter / kPiece), n = i % (kOuter / kPiece) * kPiece;
        if (block.first_token + token >= p.tokens) break;
        const int64_t at = element(p.out, block.first_token + token, block.group, block.first_n + n);
        const float* const from = results + token * kResultPitch + n;
        float run[kPiece];
#pragma unroll
        for (int j = 0; j < kPiece; ++j) run[j] = from[j];
        if (p.whole_runs && block.first_n + n < p.outer) store_run(p.out, at, run);
        else
            for (int j = 0; j < kPiece && block.first_n + n + j < p.outer; ++j)
                store_value(p.out, at + j * p.out.stride_elems[2], from[j]);
    }
}

template <bool kAlongK>
__global__ void __launch_bounds__(kThreads, 2)
    mma_many(const GridOrder order, const __grid_constant__ MmaProduct p) {
    extern __shared__ __align__(128) char shared[];
    const uint32_t base = shared_address(shared);
    const Block block(p);
    const WeightCopies<kAlongK> weights(p, block, base);
    for (int stage = 0; order.has_work() && stage < kStages; ++stage) weights.prefetch(stage * kDepth);
    if (!order.start()) return;
    Activations x(p, block);
    x.load(0);
    for (int stage = 0; stage < kStages - 1; ++stage) weights.start(stage * kDepth, stage);
    float sums[kM][kN][4] = {};
    int stage = 0, ahead = kStages - 1;
    for (int k0 = 0, turn = 0; k0 < p.inner; k0 += kDepth, turn ^= 1) {
        const uint32_t parts = base + uint32_t(offsetof(Smem, x)) + uint32_t(turn * sizeof(Smem::x[0]));
        x.store_parts(parts);
        cp_async_wait<kStages - 2>();
        __syncthreads();
        weights.start(k0 + (kStages - 1) * kDepth, ahead);  // zeros past the end
        x.load(k0 + kDepth);
        multiply<kAlongK>(base + uint32_t(stage * sizeof(Smem::w[0])), parts, sums);
        stage = stage + 1 == kStages ? 0 : stage + 1;
        ahead = ahead + 1 == kStages ? 0 : ahead + 1;
    }
    cp_async_wait_all();  // zeros, before results overwrite the stages
    store(p, block, reinterpret_cast<float*>(shared), sums);
}

}  // namespace

void run_mma_many(const MmaProduct& p, int64_t groups, const Env& env) {
    const int64_t blocks = groups * ceil_div(p.outer, kOuter) * ceil_div(p.tokens, kTokens);
    launch_ordered(p.along_k ? mma_many<true> : mma_many<false>, blocks, kThreads, sizeof(Smem), env, p);
}

}  // namespace smla::cuda
