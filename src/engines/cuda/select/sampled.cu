// select that reads each row once: a sample of the row gives a floor, candidates above the floor are stored
// in
// shared memory, and the winners are selected among them.
//
// Math       1. A sample of one column in 32, in 32-byte pieces, estimates the floor that about k + 8 sqrt(k
//            n) columns reach (n: columns per sample). 2. One pass of 16-byte loads collects those columns.
//            3. Histograms of the candidates give the cut. 4. A sort into 2048 bins orders the winners by
//            column; candidates of split rows are collected in order.
//            With fewer than k candidates, or more than fit, the row is selected exactly by histograms
//            (list.cuh): the sample affects speed, never the result.
// Tile       A block of 512 threads per row; with few rows several blocks per row, each for a part of the
//            columns, with the same floor. Their candidates are gathered in scratch; the last block to arrive
//            (counters in the workspace's header, which it resets to zero) finishes the row.
// Shared     struct SelectShared: 6144 candidates x 8 B | bins | k winners: 66 KB for k 2048.
// Registers  Three blocks per multiprocessor on sm_90 and sm_100; two elsewhere, and for few rows.
// Why        A row is read from memory once; every other step processes 3 to 5 thousand keys.
// Results    docs/kernels/cuda_select.md.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/common/ptx/cp_async.cuh"
#include "engines/cuda/common/ptx/shared.cuh"
#include "engines/cuda/select/list.cuh"

#include <algorithm>
#include <bit>
#include <cmath>

namespace smla::cuda {

namespace {

constexpr int kRoom = 6144, kMostWinners = 4096;
constexpr int kManyRows = 8, kFewRows = 16;   // elements in flight per thread
constexpr int kExpectedMost = kRoom * 3 / 4;  // limit for the expected number of candidates
constexpr int kSparse = 8;  // columns per winner from which few lanes of a warp have a candidate
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
constexpr int kBlocksPerSm = 3;  // limited by shared memory
#else
constexpr int kBlocksPerSm = 2;
#endif
// A call with at most kSplitRows rows may split them; two counters per row.
constexpr int64_t kSplitRows = 256, kLeastPart = 4096;
constexpr int kMostParts = kSelectThreads;
constexpr int64_t kMostSplitColumns = int64_t(1) << 30;  // part and place have 32 bits together
static_assert(kSplitRows * 2 * sizeof(uint32_t) <= kWorkspaceHeader / 2);

struct Candidates {  // candidates of a row
    uint32_t keys[kRoom];
    int numbers[kRoom];
};

struct SplitRow;
struct SampledSelect {
    SelectInput input;
    SelectOutput output;
    Windows windows;
    int parts, place_bits;  // see RowParts
    SplitRow* scratch;      // [tokens], if parts > 1
    uint32_t* counters;     // [tokens][2]: number of candidates, number of parts that have arrived
};

struct SelectShared {
    Candidates found;
    CutScratch cut;
    uint32_t count, least, best;
    bool last;
    int places[];  // [k]
};

__host__ __device__ constexpr int samples_of(int64_t columns) {
    return int(columns < 32 * 256 ? 256 : columns > 32 * kRoom ? kRoom : columns / 32);
}

// Returns a floor that a few more than k columns should reach, from the sample in found.keys. 0: no floor.
template <class List>
__device__ uint32_t sampled_floor(const List& list, int k, SelectShared& shared) {
    const int samples = list.sample(shared.found.keys, samples_of(list.count()));
    __syncthreads();
    const float share = float(samples) / float(list.count()), rank = float(k) * share;
    const float target = fminf(rank + 8 * sqrtf(rank) + 4, float(kExpectedMost) * share);
    if (!(target >= 1 && target < float(samples))) return 0;
    const Cut cut =
        find_cut<PlainCounter>(shared.cut, uint32_t(target), 0, UINT32_MAX, 2, [&](const auto& f) {
            for (int i = int(threadIdx.x); i < samples; i += kSelectThreads) f(shared.found.keys[i]);
        });
    __syncthreads();  // the candidates overwrite the sample
    return cut.equal ? cut.key : cut.key + 1;
}

// Returns the floor if k winners of earlier columns are known: the worst of them.
template <class List>
__device__ uint32_t kept_floor(const List& list, SelectShared& shared) {
    uint32_t least = UINT32_MAX;
    for (int i = int(threadIdx.x); i < list.kept(); i += kSelectThreads) least = min(least, list.key(i));
    least = __reduce_min_sync(~0u, least);
    if (threadIdx.x % 32 == 0) atomicMin(&shared.least, least);
    __syncthreads();
    return shared.least;
}

// Stores a candidate; `keys` is the address of Candidates::keys.
__device__ inline void store_candidate(bool condition, uint32_t keys, uint32_t place, float score,
                                       int number) {
    store_shared_if(condition, keys + 4 * place, rank_key(score));
    store_shared_if(condition, keys + 4 * (kRoom + place), uint32_t(number));
}

// Stores the elements `passed` of a group as candidates from `at` on, while there is room. A branch for each
// element would be taken whenever one lane of the warp has the element.
template <bool Dense, class Group>
__device__ void append(const Group& group, uint32_t passed, uint32_t at, uint32_t keys) {
    if constexpr (Dense) {
#pragma unroll
        for (int e = 0; e < group.size; ++e) {
            const uint32_t one = passed >> e & 1;
            store_candidate(one && at < kRoom, keys, at, group.scores[e], group.number(uint32_t(e)));
            at += one;
        }
    } else {
        while (passed) {  // iterates as often as the lane with the most elements needs
            const uint32_t e = 31 - uint32_t(__clz(int(passed)));
            passed ^= 1u << e;
            store_candidate(at < kRoom, keys, at, pick(group.scores, e), group.number(e));
            ++at;
        }
    }
}

// Appends the columns that reach the floor. Counts all such columns and stores as many as fit. The
// instructions of this loop bound calls of many rows. Dense: half of the columns pass, otherwise few percent.
template <bool Dense, class List>
__device__ void collect(const List& list, uint32_t floor, SelectShared& shared) {
    const int lane = int(threadIdx.x % 32);
    const bool all = floor == 0;
    const float least = score_of(max(floor, kLowestKey));
    const uint32_t keys = shared_address(shared.found.keys), count = shared_address(&shared.count);
    list.groups([&](const auto& group) {
        uint32_t passed = 0;
#pragma unroll
        for (int e = 0; e < group.size; ++e) passed |= uint32_t(group.scores[e] >= least) << e;
        passed = (all ? ~0u : passed) & group.here;
        const uint32_t mine = __popc(passed);
        if (!__any_sync(~0u, mine)) return;
        uint32_t sum = mine;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint32_t other = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum += other;
        }
        uint32_t first = 0;
        if (lane == 31) first = add_shared(count, sum);
        append<Dense>(group, passed, __shfl_sync(~0u, first, 31) + sum - mine, keys);
    });
}

// Candidates of a row with several parts, in the order in which parts arrived, and the range of each part.
struct SplitRow {
    uint2 found[kRoom];       // key; part and place in the part
    uint2 parts[kMostParts];  // first, count
};

// Division of a row: part p has vectors [begin(p), begin(p + 1)).
struct RowParts {
    int parts, place_bits;  // place_bits: bits of a place; the rest of 32 is the part
    int64_t vectors;
    int together;  // elements per vector

