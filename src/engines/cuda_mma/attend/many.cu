// attend by mma.sync on bf16 for 64 and for 32 heads, for keys of 576 or 512 values and values of 512.
//
// Maths:  S = Q K^T; weights = exp2(S * scale - peak), running over tiles of 16 listed rows; O += weights V;
//         V is the first 512 values of K. f32 sums; weights are rounded to bf16 for the second product.
// Tile:   64 heads x 16 keys, two teams of 4 warps with 32 heads each; or one team. One token per block, a
//         split of its rows each.
// Roles:  a team walks all tiles at its own pace and makes every second one for both: even tiles are those
//         of team 0; one team makes all. Score: warp p takes every fourth 16 columns for its team's 32 heads,
//         queries live in registers. The partial products are exchanged so that warp p holds 8 heads x 16
//         keys whole: softmax is computed once. Weights and what sums shrink by go through shared memory.
//         Value: warp p takes 128 columns for 32 heads.
// Shared: keys [16, width] bf16, 4 buffers, 3 for fp8; one team: 3 and 2 (swizzled, keys.cuh) | raw records,
//         one tile per team | exchange and weights per team | factors | mbarriers | masks of holes; tile.cuh.
//         At most 99 KB.
// Stages: bf16: cp.async of tile t + 2 begins with tile t. fp8: the team that made tile t decodes its next,
//         t + 2 or t + 1, after the values of t, from raw bytes that are under way since it decoded t.
// Barriers:
//   full[b]   the 128 threads of the maker arrive (bf16: once their copies are done) and, bf16, one lane per
//             row when it has stored the row's byte of the mask; all warps wait before they read buffer b
//   empty[b]  one lane of each of the 8 warps arrives after its last read of b; the maker waits before it
//             writes
//   1 + team  named, 128 threads, twice per tile: products exchanged; weights stored. Between two uses of
//             either memory every warp passes the other barrier.
// Why:    64 heads x 512 f32 sums are half a register file: one block of 8 warps, two per scheduler. Were
//         all in step, each phase's latency would stand alone; two teams that only meet at full buffers
//         drift apart (a maker is late by what it makes), so that one multiplies while the other waits. 16
//         keys instead of 32 make room for the third buffer that this takes. Four parts of the width for 32
//         heads read each key twice per score, where two parts for 16 heads read it four times. 32 heads
//         alone: two blocks on a multiprocessor that can hold their memory drift apart by themselves.
// Prediction and results: docs/kernels/cuda_attend.md.
#include "engines/cuda_common/launch.cuh"
#include "engines/cuda_common/ptx/barrier.cuh"
#include "engines/cuda_common/ptx/grid.cuh"
#include "engines/cuda_mma/attend/keys.cuh"
#include "engines/cuda_mma/attend/products.cuh"
#include "engines/cuda_mma/attend/run.h"
#include "engines/cuda_mma/attend/softmax.cuh"

namespace smla::cuda_attend {

namespace {

__device__ inline int team_of_warp() { return int(threadIdx.x) / kCopiers; }
__device__ inline void team_barrier() { cuda::named_barrier<kCopiers>(1 + team_of_warp()); }

// Tile t lies in buffer t % buffers, whose mbarriers are then in phase t / buffers.
template <class T>
struct Turn {
    int buffer = 0;
    uint32_t parity = 0;

    __device__ Turn after(int tiles) const {  // at most `buffers`
        const int at = buffer + tiles;
        return {at < T::buffers ? at : at - T::buffers, at < T::buffers ? parity : parity ^ 1};
    }
    static __device__ uint32_t barriers(uint32_t base) { return base + uint32_t(T::barriers_at); }
    __device__ uint32_t full(uint32_t base) const { return barriers(base) + uint32_t(16 * buffer); }
    __device__ uint32_t empty(uint32_t base) const { return full(base) + 8; }
};

// What a team does for the tiles that it makes.
template <class T>
class Maker {
public:
    __device__ Maker(const Arguments& args, const Tiles<T::keys>& tiles, char* shared)
        : args_(args), tiles_(tiles), shared_(shared), base_(cuda::shared_address(shared)) {}

