// select of few rows, each by a cluster of blocks that hold it in shared memory.
//
// Steps      1. Load: each block keeps its part of the row; the largest score of each of k groups or more.
//            At least k columns reach the least of those, the floor. 2. Bins of equal width between the floor
//            and the largest score: one histogram in each block, which all blocks add up. 3. Columns above
//            the bin with the k-th score win. Those inside, its members, some dozens, are compared one by
//            one; as long as there are too many, bins of 9 bits of their keys divide them. 4. Counts of the
//            blocks before, and of the threads before, are a winner's place.
// Tile       a cluster of 1, 2, 4 or 8 blocks of 1024 threads per row; a thread has up to 32 neighbouring
//            columns.
// Shared     struct ClusterShared | the part, units of 4 columns [1024][1, 3, 5 or 9]: an odd number, so that
//            lanes that read a unit each meet no bank twice.
// Barriers   cluster_sync after what other blocks read or write: the start (before the first store to a
//            block), extremes, bins, members, counts.
// Registers  64 of 1024 threads: masks of 32 columns instead of the columns.
// Why        one row waits for latencies. No sample and no candidates in global memory: a row of 131,072
// columns
//            has four meetings of its blocks, where the sampled kernel has a sample with its cut, the arrival
//            of the last block, and all that this block does alone.
// Results    docs/kernels/cuda_select.md.
#include "engines/cuda/common/index_check.cuh"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/select/list.cuh"

#include <algorithm>
#include <bit>

namespace smla::cuda {

namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kUnit = 4, kMostUnits = 8;  // neighbouring columns; units of a thread
constexpr int kMostParts = 8;             // blocks of a cluster, at most
constexpr int kLeastPart = 4096;          // columns that another block pays for
constexpr int kWideBits = 9, kWideBins = 1 << kWideBits;
constexpr float kNarrow = 1e-30f;       // bins of narrower ranges would need a scale beyond f32
constexpr uint32_t kMostMembers = 512;  // that are compared one by one
static_assert(kWideBins <= kThreads && kMostMembers <= kThreads);
static_assert(kMostUnits * kUnit <= 32 &&
              kThreads * kUnit * kMostUnits < 1 << 16);  // masks; counts of a block

struct ClusterSelect {
    SelectInput input;
    SelectOutput output;
    Windows windows;
    int parts;
};

struct Extremes {
    uint32_t floor, best;  // keys
};

struct ClusterShared {
    Extremes extremes[kMostParts];  // by block; each stores its own to all
    uint32_t counts[kMostParts];    // winners | columns equal to the cut << 16; the same
    Extremes of_warps[kWarps];
    uint32_t warps[kWarps];
    uint32_t bins[kWideBins], members[kMostMembers], member_count;  // of this block; the others read them
    uint32_t all_members[kMostMembers];
    uint32_t bin, above, inside;  // the bin with the need-th score
    Cut cut;
    float4 units[];
};

__host__ __device__ inline int odd(int units) { return units == 1 ? 1 : units + 1; }

// Bits [first, last) of 32, as far as there are such.
__device__ inline uint32_t bits_between(int first, int last) {
    const auto below = [](int n) { return n >= 32 ? ~0u : (1u << max(n, 0)) - 1; };
    return below(last) & ~below(first);
}

// The columns of a row that a block holds. Places count from the last multiple of 16 bytes before the row, so
// the first ones may be no columns.
template <class Score>
class RowPart {
public:
    static constexpr int kTogether = 16 / int(sizeof(Score));  // of a load

    __device__ RowPart(const SelectInput& input, const Windows& windows, const Window& window, int64_t token,
                       int parts, int rank, float4* units)
        : units_(units), window_begin_(window.begin), f16_(input.dtype == SMLA_F16) {
        const Score* const row =
            static_cast<const Score*>(input.scores) + token * input.stride + (window.begin - windows.begin);
        outside_ = int(reinterpret_cast<uintptr_t>(row) % 16) / int(sizeof(Score));
        scores_ = row - outside_;
        const int places = outside_ + window.end - window.begin;
        per_block_ = (places + parts - 1) / parts;
        per_block_ = (per_block_ + kTogether - 1) / kTogether * kTogether;
        begin_ = min(rank * per_block_, places), end_ = min(begin_ + per_block_, places);
        while (per_block_ > kThreads * kUnit << units_log2_) ++units_log2_;
        const int whole = (places - 1) / max(per_block_, 1);  // blocks before the last that has columns
        whole_ = whole, last_ = places - whole * per_block_;
    }