    __device__ int begin(int part) const { return int(vectors * part / parts); }
    __device__ int first_number(int part) const { return begin(part) * together; }
};

// Works as collect does, for a part of a row and in list order.
template <class List>
__device__ void collect_in_order(const List& list, uint32_t floor, const RowParts& row, int part,
                                 SelectShared& shared) {
    constexpr int kTogether = List::kTogether, kVectors = List::kVectors;
    const int first = row.begin(part), last = row.begin(part + 1);
    const float least = score_of(max(floor, kLowestKey));
    const uint32_t keys = shared_address(shared.found.keys);
    uint32_t found = 0;
    for (int begin = first; begin < last; begin += kVectors * kSelectThreads) {
        const int at = begin + int(threadIdx.x);
        float scores[kVectors * kTogether];
        const uint32_t here = list.load_in_order(at, last, scores);
        uint32_t passed = 0;
#pragma unroll
        for (int e = 0; e < kVectors * kTogether; ++e) passed |= uint32_t(scores[e] >= least) << e;
        passed = (floor == 0 ? ~0u : passed) & here;
        uint64_t counts = 0, total;  // 16 bits per vector
#pragma unroll
        for (int v = 0; v < kVectors; ++v)
            counts |= uint64_t(__popc(passed >> (v * kTogether) & ((1u << kTogether) - 1))) << (16 * v);
        const uint64_t before = block_scan(counts, reinterpret_cast<uint64_t*>(shared.cut.bins), total);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            uint32_t place = found + (uint32_t(before >> (16 * v)) & 0xffff);
#pragma unroll
            for (int e = 0; e < kTogether; ++e) {
                const uint32_t one = passed >> (v * kTogether + e) & 1;
                store_candidate(one && place < kRoom, keys, place, scores[v * kTogether + e],
                                (at + v * kSelectThreads) * kTogether + e);
                place += one;
            }
            found += uint32_t(total >> (16 * v)) & 0xffff;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.count = found;
    __syncthreads();
}

// Copies a part's candidates to scratch. Returns true in the last block to arrive.
__device__ bool hand_over(const SampledSelect& task, int64_t token, const RowParts& parts, int part,
                          SelectShared& shared) {
    SplitRow& row = task.scratch[token];
    uint32_t* const counters = task.counters + 2 * token;
    const uint32_t mine = shared.count;
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.count = atomicAdd(counters, mine);
        row.parts[part] = {shared.count, mine};
    }
    __syncthreads();
    const uint32_t first = shared.count;
    const int first_number = parts.first_number(part);
    for (uint32_t i = threadIdx.x; i < min(mine, uint32_t(kRoom)) && first + i < kRoom; i += kSelectThreads)
        row.found[first + i] = {shared.found.keys[i], uint32_t(part) << parts.place_bits |
                                                          uint32_t(shared.found.numbers[i] - first_number)};
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.last = atomicAdd(counters + 1, 1u) == uint32_t(task.parts) - 1;
        if (shared.last) {
            shared.count = atomicExch(counters, 0u);
            atomicExch(counters + 1, 0u);
            __threadfence();
        }
    }
    __syncthreads();
    return shared.last;
}

