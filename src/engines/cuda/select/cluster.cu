// select for few rows: eight blocks share a row and find its winners through each other's shared memory.
//
// Steps      1. Each block samples the whole row, as sampled.cu does; all get the same floor. 2. Each
//            collects the columns of its eighth that reach the floor. 3. Each copies the keys of all blocks'
//            candidates and finds the same cut by histograms. 4. Bitmaps of a block's winners, which are in
//            column order, and the winners of the blocks before it give their places. With too few or too
//            many candidates the first block selects exactly (collect.cuh).
// Tile       a cluster of 8 blocks of 512 threads per row.
// Shared     struct ClusterShared and two bits per column of an eighth: 87 KB for 131,072 columns.
// Barriers   the cluster meets once, between steps 2 and 3; a block ends when all have copied.
// Registers  90 per thread: a thread has 16 elements in flight.
// Why        between blocks that meet in global memory (sampled.cu) a row waits for four atomics and two
//            fences, and the last block sorts alone.
// Results    docs/kernels/cuda_select.md.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/cluster.cuh"
#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/common/ptx/grid.cuh"
#include "engines/cuda/select/collect.cuh"

namespace smla::cuda {

namespace {

constexpr int kBlocks = 8;  // of a cluster: as many as every GPU with clusters offers
// With more of either, blocks that meet in global memory are faster (sampled.cu).
constexpr int64_t kMostRows = 2, kMostColumns = 1 << 18;

struct ClusterSelect {
    SelectInput input;
    SelectOutput output;
    Windows windows;
    int words;  // of each bitmap
};

struct ClusterShared : CandidateShared {
    uint32_t keys[kRoom];  // of all blocks' candidates, block after block
    uint32_t counts[kBlocks], starts[kBlocks + 1];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Bit i of word w: element 32 w + i of the block's part is above the cut, or equal to it.
__device__ uint32_t* above_bits(ClusterShared& shared) { return reinterpret_cast<uint32_t*>(&shared + 1); }
__device__ uint32_t* equal_bits(ClusterShared& shared, int words) { return above_bits(shared) + words; }

// How many candidates each block has; false if all together are too few or too many.
__device__ bool count_candidates(ClusterShared& shared, uint32_t k) {
    if (threadIdx.x < kBlocks)
        shared.counts[threadIdx.x] = load_in_cluster(in_block(shared_address(&shared.count), threadIdx.x));
    __syncthreads();
    uint32_t sum = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
        if (threadIdx.x == 0) shared.starts[block] = sum;
        sum += min(shared.counts[block], uint32_t(kRoom) + 1);  // no overflow
    }
    if (threadIdx.x == 0) shared.starts[kBlocks] = sum;
    __syncthreads();
    return sum >= k && sum <= kRoom;
}

// Copies the keys of all candidates here, with their least and their best. Two warps per block of the
// cluster.
__device__ void copy_keys(ClusterShared& shared) {
    constexpr int kThreads = kSelectThreads / kBlocks, kLoads = 4;
    const uint32_t block = threadIdx.x / kThreads, count = shared.counts[block];
    const uint32_t from = in_block(shared_address(shared.found.keys), block);
    uint32_t* const to = shared.keys + shared.starts[block];
    uint32_t least = UINT32_MAX, best = 0;
#pragma unroll 1
    for (uint32_t first = threadIdx.x % kThreads; first < count; first += kLoads * kThreads) {
        uint32_t keys[kLoads];
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
            if (first + i * kThreads < count) keys[i] = load_in_cluster(from + 4 * (first + i * kThreads));
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
            if (first + i * kThreads < count) {
                to[first + i * kThreads] = keys[i];
                least = min(least, keys[i]), best = max(best, keys[i]);
            }
    }
    least = __reduce_min_sync(~0u, least), best = __reduce_max_sync(~0u, best);
    if (threadIdx.x % 32 == 0) atomicMin(&shared.least, least), atomicMax(&shared.best, best);
}

// Marks this block's candidates above the cut and equal to it. Returns how many the blocks before it have:
// above in the low half, equal in the high one.
__device__ uint32_t mark(ClusterShared& shared, const Cut& cut, int begin, int words) {
    const int count = int(shared.counts[cluster_rank()]), before = int(shared.starts[cluster_rank()]);
#pragma unroll 1
    for (int i = int(threadIdx.x); i < count; i += kSelectThreads) {
        const uint32_t key = shared.found.keys[i], at = uint32_t(shared.found.numbers[i] - begin);
        if (key > cut.key) atomicOr(above_bits(shared) + at / 32, 1u << at % 32);
        else if (key == cut.key && cut.equal) atomicOr(equal_bits(shared, words) + at / 32, 1u << at % 32);
    }
    uint32_t mine = 0, sum;
#pragma unroll 1
    for (int i = int(threadIdx.x); i < before; i += kSelectThreads)
        mine += shared.keys[i] > cut.key ? 1u : shared.keys[i] == cut.key && cut.equal ? 0x10000u : 0u;
    block_scan(mine, shared.cut.warps, sum);
    return sum;
}

// Writes this block's winners. `before`: of the blocks before it, as mark() returns it.
template <class List>
__device__ void put_marked(const List& list, const Cut& cut, uint32_t before, int begin, int words, int base,
                           const Winners& winners, ClusterShared& shared) {
    for (int first = 0; first < words; first += kSelectThreads) {
        const int word = first + int(threadIdx.x);
        const uint32_t above = word < words ? above_bits(shared)[word] : 0;
        const uint32_t equal = word < words ? equal_bits(shared, words)[word] : 0;
        uint32_t total;
        uint32_t at =
            before + block_scan(uint32_t(__popc(above) | __popc(equal) << 16), shared.cut.warps, total);
#pragma unroll 1
        for (uint32_t left = above | equal; left; left &= left - 1) {
            const int bit = __ffs(int(left)) - 1;
            const bool wins = above >> bit & 1;
            if (wins || at >> 16 < cut.equal) {
                const int number = begin + 32 * word + bit;
                winners.put(int((at & 0xffff) + min(at >> 16, cut.equal)), list.column(number) - base,
                            [&] { return list.score(number); });
            }
            at += wins ? 1 : 0x10000;
        }
        before += total;
    }
}

#endif

template <class Score>
__global__ void __launch_bounds__(kSelectThreads, 1)
    select_in_cluster(const __grid_constant__ ClusterSelect task) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    follow_grid_before();
    extern __shared__ __align__(16) char memory[];
    ClusterShared& shared = *reinterpret_cast<ClusterShared*>(memory);
    const int64_t token = blockIdx.x / kBlocks;
    const int part = int(cluster_rank()), k = int(task.output.k);
    constexpr int kAhead = 16;  // elements in flight per thread
    const ScoreList<Score, kAhead> list(task.input, task.windows, token, k);
    const Winners winners(task.output, token);
    const int base = base_of(task.output, task.windows, token);
    if (list.count() <= k) {  // all win
        if (part > 0) return;
        put_in_order(list, Cut{0, UINT32_MAX}, base, winners, shared.cut);
        winners.finish(list.count());
        return;
    }
    if (threadIdx.x == 0) shared.count = shared.best = 0, shared.least = UINT32_MAX;
    for (int i = int(threadIdx.x); i < 2 * task.words; i += kSelectThreads) above_bits(shared)[i] = 0;
    __syncthreads();
    const uint32_t floor = list.count() <= kRoom ? 0 : sampled_floor(list, k, shared);
    collect(list, floor, part, kBlocks, shared);
    __syncthreads();
    if (threadIdx.x == 0) fence_cluster();  // for the whole block
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
    const bool fits = count_candidates(shared, uint32_t(k));
    if (fits) copy_keys(shared);
    __syncthreads();
    cluster_arrive_relaxed();  // this block's copies are made
    if (fits) {
        const int count = int(shared.starts[kBlocks]), begin = list.part_begin(part, kBlocks);
        const Cut cut =
            find_cut<PlainCounter>(shared.cut, uint32_t(k), shared.least, shared.best, 3, [&](const auto& f) {
#pragma unroll 1
                for (int i = int(threadIdx.x); i < count; i += kSelectThreads) f(shared.keys[i]);
            });
        const uint32_t before = mark(shared, cut, begin, task.words);
        put_marked(list, cut, before, begin, task.words, base, winners, shared);
    } else if (part == 0) {
        shared.count = shared.starts[kBlocks];
        __syncthreads();
        select_otherwise(list, floor, k, base, winners, shared);
    }
    if (part == 0) winners.finish(k);
    __syncwarp();
    cluster_wait();
#endif
}

// Words of a bitmap of a part: its vectors, and what lies before the first and after the last of a row.
int words_of(int64_t columns) { return int(ceil_div(ceil_div(columns, kBlocks) + 32, 32)); }

}  // namespace