    // Groups of columns when the loads of 2^log2 neighbouring threads are one.
    __device__ int groups(int log2) const {
        const auto of = [&](int places) {
            return (min(kThreads, (places + kTogether - 1) / kTogether) + (1 << log2) - 1) >> log2;
        };
        return whole_ * of(per_block_) + of(last_);
    }

    // Copies the part to shared memory, with NaN where a thread's units hold no column. visit(score) for
    // every column that the thread loads.
    template <class Visit>
    __device__ void load(const Visit& visit) const {
        constexpr int kAtOnce = 4;
        const int loads = max(1, (kUnit << units_log2_) / kTogether);  // of a thread
        for (int first = 0; first < loads; first += kAtOnce) {
            uint4 words[kAtOnce];
#pragma unroll
            for (int v = 0; v < kAtOnce; ++v)
                if (whole(place(first + v)))
                    words[v] = __ldcg(reinterpret_cast<const uint4*>(scores_ + place(first + v)));
#pragma unroll
            for (int v = 0; v < kAtOnce; ++v) {
                const int at = place(first + v);
                float values[kTogether];
                if (whole(at)) {
                    unpack(words[v], values);
#pragma unroll
                    for (int e = 0; e < kTogether; ++e) visit(values[e]);
                } else {
#pragma unroll
                    for (int e = 0; e < kTogether; ++e) {
                        values[e] = NAN;
                        if (at + e < outside_ || at + e >= end_) continue;
                        values[e] = widen(scores_[at + e]);
                        visit(values[e]);
                    }
                }
                if (at - begin_ < kThreads * kUnit << units_log2_) store(at - begin_, values);
            }
        }
    }

    // Column i of the whole row.
    __device__ float score_of_row(int i) const { return widen(scores_[outside_ + i]); }

    // Units and columns of the thread: bit 4 * j + c is column c of its j-th unit.
    __device__ int units() const { return 1 << units_log2_; }
    __device__ float4 unit(int j) const { return units_[int(threadIdx.x) * odd(units()) + j]; }
    __device__ float score(int bit) const {
        return reinterpret_cast<const float*>(units_ + int(threadIdx.x) * odd(units()))[bit];
    }
    __device__ uint32_t here() const {
        const int first = first_place();
        return bits_between(outside_ - first, min(end_ - first, kUnit * units()));
    }
    __device__ int column(int bit) const { return window_begin_ + first_place() + bit - outside_; }

private:
    __device__ int first_place() const { return begin_ + int(threadIdx.x) * kUnit * units(); }
    __device__ int place(int load) const { return begin_ + (load * kThreads + int(threadIdx.x)) * kTogether; }
    __device__ bool whole(int at) const { return at >= outside_ && at + kTogether <= end_; }
    __device__ float widen(Score score) const {
        if constexpr (sizeof(Score) == 4) return score;
        else return f16_ ? f16_to_f32(score) : bf16_to_f32(score);
    }
    __device__ void unpack(const uint4& words, float (&values)[kTogether]) const {
        const uint32_t all[] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if constexpr (kTogether == 4) {
                values[i] = __uint_as_float(all[i]);
            } else {
                values[2 * i] = widen(Score(all[i] & 0xffffu));
                values[2 * i + 1] = widen(Score(all[i] >> 16));
            }
    }
    __device__ void store(int at, const float (&values)[kTogether]) const {
#pragma unroll
        for (int i = 0; i < kTogether; i += kUnit) {
            const int number = (at + i) / kUnit;
            units_[(number >> units_log2_) * odd(units()) + (number & (units() - 1))] = {
                values[i], values[i + 1], values[i + 2], values[i + 3]};
        }
    }