// Copies all candidates of a row, at most kRoom, to shared memory in list order. Finds their extreme keys.
__device__ void gather_in_order(const SplitRow& row, const RowParts& parts, SelectShared& shared) {
    int* const moves =
        reinterpret_cast<int*>(shared.cut.bins);  // per part: place in the list minus place in scratch
    int* const numbers = moves + kMostParts;      // per part: number of the first element
    const int p = int(threadIdx.x);
    const uint2 part = p < parts.parts ? __ldcg(row.parts + p) : uint2{};
    uint32_t total;
    const uint32_t start = block_scan(part.y, shared.cut.warps, total);
    if (p < parts.parts) moves[p] = int(start) - int(part.x), numbers[p] = parts.first_number(p);
    __syncthreads();
    uint32_t least = UINT32_MAX, best = 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < shared.count; i += kSelectThreads) {
        const uint2 candidate = __ldcg(row.found + i);
        const uint32_t own = candidate.y >> parts.place_bits;
        const int place = int(i) + moves[own];
        shared.found.keys[place] = candidate.x;
        shared.found.numbers[place] = numbers[own] + int(candidate.y - (own << parts.place_bits));
        least = min(least, candidate.x), best = max(best, candidate.x);
    }
    least = __reduce_min_sync(~0u, least), best = __reduce_max_sync(~0u, best);
    if (threadIdx.x % 32 == 0) atomicMin(&shared.least, least), atomicMax(&shared.best, best);
    __syncthreads();
}

// Candidates in list order, for put_in_order.
template <class List>
struct FoundInOrder {
    using Item = uint32_t;
    const List& list;
    const Candidates& found;
    int size;

    __device__ int count() const { return size; }
    __device__ Item item(int i) const { return found.keys[i]; }
    __device__ static uint32_t key_of(Item key) { return key; }
    __device__ int column(int i) const { return list.column(found.numbers[i]); }
    __device__ float score_of_item(Item, int i) const { return list.score(found.numbers[i]); }
};

// Cut through the candidates: candidates above the cut win, and of those equal to it the first in the list.
struct CandidateCut {
    Cut key, number;  // cuts through keys and through complemented numbers

    __device__ CandidateCut(SelectShared& shared, int k) : number{0, 0} {
        const Candidates& found = shared.found;
        const int count = int(shared.count);
        uint32_t least = UINT32_MAX, best = 0;
        for (int i = int(threadIdx.x); i < count; i += kSelectThreads)
            least = min(least, found.keys[i]), best = max(best, found.keys[i]);
        least = __reduce_min_sync(~0u, least), best = __reduce_max_sync(~0u, best);
        if (threadIdx.x % 32 == 0) atomicMin(&shared.least, least), atomicMax(&shared.best, best);
        __syncthreads();
        key =
            find_cut<PlainCounter>(shared.cut, uint32_t(k), shared.least, shared.best, 3, [&](const auto& f) {
                for (int i = int(threadIdx.x); i < count; i += kSelectThreads) f(found.keys[i]);
            });
        if (key.equal == 0) return;
        number = find_cut<PlainCounter>(shared.cut, key.equal, 0, UINT32_MAX, 3, [&](const auto& f) {
            for (int i = int(threadIdx.x); i < count; i += kSelectThreads)
                if (found.keys[i] == key.key) f(~uint32_t(found.numbers[i]));
        });
    }
    __device__ bool wins(const Candidates& found, int i) const {
        if (found.keys[i] != key.key || key.equal == 0) return found.keys[i] > key.key;
        const uint32_t other = ~uint32_t(found.numbers[i]);
        return other > number.key || (other == number.key && number.equal > 0);
    }
};

