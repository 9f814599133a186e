// select of few long rows, each by a cluster of blocks that keep it in shared memory.
//
// Math       1. Each block loads its part of the row and finds the largest score of each of k groups or more.
//            At least k columns are not below the least of these scores, the floor. 2. All blocks add up
//            histograms of bins of equal width from the floor to the largest score. 3. Columns above the bin
//            with the k-th score win. Its columns, the members, some dozens, are compared one by one. If
//            there are more, the least and the largest key show which bits differ (none if all are equal);
//            bins of 9 such bits divide the members until few are left. 4. The counts of preceding blocks
//            and threads are a winner's position.
// Tile       a cluster of 1 to 16 blocks per row, of 512 threads or, for long rows, 1024; a thread has up
//            to 32 neighboring columns.
// Shared     struct ClusterShared | the part, units of 4 columns [threads][1, 3, 5 or 9]: an odd number, so
//            that lanes which read one unit each have no bank conflicts.
// Barriers   four mbarriers, one per Exchange: each block stores its words to all blocks and waits for their
//            bytes. A barrier of the cluster would take twice as long, because it fences all memory.
//            cluster_arrive precedes the first store to another block, whose mbarriers must be ready.
// Registers  64 of 1024 threads: masks of 32 columns instead of the columns.
// Why        one row is bound by latency, so there is no sample and no candidate in global memory. A row of
//            131,072 columns has four exchanges. The sampled kernel instead cuts a sample, waits for the
//            last block, and this block works alone. The work of every thread costs issue slots, so 512
//            threads are faster than 1024.
// Results    docs/kernels/cuda_select.md.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/barrier.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/select/row_part.cuh"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

namespace smla::cuda {

namespace {

// Blocks of a cluster: the maximum of every device; for long rows, of 7 concurrent clusters on an H200.
constexpr int kParts = kPortableCluster, kWideParts = 16;
constexpr int kLeastPart = 2048;      // columns that make another block worthwhile
constexpr int64_t kShortRow = 8192;   // one block is as fast up to here (registers.cu), two up to twice
constexpr int64_t kLongRow = 65'536;  // 1 x 32,768 takes 10.3 us with 16 blocks, 9.9 with 8
constexpr int kWideBits = 9, kWideBins = 1 << kWideBits;
constexpr uint32_t kMostMembers = 512;                 // members that are compared one by one
[[maybe_unused]] constexpr uint32_t kFewMembers = 64;  // members compared without a search for differing bits

// Data that blocks send to each other, each with an mbarrier.
enum Exchange { kExtremes, kBinCounts, kMembers, kCounts, kExchanges };

// Counts in 16 bits each, because a block has at most 32,768 columns.
template <int Count>
struct PairedBins {
    uint32_t pairs[Count / 2];