    const Score* scores_;
    float4* units_;
    int window_begin_, outside_, per_block_, begin_, end_, whole_, last_;
    int units_log2_ = 0;
    bool f16_;
};

// What a thread knows of its columns, by bits as RowPart counts them.
struct Standing {
    uint32_t above = 0, members = 0;  // win; may win
    uint32_t need;                    // how many members of the row win: if all are equal, the first ones
};

// Loads the part; every block gets the row's floor and its best score. `k`: of more columns than k.
template <class Score>
__device__ Extremes load_row(const RowPart<Score>& row, int k, int parts, int rank, ClusterShared& shared) {
    // Groups as large as k of them allow; at last each column is one.
    int log2 = 5;
    while (log2 >= 0 && row.groups(log2) < k) --log2;
    float largest = -INFINITY, smallest = INFINITY;
    row.load([&](float score) {
        largest = fmaxf(largest, score);
        smallest = fminf(smallest, isnan(score) ? -INFINITY : score);
    });
    float floor = smallest;
    if (log2 >= 0) {
        floor = smallest == INFINITY && largest == -INFINITY ? NAN : largest;  // NaN: no column, or all inf
        for (int i = 0; i < log2; ++i) floor = fmaxf(floor, __shfl_xor_sync(~0u, floor, 1 << i));
    }
    Extremes own{isnan(floor) ? UINT32_MAX : rank_key(floor), rank_key(largest)};
    own = {__reduce_min_sync(~0u, own.floor), __reduce_max_sync(~0u, own.best)};
    const int lane = int(threadIdx.x % 32);
    if (lane == 0) shared.of_warps[threadIdx.x / 32] = own;
    __syncthreads();
    cluster_wait();  // all blocks have started
    if (threadIdx.x < 32) {
        own = shared.of_warps[lane];
        own = {__reduce_min_sync(~0u, own.floor), __reduce_max_sync(~0u, own.best)};
        if (lane < parts)
            store_in_cluster(in_block(shared_address(shared.extremes + rank), uint32_t(lane)),
                             uint2{own.floor, own.best});
    }
    cluster_sync();
    Extremes all = shared.extremes[0];
    for (int i = 1; i < parts; ++i)
        all = {min(all.floor, shared.extremes[i].floor), max(all.best, shared.extremes[i].best)};
    return all;
}

// After all have counted: the bin with the need-th best column of the row.
__device__ void find_wide_bin(ClusterShared& shared, uint32_t need, int parts) {
    cluster_sync();
    const int bin = kWideBins - 1 - int(threadIdx.x);
    uint32_t inside = 0, total;
    if (bin >= 0) {
        const uint32_t at = shared_address(shared.bins + bin);
        uint32_t each[kMostParts];
#pragma unroll
        for (int i = 0; i < kMostParts; ++i)
            each[i] = i < parts ? load_in_cluster(in_block(at, uint32_t(i))) : 0;
#pragma unroll
        for (int i = 0; i < kMostParts; ++i) inside += each[i];
    }
    const uint32_t above = block_scan<kWarps>(inside, shared.warps, total);
    if (above < need && need <= above + inside)
        shared.bin = uint32_t(bin), shared.above = above, shared.inside = inside;
    __syncthreads();
}

// Bins of equal width from the floor to the best score: the last bits of 2^23 + bin, as a float. The map is
// monotonic, however it rounds. What lies below the floor by less than half a bin may be in the first one,
// too.
template <class Score>
__device__ void divide_by_score(const RowPart<Score>& row, const Extremes& extremes, int parts,
                                Standing& mine, ClusterShared& shared) {
    constexpr float kFirst = 1 << 23;
    const float floor = score_of(extremes.floor), scale = (kWideBins - 1) / (score_of(extremes.best) - floor);
    const auto place = [&](float score) { return fmaf(score - floor, scale, kFirst); };
    const uint32_t bins = shared_address(shared.bins);
#pragma unroll 2
    for (int j = 0; j < row.units(); ++j) {
        const float4 unit = row.unit(j);
#pragma unroll
        for (const float score : {unit.x, unit.y, unit.z, unit.w}) {
            const uint32_t bin = __float_as_uint(place(score)) - __float_as_uint(kFirst);
            increment_shared_if(bin < kWideBins, bins + 4 * bin);
        }
    }
    find_wide_bin(shared, mine.need, parts);
    const float cut = kFirst + float(shared.bin);
#pragma unroll 2
    for (int j = 0; j < row.units(); ++j) {
        const float4 unit = row.unit(j);
        uint32_t one = 1u << (kUnit * j);
#pragma unroll
        for (const float score : {unit.x, unit.y, unit.z, unit.w}) {
            const float at = place(score);
            if (at > cut) mine.above |= one;
            if (at == cut) mine.members |= one;
            one <<= 1;
        }
    }
    mine.need -= shared.above;
}

// Bits [shift, shift + 9) of the members' keys; all their higher bits are equal, or of no account.
template <class Score>
__device__ void divide_by_key(const RowPart<Score>& row, int shift, int parts, Standing& mine,
                              ClusterShared& shared) {
    const auto bin_of = [&](int bit) { return rank_key(row.score(bit)) >> shift & (kWideBins - 1); };
    cluster_sync();  // all blocks have read the bins
    for (int i = int(threadIdx.x); i < kWideBins; i += kThreads) shared.bins[i] = 0;
    __syncthreads();
    for (uint32_t left = mine.members; left; left &= left - 1)
        atomicAdd(shared.bins + bin_of(__ffs(int(left)) - 1), 1u);
    find_wide_bin(shared, mine.need, parts);
    for (uint32_t left = mine.members; left; left &= left - 1) {
        const uint32_t one = left & -left, bin = bin_of(__ffs(int(left)) - 1);
        if (bin > shared.bin) mine.above |= one;
        if (bin != shared.bin) mine.members &= ~one;
    }
    mine.need -= shared.above;
}

// Compares the row's members, at most kMostMembers; those equal to the need-th best stay.
template <class Score>
__device__ void compare_members(const RowPart<Score>& row, uint32_t count, int parts, Standing& mine,
                                ClusterShared& shared) {
    for (uint32_t left = mine.members; left; left &= left - 1)
        shared.members[atomicAdd(&shared.member_count, 1u)] = rank_key(row.score(__ffs(int(left)) - 1));
    cluster_sync();
    const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
    if (warp < parts) {  // each warp fetches the members of a block
        const uint32_t of_block =
            lane < parts ? load_in_cluster(in_block(shared_address(&shared.member_count), uint32_t(lane)))
                         : 0;
        const uint32_t before = __reduce_add_sync(~0u, lane < warp ? of_block : 0),
                       own = __shfl_sync(~0u, of_block, warp);
        for (uint32_t i = uint32_t(lane); i < own; i += 32)
            shared.all_members[before + i] =
                load_in_cluster(in_block(shared_address(shared.members + i), uint32_t(warp)));
    }
    __syncthreads();
    for (int i = warp; i < int(count); i += kWarps) {  // a warp for each
        const uint32_t key = shared.all_members[i];
        uint32_t above = 0, equal = 0;
        for (int first = 0; first < int(count); first += 32) {
            const uint32_t other = first + lane < int(count) ? shared.all_members[first + lane] : 0;
            above += uint32_t(__popc(__ballot_sync(~0u, other > key)));
            equal += uint32_t(__popc(__ballot_sync(~0u, other == key && first + lane < int(count))));
        }
        if (lane == 0 && above < mine.need && mine.need <= above + equal)
            shared.cut = {key, mine.need - above};
    }
    __syncthreads();
    const Cut cut = shared.cut;
    for (uint32_t left = mine.members; left; left &= left - 1) {
        const uint32_t one = left & -left, key = rank_key(row.score(__ffs(int(left)) - 1));
        if (key > cut.key) mine.above |= one;
        if (key != cut.key) mine.members &= ~one;
    }
    mine.need = cut.equal;
}

// Finds the cut: afterwards all members are equal.
template <class Score>
__device__ void find_row_cut(const RowPart<Score>& row, const Extremes& extremes, int length, int parts,
                             Standing& mine, ClusterShared& shared) {
    if (extremes.floor == extremes.best && extremes.best > kLowestKey) {  // no column is above the floor
        for (int bit = 0; bit < kUnit * row.units(); ++bit)
            mine.members |= uint32_t(rank_key(row.score(bit)) == extremes.floor) << bit;
        mine.members &= row.here();
        return;
    }
    uint32_t inside = uint32_t(length);
    const float range = score_of(extremes.best) - score_of(max(extremes.floor, kLowestKey));
    if (range > kNarrow && range < INFINITY) {
        divide_by_score(row, extremes, parts, mine, shared);
        inside = shared.inside;
    } else {
        mine.members = row.here();
    }
    int shift = 32;
    while (inside > kMostMembers && shift > 0) {
        shift = max(shift - kWideBits, 0);
        divide_by_key(row, shift, parts, mine, shared);
        inside = shared.inside;
    }
    if (inside <= kMostMembers) compare_members(row, inside, parts, mine, shared);
}

// Writes the columns above the cut and the first of the members, in order.
template <class Score>
__device__ void put_winners(const RowPart<Score>& row, const Standing& mine, int base, const Winners& winners,
                            int parts, int rank, ClusterShared& shared) {
    uint32_t total, before = uint32_t(__popc(mine.above)) | uint32_t(__popc(mine.members)) << 16;
    before = block_scan<kWarps>(before, shared.warps, total);
    if (threadIdx.x < parts)
        store_in_cluster(in_block(shared_address(shared.counts + rank), threadIdx.x), total);
    cluster_sync();
    uint32_t above = before & 0xffff, equal = before >> 16;
    for (int i = 0; i < rank; ++i) above += shared.counts[i] & 0xffff, equal += shared.counts[i] >> 16;
    for (uint32_t left = mine.above | mine.members; left; left &= left - 1) {
        const int bit = __ffs(int(left)) - 1;
        const bool wins = mine.above >> bit & 1;
        if (wins || equal < mine.need)
            winners.put(int(above + min(equal, mine.need)), row.column(bit) - base,
                        [&] { return row.score(bit); });
        above += wins, equal += !wins;
    }
}

template <class Score>
__global__ void __launch_bounds__(kThreads, 1)
    select_by_cluster(const __grid_constant__ ClusterSelect task, const __grid_constant__ IndexCheck check) {
    extern __shared__ __align__(16) char memory[];
    if (check.is_mine()) return check_lists(check);
    follow_grid_before();
    ClusterShared& shared = *reinterpret_cast<ClusterShared*>(memory);
    const int parts = task.parts, rank = int(cluster_rank()), k = int(task.output.k);
    const int64_t token = blockIdx.x / unsigned(parts);
    const Window window = task.windows(token);
    const int length = window.end - window.begin, base = base_of(task.output, task.windows, token);
    const RowPart<Score> row(task.input, task.windows, window, token, parts, rank, shared.units);
    const Winners winners(task.output, token);
    if (length <= k) {  // all win
        if (rank > 0) return;
        for (int i = int(threadIdx.x); i < length; i += kThreads)
            winners.put(i, window.begin + i - base, [&] { return row.score_of_row(i); });
        return winners.finish(length);
    }
    cluster_arrive();  // load_row waits
    for (int i = int(threadIdx.x); i < kWideBins; i += kThreads) shared.bins[i] = 0;
    if (threadIdx.x == 0) shared.member_count = 0;
    const Extremes extremes = load_row(row, k, parts, rank, shared);
    Standing mine{.need = uint32_t(k)};
    find_row_cut(row, extremes, length, parts, mine, shared);
    put_winners(row, mine, base, winners, parts, rank, shared);
    if (rank == 0) winners.finish(k);
}

size_t shared_bytes(int units) {
    return sizeof(ClusterShared) + size_t(kThreads * odd(units)) * sizeof(float4);
}

// Units of a thread when a row of so many columns has so many parts.
int units_of(int64_t columns, int parts) {
    const int64_t places = round_up(size_t(ceil_div(columns + 7, parts)), 8);
    return int(std::bit_ceil(uint64_t(std::max<int64_t>(ceil_div(places, kThreads * kUnit), 1))));
}

// Blocks per row; 0: too many rows, or too long ones.
int cluster_parts(int64_t tokens, int64_t columns, const Env& env) {
    const DeviceFacts& facts = env.device->facts();
    const int64_t most = std::min<int64_t>(kMostParts, facts.multiprocessors / std::max<int64_t>(tokens, 1));
    if (most == 0 || columns > int64_t(kMostParts) * kThreads * kUnit * kMostUnits) return 0;
    const int64_t wanted = std::max<int64_t>(ceil_div(columns, kLeastPart), 1);
    const int parts = int(std::min(std::bit_ceil(uint64_t(wanted)), std::bit_floor(uint64_t(most))));
    const int units = units_of(columns, parts);
    return units <= kMostUnits && shared_bytes(units) <= facts.shared_bytes ? parts : 0;
}

}  // namespace

bool cluster_selects(int64_t tokens, int64_t columns, int64_t k, const Env& env) {
    return env.device->facts().capability >= 90 && k > 0 && cluster_parts(tokens, columns, env) > 0;
}

void run_select_by_cluster(const SelectInput& input, const SelectOutput& output, const CallLists& lists,
                           const Env& env) {
    const int64_t columns = input.end - input.begin;
    const int parts = cluster_parts(input.tokens, columns, env);
    const ClusterSelect task{
        .input = input,
        .output = output,
        .windows = Windows(input.starts, input.ends, input.columns, input.begin, input.end),
        .parts = parts};
    const int64_t blocks = input.tokens * parts;
    const auto check = IndexCheck::of(lists, blocks, kThreads, env, kMostParts);
    launch_as({.early = true, .cluster = parts},
              input.dtype == SMLA_F32 ? select_by_cluster<float> : select_by_cluster<uint16_t>,
              blocks + int64_t(round_up(check.blocks, size_t(parts))), kThreads,
              shared_bytes(units_of(columns, parts)), env, task, check);
}

}  // namespace smla::cuda