// Writes the winners in list order: a counting sort into bins, then each winner's rank within its bin.
template <class List, bool Rows>
__device__ void put_sorted(const List& list, const CandidateCut& cut, int k, const Winners<Rows>& winners,
                           SelectShared& shared) {
    constexpr int kPer = kBins / kSelectThreads;
    const int count = int(shared.count), tid = int(threadIdx.x);
    const int shift = max(0, 32 - __clz(list.count() - 1) - kDigit);
    uint32_t* const bins = shared.cut.bins;
    __syncthreads();
    for (int i = tid; i < kBins; i += kSelectThreads) bins[i] = 0;
    __syncthreads();
    for (int i = tid; i < count; i += kSelectThreads)
        if (cut.wins(shared.found, i)) atomicAdd(bins + (shared.found.numbers[i] >> shift), 1u);
    __syncthreads();
    uint32_t sizes[kPer], sum = 0, total;
#pragma unroll
    for (int i = 0; i < kPer; ++i) sum += sizes[i] = bins[kPer * tid + i];
    uint32_t start = block_scan(sum, shared.cut.warps, total);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
        bins[kPer * tid + i] = start;
        start += sizes[i];
    }
    __syncthreads();
    for (int i = tid; i < count; i += kSelectThreads)
        if (cut.wins(shared.found, i)) {
            const int number = shared.found.numbers[i];
            shared.places[atomicAdd(bins + (number >> shift), 1u)] = number;
        }
    __syncthreads();  // a bin's counter is now the start of the next bin
    for (int i = tid; i < k; i += kSelectThreads) {
        const int number = shared.places[i], bin = number >> shift;
        const int first = bin > 0 ? int(bins[bin - 1]) : 0, last = int(bins[bin]);
        int place = first;
        for (int other = first; other < last; ++other) place += shared.places[other] < number;
        winners.put(place, list.column(number), [&] { return list.score(number); });
    }
}

// Selects if there are too many or too few candidates. The floor is the cut if many columns equal it.
template <class List, bool Rows>
__device__ void select_otherwise(const List& list, uint32_t floor, int k, const Winners<Rows>& winners,
                                 SelectShared& shared) {
    uint32_t mine = 0, above;
    list.each([&](uint32_t key, int) { mine += key > floor; });
    block_scan(mine, shared.cut.warps, above);
    if (shared.count >= uint32_t(k) && above < uint32_t(k))
        put_in_order(list, Cut{floor, uint32_t(k) - above}, winners, shared.cut);
    else select_exactly(list, k, winners, shared.cut);
}

// Finishes a row of one block. Every thread calls this.
template <class List, bool Rows>
__device__ void finish_alone(const List& list, uint32_t floor, int k, const Winners<Rows>& winners,
                             SelectShared& shared) {
    if (shared.count < uint32_t(k) || shared.count > kRoom)
        return select_otherwise(list, floor, k, winners, shared);
    const CandidateCut cut(shared, k);
    put_sorted(list, cut, k, winners, shared);
}

// Finishes a row of several blocks; candidates are in list order, so winners need no sort.
template <class List, bool Rows>
__device__ void finish_split(const List& list, const SplitRow& row, const RowParts& parts, uint32_t floor,
                             int k, const Winners<Rows>& winners, SelectShared& shared) {
    if (shared.count < uint32_t(k) || shared.count > kRoom)
        return select_otherwise(list, floor, k, winners, shared);
    gather_in_order(row, parts, shared);
    const int count = int(shared.count);
    const Cut cut =
        find_cut<PlainCounter>(shared.cut, uint32_t(k), shared.least, shared.best, 3, [&](const auto& f) {
            for (int i = int(threadIdx.x); i < count; i += kSelectThreads) f(shared.found.keys[i]);
        });
    put_in_order(FoundInOrder<List>{list, shared.found, count}, cut, winners, shared.cut);
}