std::string refuse_cluster(int64_t tokens, int64_t columns, int64_t k, const Env& env) {
    if (env.device->facts().capability < 90)
        return text("needs clusters of sm_90, this is sm_", env.device->facts().capability);
    if (tokens > kMostRows) return text(tokens, " rows, made for up to ", kMostRows);
    if (columns > kMostColumns) return text(columns, " columns, made for up to ", kMostColumns);
    return refuse_sampled(columns, k);
}

void run_select_cluster(const SelectInput& input, const SelectOutput& output, const Env& env) {
    const ClusterSelect task{
        .input = input,
        .output = output,
        .windows = Windows(input.starts, input.ends, input.columns, input.begin, input.end),
        .words = words_of(input.end - input.begin)};
    const auto kernel = input.dtype == SMLA_F32 ? select_in_cluster<float> : select_in_cluster<uint16_t>;
    const size_t shared = sizeof(ClusterShared) + size_t(2 * task.words) * sizeof(uint32_t);
    allow_shared(reinterpret_cast<const void*>(kernel), shared, env);
    cudaLaunchAttribute how[2]{};
    how[0].id = cudaLaunchAttributeClusterDimension;
    how[0].val.clusterDim = {kBlocks, 1, 1};
    how[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    how[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.dynamicSmemBytes = shared;
    config.attrs = how;
    config.numAttrs = 2;
    launch_with(config, kernel, input.tokens * kBlocks, kSelectThreads, env, task);
}

}  // namespace smla::cuda