    // Row numbers of the team's first tiles.
    __device__ void begin() {
        for (int i = 0; i < T::rows_ahead; ++i) fetch(team_of_warp() + i * T::teams);
        arrive<0>();
    }
    // bf16: tile t is on its way into its buffer.
    __device__ void copy(int t, const Turn<T>& turn) {
        if (t >= tiles_.count()) return;
        arrive<T::rows_ahead - 1>();  // the row numbers; a tile's copies belong to what is fetched after them
        wait_until_empty(turn);
        publish(t, Filler<T>::copy_bf16(tiles_, t, 0, base_ + uint32_t(turn.buffer * T::keys_bytes)));
        cuda::mbarrier_arrive_after_copies(turn.full(base_));
        if (threadIdx.x % 8 == 0) cuda::mbarrier_arrive(turn.full(base_));  // what it published
        fetch(t + T::rows_ahead * T::teams);
    }
    // fp8: the records of tile t are on their way, and the row numbers of the next.
    __device__ void send(int t) {
        __syncwarp();  // the warp has decoded what lies there
        if (t < tiles_.count()) Filler<T>::copy_raw(tiles_, t, 0, cuda::shared_address(raw()));
        fetch(t + T::teams);
    }
    // fp8: tile t, sent before, is in its buffer.
    __device__ void decode(int t, const Turn<T>& turn) {
        if (t >= tiles_.count()) return;
        arrive<0>();
        wait_until_empty(turn);
        Filler<T>::decode_row(args_, tiles_, t, 0, raw(), shared_ + turn.buffer * T::keys_bytes);
        publish(t, tiles_.row(t, Filler<T>::row_of(0)).valid);
        cuda::mbarrier_arrive(turn.full(base_));
        send(t + T::teams);
    }

private:
    __device__ char* raw() const { return shared_ + T::raw_at + team_of_warp() * T::raw_bytes; }
    __device__ void fetch(int t) {  // the 8 lanes of a row fetch the same: cheaper than a branch
        tiles_.fetch(t, Filler<T>::row_of(0));
        cuda::cp_async_commit();
    }
    // What this warp has on its way but the last `Pending` is there, for all of its lanes.
    template <int Pending>
    __device__ void arrive() {
        cuda::cp_async_wait<Pending>();
        __syncwarp();
    }
    // True at once in a buffer's first turn: the phase before a barrier's first counts as over.
    __device__ void wait_until_empty(const Turn<T>& turn) {
        cuda::mbarrier_wait(turn.empty(base_), turn.parity ^ 1);
    }
    // Whether this thread's row of tile t is no hole: a byte per key.
    __device__ void publish(int t, bool valid) {
        if (threadIdx.x % 8 == 0) shared_[T::masks_at + 16 * (t % 4) + Filler<T>::row_of(0)] = valid;
    }