// With many rows, three blocks per multiprocessor hide each other's latencies. With few rows, more loads are
// in flight. Split: several blocks per row.
template <class Score, int Ahead, bool Split, bool Rows>
__global__ void __launch_bounds__(kSelectThreads, Ahead == kManyRows ? kBlocksPerSm : 2)
    select_sampled(const __grid_constant__ SampledSelect task) {
    extern __shared__ __align__(16) char memory[];
    SelectShared& shared = *reinterpret_cast<SelectShared*>(memory);
    const int64_t token = blockIdx.x / task.parts;
    const int part = int(blockIdx.x % task.parts), k = int(task.output.k);
    const ScoreList<Score, Ahead> list(task.input, task.windows, token, k);
    if (list.count() <= k) {  // all columns win
        if (part > 0) return;
        const Winners<Rows> winners(task.output, token, TokenOutput(task.output, task.windows, token, Rows));
        put_in_order(list, Cut{0, UINT32_MAX}, winners, shared.cut);
        winners.finish(list.count());
        return;
    }
    if (threadIdx.x == 0) shared.count = shared.best = 0, shared.least = UINT32_MAX;
    __syncthreads();
    const uint32_t floor = list.count() <= kRoom ? 0
                           : list.kept() == k    ? kept_floor(list, shared)
                                                 : sampled_floor(list, k, shared);
    constexpr int kTogether = ScoreList<Score, Ahead>::kTogether;
    [[maybe_unused]] const RowParts parts{task.parts, task.place_bits,
                                          (int64_t(list.count()) + kTogether - 1) / kTogether, kTogether};
    if constexpr (Split) {
        collect_in_order(list, floor, parts, part, shared);
        if (!hand_over(task, token, parts, part, shared)) return;
    } else {
        if (list.count() < kSparse * k) collect<true>(list, floor, shared);
        else collect<false>(list, floor, shared);
        __syncthreads();
    }
    const Winners<Rows> winners(task.output, token, TokenOutput(task.output, task.windows, token, Rows));
    if constexpr (Split) finish_split(list, task.scratch[token], parts, floor, k, winners, shared);
    else finish_alone(list, floor, k, winners, shared);
    winners.finish(k);
}

int parts_of(int64_t tokens, int64_t columns, const Env& env) {
    if (tokens > kSplitRows || tokens == 0 || columns > kMostSplitColumns) return 1;
    const int64_t wanted = 2 * env.device->facts().multiprocessors / tokens;
    return int(std::clamp<int64_t>(columns / kLeastPart, 1, std::clamp<int64_t>(wanted, 1, kMostParts)));
}

}  // namespace

std::string refuse_sampled(int64_t columns, int64_t k) {
    if (k > kMostWinners || k == 0) return text("k must be 1 to ", kMostWinners, ", got ", k);
    const double share = double(samples_of(columns)) / double(std::max<int64_t>(columns, 1)),
                 rank = double(k) * share;
    if (columns > kRoom && rank + 3 * std::sqrt(rank) > kExpectedMost * share)
        return text("a sample of ", columns, " columns cannot bound the best ", k, " closely enough");
    return {};
}

size_t sampled_scratch(int64_t tokens, int64_t columns, const Env& env) {
    if (parts_of(1, columns, env) == 1) return 0;
    // Calls with more tokens split no rows, but a part of such a call may.
    const int64_t split = std::min<int64_t>(kSplitRows, env.device->facts().multiprocessors);
    return size_t(std::min(tokens, split)) * sizeof(SplitRow);
}

void run_select_sampled(const SelectInput& input, const SelectOutput& output, void* scratch, const Env& env) {
    const int parts = scratch ? parts_of(input.tokens, input.end - input.begin, env) : 1;
    const SampledSelect task{
        .input = input,
        .output = output,
        .windows = Windows(input.starts, input.ends, input.columns, input.begin, input.end),
        .parts = parts,
        .place_bits = std::countl_zero(uint32_t(parts - 1)),
        .scratch = static_cast<SplitRow*>(scratch),
        .counters = static_cast<uint32_t*>(env.workspace.data)};
    const bool f32 = input.dtype == SMLA_F32, many_rows = input.tokens > kSplitRows;
    const auto kernel = with_rows(output, [&](auto rows) {
        constexpr bool kRows = rows.value;
        const auto many = f32 ? select_sampled<float, kManyRows, false, kRows>
                              : select_sampled<uint16_t, kManyRows, false, kRows>;
        const auto few = f32 ? select_sampled<float, kFewRows, false, kRows> : many;
        const auto split = f32 ? select_sampled<float, kFewRows, true, kRows>
                               : select_sampled<uint16_t, kFewRows, true, kRows>;
        return many_rows ? many : task.parts > 1 ? split : few;
    });
    launch(kernel, input.tokens * task.parts, kSelectThreads,
           sizeof(SelectShared) + size_t(output.k) * sizeof(int), env, task);
}

}  // namespace smla::cuda
