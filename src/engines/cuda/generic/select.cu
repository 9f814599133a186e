// select for any row, k and dtype.
//
// Math       Three histograms of 11 bits (cut.cuh) find the k-th best score; one more pass writes the winners
//            in order. Lists with ids are cut by score, then id, then column; winners are sorted in scratch.
// Tile       A block of 512 threads per row. Lists with ids: at most two blocks per multiprocessor, each with
//            a private scratch that it reuses for every row.
// Shared     2048 bins and the warps' sums: 8.3 KB.
// Limit      Each row is read four times (with ids: up to eleven times).
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/select/list.cuh"

#include <algorithm>

namespace smla::cuda {

namespace {

struct ExactSelect {
    SelectInput input;
    SelectOutput output;
    Windows windows;
};

template <class Score, bool Rows>
__global__ void __launch_bounds__(kSelectThreads, 2) select_exact(const __grid_constant__ ExactSelect task) {
    __shared__ CutScratch scratch;
    const int64_t token = blockIdx.x;
    const ScoreList<Score, 16> list(task.input, task.windows, token, task.output.k);
    const Winners<Rows> winners(task.output, token, TokenOutput(task.output, task.windows, token, Rows));
    const int k = int(task.output.k);
    if (k > 0) select_exactly(list, k, winners, scratch);
    winners.finish(min(k, list.count()));
}

struct SelectIds {
    Tensor scores, ids;
    SelectOutput output;
    Windows windows;
    char* scratch;
    int64_t slots, tokens;  // slots: per block, a power of two
};

// Winners in scratch, ordered by ascending id, descending score, ascending column.
struct Sorted {
    uint64_t* keys;
    uint32_t* columns;
    __device__ bool after(int64_t a, int64_t b) const {
        return keys[a] != keys[b] ? keys[a] > keys[b] : columns[a] > columns[b];
    }
    __device__ void exchange(int64_t a, int64_t b) const {
        const uint64_t key = keys[a];
        const uint32_t column = columns[a];
        keys[a] = keys[b], columns[a] = columns[b];
        keys[b] = key, columns[b] = column;
    }
    // Bitonic sort; n is a power of two.
    __device__ void sort(int64_t n) const {
        for (int64_t size = 2; size <= n; size *= 2)
            for (int64_t step = size / 2; step > 0; step /= 2) {
                for (int64_t i = threadIdx.x; i < n / 2; i += kSelectThreads) {
                    const int64_t a = i / step * step * 2 + i % step, b = a + step;
                    if (after(a, b) == ((a & size) == 0)) exchange(a, b);
                }
                __syncthreads();
            }
    }
};

// Elements of one token that have an id.
class IdList {
public:
    __device__ IdList(const SelectIds& task, int64_t token)
        : task_(task), token_(token), window_(task.windows(token)) {}
    __device__ int id(int j) const { return int(load_int(task_.ids, token_, j)); }
    __device__ float score(int j) const { return load_value(task_.scores, element(task_.scores, token_, j)); }

    // Calls f(key, id, column) for each element, spread over the block's threads.
    template <class F>
    __device__ void each(const F& f) const {
        for (int64_t j = window_.begin + int(threadIdx.x); j < window_.end; j += kSelectThreads) {
            const int number = id(int(j));
            if (number >= 0) f(rank_key(score(int(j))), uint32_t(number), uint32_t(j));
        }
    }

private:
    const SelectIds& task_;
    int64_t token_;
    Window window_;
};

// Scores above the cut win; among equal scores, lower ids win; among equal ids, lower columns win.
struct IdCut {
    Cut score, id, column;  // ids and columns are complemented, so that the lowest is the best