    const Arguments& args_;
    const Tiles<T::keys>& tiles_;
    char* const shared_;
    const uint32_t base_;
};

// Which keys of a tile are no holes: a byte each.
struct Mask {
    uint4 bytes;
    __device__ explicit Mask(const char* at) : bytes(*reinterpret_cast<const uint4*>(at)) {}
    __device__ bool any() const { return bytes.x | bytes.y | bytes.z | bytes.w; }
    __device__ bool all() const { return (bytes.x & bytes.y & bytes.z & bytes.w) == 0x01010101; }
    // Key 8 n + 2 * (lane % 4) + c.
    __device__ bool hole(int n, int c) const {
        const uint32_t low = n ? bytes.z : bytes.x, high = n ? bytes.w : bytes.y;
        return !((threadIdx.x & 2 ? high : low) >> (16 * (threadIdx.x & 1) + 8 * c) & 1);
    }
};

// This warp's share of the products of its 32 heads with 16 keys.
template <class T>
__device__ void score(const uint32_t (&q)[T::m_tiles][T::k_steps][4], uint32_t buffer,
                      float (&s)[T::m_tiles][2][4]) {
    const uint32_t keys = score_operand<T>(buffer);
#pragma unroll
    for (int i = 0; i < 8 * T::m_tiles; ++i) s[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < T::k_steps; ++k) {
        uint32_t b[4];
        cuda::ldmatrix_x4(b, keys + uint32_t(128 * k));
#pragma unroll
        for (int m = 0; m < T::m_tiles; ++m) {
            cuda::mma_bf16(s[m][0], q[m][k], b[0], b[1]);
            cuda::mma_bf16(s[m][1], q[m][k], b[2], b[3]);
        }
    }
}

// Whole products of heads 8 part .. 8 part + 7 of the team, from the four parts of the width: those that a
// lane holds of group m, rows r, go to part 2 m + r. own[n][c]: head lane / 4, key 8 n + 2 * (lane % 4) + c.
template <class T>
__device__ void exchange_parts(const float (&s)[T::m_tiles][2][4], char* exchange, float (&own)[2][2]) {
    const int lane = threadIdx.x % 32, part = part_of_warp();
    float4* const memory = reinterpret_cast<float4*>(exchange) + lane;
#pragma unroll
    for (int to = 0; to < kParts; ++to) {
        const int m = to / 2, r = 2 * (to % 2);
        memory[32 * (kParts * to + part)] =
            make_float4(s[m][0][r], s[m][0][r + 1], s[m][1][r], s[m][1][r + 1]);
    }
    team_barrier();
    float4 sum = memory[32 * kParts * part];
#pragma unroll
    for (int from = 1; from < kParts; ++from) {
        const float4 other = memory[32 * (kParts * part + from)];
        sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    own[0][0] = sum.x, own[0][1] = sum.y, own[1][0] = sum.z, own[1][1] = sum.w;
}

// Weights [32 heads, 16 keys] in bf16: 32 bytes per head; 16-byte piece c of head h at c ^ (h / 4 & 1), so
// that the 8 rows of an ldmatrix meet 8 different banks.
__device__ inline uint32_t weights_place(int head, int piece) {
    return uint32_t(head * 32 + ((piece ^ (head >> 2 & 1)) << 4));
}

template <class T>
struct Team {
    const Arguments& args;
    char* shared;
    Softmax<1, 2> softmax;
    uint32_t q[T::m_tiles][T::k_steps][4];
    float unit;  // turns a product into a logit in powers of two

    __device__ Team(const Arguments& args, char* shared)
        : args(args), shared(shared), softmax(shared + T::peaks_at), unit(args.scale() * kLog2E) {}

    __device__ float* factors() const {
        return reinterpret_cast<float*>(shared + T::factors_at) + team_of_warp() * T::team_heads;
    }
    __device__ char* weights() const { return shared + T::weights_at + team_of_warp() * T::weights_bytes; }

    // One tile: products, weights, values.
    __device__ void attend_tile(Sums<T>& sums, int buffer, const Mask& mask) {
        const int lane = threadIdx.x % 32, part = part_of_warp();
        const uint32_t keys = cuda::shared_address(shared) + uint32_t(buffer * T::keys_bytes);
        float products[T::m_tiles][2][4], s[2][2], shrink[1];
        score<T>(q, keys, products);
        exchange_parts<T>(products, shared + T::exchange_at + team_of_warp() * T::exchange_bytes, s);
        softmax.weigh(s, unit, shrink, !mask.all(), [&](int n, int c) { return mask.hole(n, c); });
        const int head = 8 * part + lane / 4;
#pragma unroll
        for (int n = 0; n < 2; ++n)
            *reinterpret_cast<uint32_t*>(weights() + weights_place(head, n) + 4 * (lane % 4)) =
                cuda::pack_bf16(s[n][0], s[n][1]);
        if (lane % 4 == 0) factors()[lane + part] = shrink[0];  // [head of 8][part]
        team_barrier();
        const float4 pairs = reinterpret_cast<const float4*>(factors())[lane / 4];
        shrink_sums<T>(sums, {{pairs.x, pairs.y}, {pairs.z, pairs.w}});
        uint32_t a[T::m_tiles][4];
#pragma unroll
        for (int m = 0; m < T::m_tiles; ++m)
            cuda::ldmatrix_x4(
                a[m], cuda::shared_address(weights()) + weights_place(16 * m + (lane & 15), lane >> 4));
        add_values<T>(sums, a, value_operand<T>(keys));
    }

    __device__ void walk(const Tiles<T::keys>& tiles, const Place& place, Sums<T>& sums) {
        const int team = team_of_warp();
        const uint32_t base = cuda::shared_address(shared);
        Maker<T> maker(args, tiles, shared);
        Turn<T> turn;
        maker.begin();
        if constexpr (T::coded) {
            maker.send(team);
        } else {
            maker.copy(team, turn.after(team));
            if constexpr (T::ahead > T::teams) maker.copy(team + T::teams, turn.after(team + T::teams));
        }
        load_queries<T>(args, place.token, place.head + T::team_heads * team, q);
        if constexpr (T::coded) maker.decode(team, turn.after(team));
        for (int t = 0; t < tiles.count(); ++t, turn = turn.after(1)) {
            const bool makes = t % T::teams == team;
            if (!T::coded && makes) maker.copy(t + T::ahead, turn.after(T::ahead));
            cuda::mbarrier_wait(turn.full(base), turn.parity);
            const Mask mask(shared + T::masks_at + 16 * (t % 4));
            if (mask.any()) attend_tile(sums, turn.buffer, mask);
            // no lane runs ahead of the warp's last ldmatrix
            if (threadIdx.x % 32 == 0) cuda::mbarrier_arrive(turn.empty(base));
            if (T::coded && makes) maker.decode(t + T::ahead, turn.after(T::ahead));
        }
    }

    // Statistics of this warp's 8 heads; the factors of their sums.
    __device__ void finish(const Cut& cut, const Place& place) {
        const int in_team = 8 * part_of_warp() + int(threadIdx.x % 32) / 4;
        const int64_t h = place.head + team_of_warp() * T::team_heads + in_team;
        const float sum = softmax.total(0);
        const Peaks<1> peaks = *softmax.heads;
        if (threadIdx.x % 4 == 0 && h < args.q.shape[1])
            finish_head(args, cut, place, h, softmax.any(), peaks.peak2[0], peaks.largest[0], sum,
                        factors()[in_team]);
    }
};

template <class T>
__device__ void init_barriers(char* shared) {
    Turn<T> turn;
    for (int b = 0; b < T::buffers; ++b, turn = turn.after(1)) {
        cuda::mbarrier_init(turn.full(cuda::shared_address(shared)), T::fillers);
        cuda::mbarrier_init(turn.empty(cuda::shared_address(shared)), T::warps);
    }
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::resident)
    attend_many(const __grid_constant__ Arguments args, const __grid_constant__ Cut cut) {
    extern __shared__ __align__(128) char shared[];
    const Place start(cut, T::heads);
    if (threadIdx.x == 0) init_barriers<T>(shared);
    if (cut.splits > 1) cuda::start_next_grid();
    auto& board = *reinterpret_cast<Board<T::keys>*>(shared + T::board_at);
    // meets all threads: the mbarriers are there
    const Tiles<T::keys> tiles(args, board, start.token, start.part % cut.splits, cut.splits);
    Team<T> team(args, shared);
    Sums<T> sums = {};
    team.walk(tiles, start, sums);
    const Place place(cut, T::heads);
    team_barrier();  // factors of the last tile are read
    team.finish(cut, place);
    team_barrier();
    if (cut.splits == 1 || team.softmax.any())
        store_sums<T>(args, cut, place, team_of_warp() * T::team_heads,
                      reinterpret_cast<const float*>(shared + T::factors_at), sums);
}

template <class T>
void launch_team(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env) {
    cuda::launch(attend_many<T>, schedule.blocks(), T::threads, T::bytes, env, Arguments(args), cut);
}

}  // namespace

template <int Width, bool Coded>
void launch_many(const smla_attend_args& args, const Schedule& schedule, const Cut& cut, const Env& env) {
    if (schedule.heads == kSomeHeads) launch_team<SomeHeads<Width, Coded>>(args, schedule, cut, env);
    else launch_team<ManyHeads<Width, Coded>>(args, schedule, cut, env);
}
template void launch_many<576, false>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);
template void launch_many<576, true>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);
template void launch_many<512, false>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);
template void launch_many<512, true>(const smla_attend_args&, const Schedule&, const Cut&, const Env&);

}  // namespace smla::cuda_attend
