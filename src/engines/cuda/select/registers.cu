// select of short rows; each block keeps one row in registers.
//
// Math       1. A thread loads 16 or 32 neighboring columns. 2. Bins of equal width divide the range of the
//            row's scores; columns above the bin with the k-th score win. 3. The columns inside that bin, its
//            members, some dozens, are compared with each other; too many are divided by histograms of their
//            keys (cut.cuh). 4. A prefix sum gives the winners' places; they are collected in shared memory
//            and written in order.
// Tile       A block per row: 256 threads x 16 columns, 512 x 16, 512 x 32.
// Shared     RegisterShared, 8.6 KB | the winners' columns [k], 16 bits each.
// Barriers   Only __syncthreads.
// Registers  40, so that three blocks of 512 threads share a multiprocessor and one computes while another
//            waits: 62 us for 2048 rows of 8192 columns; 72 us with two blocks.
// Why        A row is read once, without estimates: a sample, candidates and a sort, as for long rows, cost
//            more than 16 registers.
// Results    docs/kernels/cuda_select.md.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/select/list.cuh"

#include <algorithm>

namespace smla::cuda {

namespace {

constexpr int kMostCompared = 256;  // maximum of compared members

// Configuration for rows of up to kThreads * kColumns columns.
template <int Threads, int Columns, int Blocks>
struct Holding {
    static constexpr int kThreads = Threads, kWarps = Threads / 32;
    static constexpr int kColumns = Columns;  // neighboring columns of a thread
    static constexpr int kBlocks = Blocks;    // per multiprocessor; one computes while another waits
};
using Hold4096 = Holding<256, 16, 5>;
using Hold8192 = Holding<512, 16, 3>;
using Hold16384 = Holding<512, 32, 2>;

struct RegisterSelect {
    SelectInput input;
    SelectOutput output;
    Windows windows;
};

struct RegisterShared {
    CutScratch cut;      // bins, later reused for the keys of members
    uint2 extremes[32];  // per warp
    Cut of_members;
    uint32_t member_count;
    TokenOutput of_token;  // of_token and begin are here to save registers
    int begin;             // first column of the window
    uint16_t winners[];    // winners' columns, relative to `begin`
};

// A thread's columns in memory. A few are read again from there, because registers cannot be indexed.
template <class Score>
struct ThreadKeys {
    const Score* scores;  // score of the thread's first column
    bool f16;

    // Calls visit(mask, key) for each set bit of `bits`.
    template <class Visit>
    __device__ void each(uint32_t bits, const Visit& visit) const {
#pragma unroll 1
        for (; bits; bits &= bits - 1)
            visit(bits & -bits, rank_key(widen(scores[__ffs(int(bits)) - 1], f16)));
    }
};

// The columns of a thread. Bit i of `here`: column first + i of the window exists; other scores are NaN.
template <class Score, int Columns>
struct ThreadColumns {
    float scores[Columns];
    uint32_t here = 0;
    int first;
    bool has_nan = false;  // only existing columns