    __device__ IdCut(const IdList& list, uint32_t k, CutScratch& scratch)
        : score(find_cut<RunCounter>(scratch, k, 0, UINT32_MAX, 3, [&](const auto& f) {
              list.each([&](uint32_t key, uint32_t, uint32_t) { f(key); });
          })) {
        id = column = {UINT32_MAX, 0};
        if (score.equal == 0) return;
        id = find_cut<RunCounter>(scratch, score.equal, 0, UINT32_MAX, 3, [&](const auto& f) {
            list.each([&](uint32_t key, uint32_t number, uint32_t) {
                if (key == score.key) f(~number);
            });
        });
        if (id.equal == 0) return;
        column = find_cut<RunCounter>(scratch, id.equal, 0, UINT32_MAX, 3, [&](const auto& f) {
            list.each([&](uint32_t key, uint32_t number, uint32_t j) {
                if (key == score.key && ~number == id.key) f(~j);
            });
        });
    }
    __device__ bool lets_in(uint32_t key, uint32_t number, uint32_t j) const {
        if (key != score.key || score.equal == 0) return key > score.key;
        if (~number != id.key || id.equal == 0) return ~number > id.key;
        return ~j > column.key || (~j == column.key && column.equal > 0);
    }
};

__device__ void select_by_id(const SelectIds& task, int64_t token, const Sorted& sorted, CutScratch& scratch,
                             uint32_t* used) {
    const IdList list(task, token);
    const Winners<false> winners(task.output, token, TokenOutput());
    uint32_t mine = 0, candidates;
    list.each([&](uint32_t, uint32_t, uint32_t) { ++mine; });
    block_scan(mine, scratch.warps, candidates);
    const uint32_t count = min(candidates, uint32_t(task.output.k));
    if (count > 0) {
        const IdCut cut(list, count, scratch);
        int64_t n = 1;
        while (n < count) n *= 2;
        if (threadIdx.x == 0) *used = 0;
        __syncthreads();
        list.each([&](uint32_t key, uint32_t number, uint32_t j) {
            if (!cut.lets_in(key, number, j)) return;
            const uint32_t at = atomicAdd(used, 1u);
            sorted.keys[at] = uint64_t(number) << 32 | ~key;
            sorted.columns[at] = j;
        });
        for (int64_t i = count + threadIdx.x; i < n; i += kSelectThreads)
            sorted.keys[i] = UINT64_MAX, sorted.columns[i] = UINT32_MAX;
        __syncthreads();
        sorted.sort(n);
        for (int64_t i = threadIdx.x; i < count; i += kSelectThreads)
            winners.put(int(i), int(sorted.keys[i] >> 32),
                        [&] { return list.score(int(sorted.columns[i])); });
    }
    winners.finish(int(count));
    __syncthreads();  // scratch is reused for the next token
}

__global__ void __launch_bounds__(kSelectThreads, 2) select_ids(const __grid_constant__ SelectIds task) {
    __shared__ CutScratch scratch;
    __shared__ uint32_t used;
    char* const memory =
        task.scratch + int64_t(blockIdx.x) * task.slots * int64_t(sizeof(uint64_t) + sizeof(uint32_t));
    const Sorted sorted{reinterpret_cast<uint64_t*>(memory),
                        reinterpret_cast<uint32_t*>(memory + task.slots * int64_t(sizeof(uint64_t)))};
    for (int64_t token = blockIdx.x; token < task.tokens; token += gridDim.x)
        select_by_id(task, token, sorted, scratch, &used);
}

int64_t id_blocks(const smla_select_args& args, const Env& env) {
    return std::min<int64_t>(args.scores.shape[0], 2 * env.device->facts().multiprocessors);
}
// Returns a power of two, at least 2, so that each block's keys are aligned.
int64_t id_slots(const smla_select_args& args) {
    int64_t n = 2;
    while (n < std::min(args.scores.shape[1], args.indices.shape[1])) n *= 2;
    return n;
}

}  // namespace

void run_select_exact(const SelectInput& input, const SelectOutput& output, void*, const Env& env) {
    const ExactSelect task{input, output,
                           Windows(input.starts, input.ends, input.columns, input.begin, input.end)};
    const auto kernel = with_rows(output, [&](auto rows) {
        return input.dtype == SMLA_F32 ? select_exact<float, rows.value> : select_exact<uint16_t, rows.value>;
    });
    launch(kernel, input.tokens, kSelectThreads, 0, env, task);
}

size_t select_ids_scratch(const smla_select_args& args, const Env& env) {
    return size_t(id_blocks(args, env) * id_slots(args)) * (sizeof(uint64_t) + sizeof(uint32_t));
}

void run_select_ids(const smla_select_args& args, void* scratch, const Env& env) {
    const int64_t columns = args.scores.shape[1];
    const SelectIds task{.scores = args.scores,
                         .ids = args.ids,
                         .output = select_output(args),
                         .windows = Windows(args.starts, args.ends, columns, 0, columns),
                         .scratch = static_cast<char*>(scratch),
                         .slots = id_slots(args),
                         .tokens = args.scores.shape[0]};
    launch(select_ids, id_blocks(args, env), kSelectThreads, 0, env, task);
}

}  // namespace smla::cuda