    __device__ void clear(int threads) {
        for (int i = int(threadIdx.x); i < Count / 2; i += threads) pairs[i] = 0;
    }
    __device__ void count(uint32_t bin) { atomicAdd(pairs + bin / 2, bin % 2 ? 1u << 16 : 1u); }
    __device__ uint32_t operator[](uint32_t bin) const { return pairs[bin / 2] >> (bin % 2 * 16) & 0xffff; }
};
using WideBins = PairedBins<kWideBins>;

struct ClusterShared {
    alignas(16) uint64_t barriers[kExchanges];
    uint2 extremes[kWideParts];          // by block: keys of the floor and of the best score
    uint32_t counts[kWideParts];         // winners | columns equal to the cut << 16
    WideBins bins, bins_of[kWideParts];  // bins of this block, and of each block
    uint32_t members[kMostMembers];      // keys of all blocks, then zeros
    uint2 of_warps[32];
    uint32_t warps[32], member_count;
    uint32_t bin, above, inside;  // the bin with the need-th score
    Cut cut;
    float4 units[];
};

// Sends words to the place in block `to` that corresponds to `at` in this block.
template <class Words>
__device__ void send(Exchange what, int to, const void* at, const Words& words, const ClusterShared& shared) {
    store_async(in_block(shared_address(at), uint32_t(to)),
                in_block(shared_address(shared.barriers + what), uint32_t(to)), words);
}
// One thread calls this once per phase of an exchange. [[maybe_unused]] serves targets before sm_90.
[[maybe_unused]] __device__ inline void expect(Exchange what, uint32_t bytes, const ClusterShared& shared) {
    mbarrier_arrive_expect(shared_address(shared.barriers + what), int(bytes));
}
[[maybe_unused]] __device__ inline void receive(Exchange what, int phase, const ClusterShared& shared) {
    mbarrier_wait(shared_address(shared.barriers + what), uint32_t(phase & 1));
}

// A thread's columns as bits, numbered as in RowPart.
struct Standing {
    uint32_t above = 0, members = 0;  // win; may win
    uint32_t need;                    // how many members win; if all are equal, the first ones win
    int rounds = 0;                   // exchanges of bins so far
};

[[maybe_unused]] __device__ inline uint2 extremes_of(uint2 own) {  // extremes of a warp's lanes
    return {__reduce_min_sync(~0u, own.x), __reduce_max_sync(~0u, own.y)};
}

// Returns the least of all x and the largest of all y in the cluster.
template <class Row>
__device__ uint2 extremes_of_row(uint2 own, int phase, int parts, int rank, ClusterShared& shared) {
    const int lane = int(threadIdx.x % 32);
    const uint2 of_warp = extremes_of(own);
    if (lane == 0) shared.of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    if (threadIdx.x < 32) {
        const uint2 of_block = extremes_of(shared.of_warps[lane % Row::kWarps]);
        if (lane < parts) send(kExtremes, lane, shared.extremes + rank, of_block, shared);
    }
    receive(kExtremes, phase, shared);
    return extremes_of(shared.extremes[lane & (parts - 1)]);
}

// Loads the part of a row of more than k columns. Returns the keys of the row's floor and best score.
template <class Row>
__device__ uint2 load_row(const Row& row, int k, int parts, int rank, ClusterShared& shared) {
    // Groups are as large as possible with k of them, in the end single columns.
    int log2 = 5;
    while (log2 >= 0 && row.groups(log2) < k) --log2;
    float largest = -INFINITY, smallest = INFINITY;
    row.load([&](float score) {
        largest = fmaxf(largest, score);
        smallest = fminf(smallest, isnan(score) ? -INFINITY : score);
    });
    float floor = smallest;
    if (log2 >= 0) {
        const bool none = smallest == INFINITY && largest == -INFINITY;  // the thread has no column
        floor = none ? NAN : largest;
        for (int i = 0; i < log2; ++i) floor = fmaxf(floor, __shfl_xor_sync(~0u, floor, 1 << i));
    }
    cluster_wait();  // all blocks have made their mbarriers
    return extremes_of_row<Row>({isnan(floor) ? UINT32_MAX : rank_key(floor), rank_key(largest)}, 0, parts,
                                rank, shared);
}

// Finds the bin with the need-th best column of the row, after all threads have counted.
template <class Row>
__device__ void find_wide_bin(ClusterShared& shared, Standing& mine, int parts, int rank) {
    __syncthreads();
    constexpr int kSends = sizeof(WideBins) / sizeof(uint4);
    for (int i = int(threadIdx.x); i < kSends * parts; i += Row::kThreads)
        send(kBinCounts, i / kSends, reinterpret_cast<uint4*>(shared.bins_of + rank) + i % kSends,
             reinterpret_cast<const uint4*>(&shared.bins)[i % kSends], shared);
    receive(kBinCounts, mine.rounds++, shared);
    const int bin = kWideBins - 1 - int(threadIdx.x);
    uint32_t inside = 0, total;
    if (bin >= 0)
        for (int i = 0; i < parts; ++i) inside += shared.bins_of[i][uint32_t(bin)];
    const uint32_t above = block_scan<Row::kWarps>(inside, shared.warps, total);
    if (above < mine.need && mine.need <= above + inside)
        shared.bin = uint32_t(bin), shared.above = above, shared.inside = inside;
    __syncthreads();
    mine.need -= shared.above;
}

// Divides by bins of equal width from the floor to the best score: the last bits of 2^23 + bin, as a float.
// The map is monotonic under any rounding.
template <class Row>
__device__ void divide_by_score(const Row& row, float floor, float range, int parts, int rank, Standing& mine,
                                ClusterShared& shared) {
    constexpr float kFirst = 1 << 23;
    const float scale = __fdividef(kWideBins - 1, range);
    const auto place = [&](float score) { return fmaf(score - floor, scale, kFirst); };
    uint32_t passed = 0;
#pragma unroll 2
    for (int j = 0; j < row.units(); ++j) {
        const float4 unit = row.unit(j);
        passed |= (uint32_t(unit.x >= floor) | uint32_t(unit.y >= floor) << 1 |
                   uint32_t(unit.z >= floor) << 2 | uint32_t(unit.w >= floor) << 3)
                  << (kUnit * j);
    }
    row.each(passed, [&](uint32_t, float score) {  // few columns of a thread pass: no loop over all
        shared.bins.count(__float_as_uint(place(score)) - __float_as_uint(kFirst));
    });
    find_wide_bin<Row>(shared, mine, parts, rank);
    const float cut = kFirst + float(shared.bin);
    row.each(passed, [&](uint32_t one, float score) {
        const float at = place(score);
        if (at > cut) mine.above |= one;
        if (at == cut) mine.members |= one;
    });
}

// Divides by bits [shift, shift + 9) of the members' keys; all their higher bits are equal or irrelevant.
template <class Row>
__device__ void divide_by_key(const Row& row, int shift, int parts, int rank, Standing& mine,
                              ClusterShared& shared) {
    const auto bin_of = [&](float score) { return rank_key(score) >> shift & (kWideBins - 1); };
    cluster_sync();  // all blocks have read the previous bins
    if (mine.rounds > 0 && threadIdx.x == 0) expect(kBinCounts, uint32_t(parts * sizeof shared.bins), shared);
    shared.bins.clear(Row::kThreads);
    __syncthreads();
    row.each(mine.members, [&](uint32_t, float score) { shared.bins.count(bin_of(score)); });
    find_wide_bin<Row>(shared, mine, parts, rank);
    row.each(mine.members, [&](uint32_t one, float score) {
        const uint32_t bin = bin_of(score);
        if (bin > shared.bin) mine.above |= one;
        if (bin != shared.bin) mine.members &= ~one;
    });
}

// Returns how many low bits of the members' keys may differ; 0 if all members are equal.
template <class Row>
__device__ int differing_bits(const Row& row, int parts, int rank, const Standing& mine,
                              ClusterShared& shared) {
    if (threadIdx.x == 0) expect(kExtremes, uint32_t(parts * sizeof(uint2)), shared);
    uint2 own{UINT32_MAX, 0};
    row.each(mine.members, [&](uint32_t, float score) {
        const uint32_t key = rank_key(score);
        own.x = min(own.x, key), own.y = max(own.y, key);
    });
    const auto [least, best] = extremes_of_row<Row>(own, 1, parts, rank, shared);
    return 32 - __clz(int(least ^ best));
}

// Compares the row's members, at most kMostMembers; the members equal to the need-th best stay.
template <class Row>
__device__ void compare_members(const Row& row, int parts, int rank, Standing& mine, ClusterShared& shared) {
    const int count = int(shared.inside), lane = int(threadIdx.x % 32);
    if (threadIdx.x == 0) expect(kMembers, uint32_t(count) * 4, shared);
    const uint32_t before =
        __reduce_add_sync(~0u, lane < rank ? shared.bins_of[lane][shared.bin] : 0);  // counts of other blocks
    row.each(mine.members, [&](uint32_t, float score) {
        const uint32_t at = before + atomicAdd(&shared.member_count, 1u);
        for (int i = 0; i < parts; ++i) send(kMembers, i, shared.members + at, rank_key(score), shared);
    });
    receive(kMembers, 0, shared);
    if (int(threadIdx.x) < count) {
        const uint32_t key = shared.members[threadIdx.x];
        uint32_t above = 0, equal = 0;
#pragma unroll 2
        for (int i = 0; i < count; i += 4) {
            const uint4 others = *reinterpret_cast<const uint4*>(shared.members + i);
#pragma unroll
            for (const uint32_t other : {others.x, others.y, others.z, others.w})
                above += other > key, equal += other == key;
        }
        if (above < mine.need && mine.need <= above + equal) shared.cut = {key, mine.need - above};
    }
    __syncthreads();
    const Cut cut = shared.cut;
    row.each(mine.members, [&](uint32_t one, float score) {
        const uint32_t key = rank_key(score);
        if (key > cut.key) mine.above |= one;
        if (key != cut.key) mine.members &= ~one;
    });
    mine.need = cut.equal;
}

// Finds the cut, after which all members are equal.
template <class Row>
__device__ void find_row_cut(const Row& row, const uint2& extremes, int parts, int rank, Standing& mine,
                             ClusterShared& shared) {
    const auto [floor, best] = extremes;
    if (floor == best && best > kLowestKey) {  // no column is above the floor
        for (int bit = 0; bit < kUnit * row.units(); ++bit)
            mine.members |= uint32_t(rank_key(row.score(bit)) == floor) << bit;
        mine.members &= row.here();
        return;
    }
    const float lowest = score_of(max(floor, kLowestKey)), range = score_of(best) - lowest;
    int shift = 32;
    if (range > kNarrow && range < INFINITY) {
        divide_by_score(row, lowest, range, parts, rank, mine, shared);
    } else {
        mine.members = row.here();
        divide_by_key(row, shift -= kWideBits, parts, rank, mine, shared);
    }
    if (shared.inside > kFewMembers) shift = differing_bits(row, parts, rank, mine, shared);
    while (shared.inside > kMostMembers && shift > 0) {
        shift = max(shift - kWideBits, 0);
        divide_by_key(row, shift, parts, rank, mine, shared);
    }
    if (shared.inside <= kMostMembers && shift > 0) compare_members(row, parts, rank, mine, shared);
}

// Writes the columns above the cut and the first members, in order.
template <class Row, bool Rows>
__device__ void put_winners(const Row& row, const Standing& mine, const Winners<Rows>& winners, int parts,
                            int rank, ClusterShared& shared) {
    uint32_t total, before = uint32_t(__popc(mine.above)) | uint32_t(__popc(mine.members)) << 16;
    before = block_scan<Row::kWarps>(before, shared.warps, total);
    if (threadIdx.x < parts) send(kCounts, int(threadIdx.x), shared.counts + rank, total, shared);
    receive(kCounts, 0, shared);
    const int lane = int(threadIdx.x % 32);
    const uint32_t of_block = lane < rank ? shared.counts[lane] : 0;
    uint32_t above = (before & 0xffff) + __reduce_add_sync(~0u, of_block & 0xffff),
             equal = (before >> 16) + __reduce_add_sync(~0u, of_block >> 16);
    for (uint32_t left = mine.above | mine.members; left; left &= left - 1) {
        const int bit = __ffs(int(left)) - 1;
        const bool wins = mine.above >> bit & 1;
        if (wins || equal < mine.need)
            winners.put(int(above + min(equal, mine.need)), row.column(bit), [&] { return row.score(bit); });
        above += wins, equal += !wins;
    }
}

template <class Score, int Threads, bool Rows>
__global__ void __launch_bounds__(Threads, 1)
    select_by_cluster(const GridOrder order, const __grid_constant__ ClusterSelect task) {
#if __CUDA_ARCH__ >= 900  // no launch on earlier architectures
    extern __shared__ __align__(16) char memory[];
    if (!order.start()) return;
    ClusterShared& shared = *reinterpret_cast<ClusterShared*>(memory);
    const int parts = task.parts, rank = int(cluster_rank()), k = int(task.output.k);
    const int64_t token = blockIdx.x >> (__ffs(parts) - 1);
    const Window window = task.windows(token);
    const int length = window.end - window.begin;
    const RowPart<Score, Threads> row(task, window, token, rank, shared.units);
    const Winners<Rows> winners(task.output, token, TokenOutput(task.output, task.windows, token, Rows));
    if (length <= k) {  // all win
        if (rank > 0) return;
        for (int i = int(threadIdx.x); i < length; i += Threads)
            winners.put(i, window.begin + i, [&] { return row.score_of_row(i); });
        return winners.finish(length);
    }
    if (threadIdx.x == 0) {
        for (uint64_t& barrier : shared.barriers) mbarrier_init(shared_address(&barrier), 1);
        fence_mbarrier_init();
        expect(kExtremes, uint32_t(parts * sizeof(uint2)), shared);
        expect(kBinCounts, uint32_t(parts * sizeof shared.bins), shared);
        expect(kCounts, uint32_t(parts) * 4, shared);
        shared.member_count = 0;
    }
    cluster_arrive_relaxed();  // load_row waits
    shared.bins.clear(Threads);
    for (int i = int(threadIdx.x); i < int(kMostMembers); i += Threads) shared.members[i] = 0;
    const uint2 extremes = load_row(row, k, parts, rank, shared);
    Standing mine{.need = uint32_t(k)};
    find_row_cut(row, extremes, parts, rank, mine, shared);
    put_winners(row, mine, winners, parts, rank, shared);
    if (rank == 0) winners.finish(k);
#endif
}

template <int Threads>
auto kernel_of(smla_dtype dtype, const SelectOutput& output) {
    return with_rows(output, [&](auto rows) {
        return dtype == SMLA_F32 ? select_by_cluster<float, Threads, rows.value>
                                 : select_by_cluster<uint16_t, Threads, rows.value>;
    });
}

// Returns how many clusters of `parts` blocks run concurrently, each block on its own multiprocessor.
int clusters_at_once(int parts, const Env& env) {
    static std::mutex mutex;
    static std::map<std::pair<int32_t, int>, int> known;
    const std::lock_guard lock(mutex);
    const auto [place, is_new] = known.try_emplace({env.device->index(), parts}, 0);
    if (!is_new) return place->second;
    const Device::Scope scope(*env.device);
    const auto kernel = kernel_of<kMostThreads>(SMLA_F32, {});
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {unsigned(parts), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = parts, config.blockDim = kMostThreads;
    config.attrs = &cluster, config.numAttrs = 1;
    const bool allowed =
        parts <= kPortableCluster ||
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess;
    if (!allowed || cudaOccupancyMaxActiveClusters(&place->second, kernel, &config) != cudaSuccess)
        cudaGetLastError();  // the device's clusters are smaller
    return place->second;
}

// Division of a row into as many parts as are worthwhile, if the clusters of all rows run concurrently.
// `pays` is set if all clusters do and no other kernel is as fast. With 0 parts, the rows are too long.
struct Cutting {
    int parts = 0, threads = 0, units = 0;
    bool pays = false;

    Cutting(int64_t tokens, int64_t columns, const Env& env) {
        for (int blocks = columns >= kLongRow ? kWideParts : kParts; blocks >= 1; blocks /= 2) {
            const bool wanted = blocks <= 2 || columns > blocks / 2 * kLeastPart;
            if (!wanted || tokens > clusters_at_once(blocks, env) || !cut(columns, blocks, env)) continue;
            pays = columns > (blocks > 2 ? kShortRow : 2 * kShortRow);
            return;
        }
        for (int blocks = 1; blocks <= kParts; blocks *= 2)
            if (cut(columns, blocks, env)) return;
    }
    // Returns whether this many blocks have room for the row.
    bool cut(int64_t columns, int blocks, const Env& env) {
        const int64_t places = int64_t(round_up(size_t(ceil_div(columns, blocks)), 8));
        for (threads = kMostThreads / 2; threads <= kMostThreads; threads *= 2) {
            units = int(std::bit_ceil(uint64_t(ceil_div(places, threads * kUnit))));
            if (units > kMostUnits || shared_bytes() > env.device->facts().shared_bytes) continue;
            parts = blocks;
            return true;
        }
        return false;
    }
    size_t shared_bytes() const {
        return sizeof(ClusterShared) + size_t(threads * odd(units)) * sizeof(float4);
    }
};

}  // namespace

std::string refuse_cluster(int64_t tokens, int64_t columns, int64_t k, const Env& env) {
    if (env.device->facts().capability < 90) return "clusters require sm_90 or later";
    if (k == 0 || Cutting(tokens, columns, env).parts == 0)
        return text("a cluster cannot hold rows of ", columns, " columns for k ", k);
    return {};
}

bool cluster_pays(int64_t tokens, int64_t columns, const Env& env) {
    return env.device->facts().capability >= 90 && Cutting(tokens, columns, env).pays;
}

void run_select_by_cluster(const SelectInput& input, const SelectOutput& output, void*, const Env& env) {
    const Cutting cut(input.tokens, input.end - input.begin, env);
    const ClusterSelect task{
        .input = input,
        .output = output,
        .windows = Windows(input.starts, input.ends, input.columns, input.begin, input.end),
        .parts = cut.parts,
        .units = cut.units};
    const auto kernel = cut.threads < kMostThreads ? kernel_of<kMostThreads / 2>(input.dtype, output)
                                                   : kernel_of<kMostThreads>(input.dtype, output);
    launch_ordered(cut.parts, kernel, input.tokens * cut.parts, cut.threads, cut.shared_bytes(), env, task);
}

}  // namespace smla::cuda