    // Columns are numbered from the 16-byte boundary at or before `of_window`, the window's first score.
    __device__ ThreadColumns(const Score* of_window, int length, bool f16) {
        constexpr int kTogether = 16 / int(sizeof(Score)), kLoads = Columns / kTogether;
        first = int(threadIdx.x) * Columns -
                int(reinterpret_cast<uintptr_t>(of_window) % 16) / int(sizeof(Score));
        if (first >= 0 && first + Columns <= length) {
            const auto* const from = reinterpret_cast<const uint4*>(of_window + first);
            uint4 words[kLoads];
#pragma unroll
            for (int v = 0; v < kLoads; ++v) words[v] = from[v];
#pragma unroll
            for (int v = 0; v < kLoads; ++v) unpack<Score>(words[v], f16, scores + v * kTogether);
#pragma unroll
            for (const float score : scores) has_nan |= isnan(score);
            here = uint32_t((uint64_t(1) << Columns) - 1);
            return;
        }
#pragma unroll
        for (int i = 0; i < Columns; ++i) {
            scores[i] = NAN;
            if (uint32_t(first + i) >= uint32_t(length)) continue;
            scores[i] = widen(of_window[first + i], f16);
            here |= 1u << i;
            has_nan |= isnan(scores[i]);
        }
    }
    // Returns a mask of the columns whose score passes test(score).
    template <class Test>
    __device__ uint32_t mask(const Test& test) const {
        uint32_t out = 0;
#pragma unroll
        for (int i = 0; i < Columns; ++i) out |= uint32_t(test(scores[i])) << i;
        return out;
    }
};

// State of a thread's columns, as masks in the order of ThreadColumns.
struct Standing {
    uint32_t wins = 0, members = 0;  // columns that win; columns that may win
    uint32_t inside = 0;             // number of members in the row
    uint32_t need = 0;               // number of members that win; the first ones if all are equal
};

struct Extremes {
    uint32_t least, largest;  // keys; `least` is larger if there are no keys
};

template <int Warps>
__device__ Extremes extremes_of_row(Extremes own, uint2* of_warps) {
    const uint2 of_warp = {__reduce_min_sync(~0u, own.least), __reduce_max_sync(~0u, own.largest)};
    __syncthreads();  // of_warps may still be read
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    const uint2 mine = of_warps[threadIdx.x % Warps];
    return {__reduce_min_sync(~0u, mine.x), __reduce_max_sync(~0u, mine.y)};
}

// Maps scores to bins of equal width from the least score to the largest. The float 2^23 + bin, whose last
// bits are the bin, replaces the score; the map is monotonic under any rounding. The bins are clear. Bin 0 is
// for NaN, so that no thread branches. The row has more than k other columns.
template <class Hold, class Row>
__device__ Standing divide_by_score(Row& row, float least, float range, int k, CutScratch& scratch) {
    constexpr float kFirst = 1 << 23;
    const float scale = __fdividef(kBins - 2, range);
#pragma unroll
    for (float& score : row.scores) {
        score = fmaxf(fmaf(score - least, scale, kFirst + 1), kFirst);
        atomicAdd(scratch.bins + (__float_as_uint(score) - __float_as_uint(kFirst)), 1u);
    }
    __syncthreads();
    find_bin<Hold::kThreads>(scratch, uint32_t(k));
    const float cut = kFirst + float(scratch.bin);
    return {.wins = row.mask([&](float place) { return place > cut; }),
            .members = row.mask([&](float place) { return place == cut; }),
            .inside = scratch.inside,
            .need = uint32_t(k) - scratch.above};
}

// Returns the cut through at most kMostCompared members, each compared with all others and with up to three
// stale counts of the bins, which are below every key.
template <class Keys>
__device__ Cut compare_members(const Keys& keys, const Standing& mine, RegisterShared& shared) {
    uint32_t* const members = shared.cut.bins;
    keys.each(mine.members,
              [&](uint32_t, uint32_t key) { members[atomicAdd(&shared.member_count, 1u)] = key; });
    __syncthreads();
    if (threadIdx.x < mine.inside) {
        const uint32_t key = members[threadIdx.x];
        uint32_t above = 0, equal = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < mine.inside; i += 4) {
            const uint4 others = *reinterpret_cast<const uint4*>(members + i);
#pragma unroll
            for (const uint32_t other : {others.x, others.y, others.z, others.w})
                above += other > key, equal += other == key;
        }
        if (above < mine.need && mine.need <= above + equal) shared.of_members = {key, mine.need - above};
    }
    __syncthreads();
    return shared.of_members;
}

// Returns the cut through any number of members, by histograms of their keys. Out of line to save registers.
template <class Hold, class Keys>
__device__ __noinline__ Cut divide_by_key(Keys keys, Standing mine, RegisterShared& shared) {
    Extremes own{UINT32_MAX, 0};
    keys.each(mine.members, [&](uint32_t, uint32_t key) {
        own.least = min(own.least, key), own.largest = max(own.largest, key);
    });
    const Extremes all = extremes_of_row<Hold::kWarps>(own, shared.extremes);
    return find_cut<PlainCounter, Hold::kThreads>(
        shared.cut, mine.need, all.least, all.largest, 3,
        [&](const auto& f) { keys.each(mine.members, [&](uint32_t, uint32_t key) { f(key); }); });
}

// Chooses k columns of a longer row. In the result, all members are equal. NaN rank last.
template <class Hold, class Row, class Score>
__device__ Standing choose(Row& row, const Score* of_window, bool f16, int k, RegisterShared& shared) {
    float least = INFINITY, largest = -INFINITY;
#pragma unroll
    for (const float score : row.scores) least = fminf(least, score), largest = fmaxf(largest, score);
    const Extremes all = extremes_of_row<Hold::kWarps>({rank_key(least), rank_key(largest)}, shared.extremes);
    least = score_of(all.least);
    const float range = score_of(all.largest) - least;
    Standing mine{.need = uint32_t(k)};
    const bool linear = range > kNarrow && range < INFINITY;
    if (__syncthreads_or(int(row.has_nan)) || !linear) {
        const uint32_t none = row.mask([](float score) { return isnan(score); }), here = row.here;
        mine.members = here & ~none;
        block_scan<Hold::kWarps>(uint32_t(__popc(mine.members)), shared.cut.warps, mine.inside);
        if (mine.inside <= uint32_t(k))
            return {.wins = mine.members, .members = here & none, .need = uint32_t(k) - mine.inside};
    }
    if (linear) mine = divide_by_score<Hold>(row, least, range, k, shared.cut);
    if (mine.inside == mine.need) return mine;
    const ThreadKeys<Score> keys{of_window + row.first, f16};
    const Cut cut = mine.inside <= uint32_t(kMostCompared) ? compare_members(keys, mine, shared)
                                                           : divide_by_key<Hold>(keys, mine, shared);
    keys.each(mine.members, [&](uint32_t one, uint32_t key) {
        if (key > cut.key) mine.wins |= one;
        if (key != cut.key) mine.members &= ~one;
    });
    mine.need = cut.equal;
    return mine;
}

// Writes the columns of the winners to shared memory, in order.
template <class Hold, class Row>
__device__ void place_winners(const Row& row, Standing mine, RegisterShared& shared) {
    uint32_t total;
    const uint32_t before = block_scan<Hold::kWarps>(
        uint32_t(__popc(mine.wins)) | uint32_t(__popc(mine.members)) << 16, shared.cut.warps, total);
    const uint32_t members = min(before >> 16, mine.need);  // winning members of preceding threads
    int place = int((before & 0xffff) + members);
    while (__popc(mine.members) > int(mine.need - members))
        mine.members ^= 1u << (31 - __clz(int(mine.members)));
    const uint32_t wins = mine.wins | mine.members;
#pragma unroll
    for (int i = 0; i < Hold::kColumns; ++i)
        if (wins >> i & 1) shared.winners[place++] = uint16_t(row.first + i);
    __syncthreads();
}

// Writes `count` winners of a row; column(i) is relative to `begin`. Rows have a separate loop, because
// together with the other outputs they spill registers on some architectures.
template <bool Rows, class Score, class Column>
__device__ void put_winners(const RegisterSelect& task, const TokenOutput& of_token, const Score* of_window,
                            int begin, int count, const Column& column) {
    const Winners<false> winners(task.output, blockIdx.x, of_token);
    for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) {
        const int at = column(i);
        winners.put(i, begin + at, [&] { return widen(of_window[at], task.input.dtype == SMLA_F16); });
    }
    winners.finish(count);
    if constexpr (Rows) {
        int32_t* const rows = task.output.rows + blockIdx.x * task.output.row_stride;
        for (int i = int(threadIdx.x); i < int(task.output.k); i += int(blockDim.x))
            rows[i] = i < count ? row_of(task.output.row_table, of_token.request, begin + column(i)) : -1;
    }
}

// Blocks per multiprocessor. With 16-bit scores, three blocks of 512 threads would spill.
template <class Score, class Hold>
constexpr int kResident = sizeof(Score) == 2 && Hold::kThreads == 512 ? 2 : Hold::kBlocks;

template <class Score, class Hold, bool Rows>
__global__ void __launch_bounds__(Hold::kThreads, kResident<Score, Hold>)
    select_by_registers(const GridOrder order, const __grid_constant__ RegisterSelect task) {
    extern __shared__ __align__(16) char memory[];
    if (!order.start()) return;
    RegisterShared& shared = *reinterpret_cast<RegisterShared*>(memory);
    const int64_t token = blockIdx.x;
    const Window window = task.windows(token);
    const int length = window.end - window.begin, k = int(task.output.k);
    const auto of_token = [&] { return TokenOutput(task.output, task.windows, token, Rows); };
    const Score* const scores = static_cast<const Score*>(task.input.scores) + token * task.input.stride +
                                (window.begin - task.windows.begin);
    if (length <= k || k == 0)
        return put_winners<Rows>(task, of_token(), scores, window.begin, min(length, k),
                                 [](int i) { return i; });
    for (int i = int(threadIdx.x); i < kBins; i += Hold::kThreads) shared.cut.bins[i] = 0;
    if (threadIdx.x == 0) shared.member_count = 0, shared.of_token = of_token(), shared.begin = window.begin;
    const bool f16 = sizeof(Score) == 2 && task.input.dtype == SMLA_F16;
    ThreadColumns<Score, Hold::kColumns> row(scores, length, f16);
    place_winners<Hold>(row, choose<Hold>(row, scores, f16, k, shared), shared);
    put_winners<Rows>(task, shared.of_token, scores, shared.begin, k,
                      [&](int i) { return int(shared.winners[i]); });
}

using Kernel = void (*)(GridOrder, RegisterSelect);
struct Holder {
    Kernel kernel = nullptr;
    int threads = 0;
};

template <class Score, bool Rows>
Holder holder_of(int64_t places) {
    Holder out;
    const auto take = [&]<class Hold>(Hold) {
        if (out.kernel || places > Hold::kThreads * Hold::kColumns) return;
        out = {select_by_registers<Score, Hold, Rows>, Hold::kThreads};
    };
    take(Hold4096{}), take(Hold8192{}), take(Hold16384{});
    return out;
}

// Returns no kernel if rows are too long, including places before the first column in its 16 bytes.
template <bool Rows>
Holder holder_of(const SelectInput& input) {
    const int64_t bytes = dtype_bits(input.dtype) / 8;
    const bool aligned =
        reinterpret_cast<uintptr_t>(input.scores) % 16 == 0 && input.stride * bytes % 16 == 0;
    const int64_t places = input.end - input.begin + (aligned ? 0 : 16 / bytes - 1);
    return input.dtype == SMLA_F32 ? holder_of<float, Rows>(places) : holder_of<uint16_t, Rows>(places);
}

}  // namespace

bool registers_select(const SelectInput& input) { return holder_of<false>(input).kernel != nullptr; }

void run_select_by_registers(const SelectInput& input, const SelectOutput& output, void*, const Env& env) {
    const RegisterSelect task{
        .input = input,
        .output = output,
        .windows = Windows(input.starts, input.ends, input.columns, input.begin, input.end)};
    const Holder holder = with_rows(output, [&](auto rows) { return holder_of<rows.value>(input); });
    const int64_t winners = std::min(output.k, input.end - input.begin);
    launch_ordered(holder.kernel, input.tokens, holder.threads,
                   sizeof(RegisterShared) + size_t(winners) * sizeof(uint16_t), env, task);
}

}  // namespace smla::cuda
