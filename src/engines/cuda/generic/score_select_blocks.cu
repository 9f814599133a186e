// score_select_blocks for any heads, width, key format, dtype and list of blocks.
//
// Steps      a token's candidate blocks as an ascending list (a bit per block, then a prefix sum over the
//            bits); the logits of their columns side by side, as if the blocks were neighbours; the exact
//            select over them; the winners' columns. The maxima of the blocks, and a select over them, alike.
// Tile       a warp per logit, as in score.cu; a block of 512 threads per token elsewhere.
// Limit      score.cu's products; the logits of a part of the tokens lie in the workspace.
#include "engines/cuda/candidates.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/generic/generic.h"
#include "engines/cuda/score/columns.cuh"
#include "engines/cuda/score/logit.cuh"
#include "engines/cuda/select/cut.cuh"
#include "engines/cuda/select/run.h"
#include "ops/score_select_blocks/score_select_blocks.h"
#include "ops/select/select.h"

#include <algorithm>

namespace smla::cuda {

namespace {

using Args = smla_score_select_blocks_args;

constexpr int kWarps = 8, kColumns = 64;  // of a block that scores

// What the kernels share: the candidates of each token of a part.
struct Candidates {
    Tensor blocks;  // absent: all
    Windows windows;
    int block_size;
    int64_t most;      // candidates of a token
    int64_t capacity;  // columns of them
    int64_t words;     // of a token's marks
    uint32_t* marks;   // [tokens,words], one bit per block
    int32_t* list;     // [tokens,most], ascending; unused if all
    int32_t* counts;   // [tokens]
    int32_t* columns;  // [tokens]: of all candidates together

    __device__ int block(int64_t token, int i) const { return present(blocks) ? list[token * most + i] : i; }
    __device__ Window part(const Window& window, int block) const {
        const int64_t begin = int64_t(window.begin) + int64_t(block) * block_size;
        return {int(begin), int(min(begin + block_size, int64_t(window.end)))};
    }
    __device__ bool has_newest(int64_t token, const Window& window) const {
        const int count = counts[token];
        return count > 0 && part(window, block(token, count - 1)).end == window.end;
    }
};

__device__ void mark(uint32_t* marks, const Candidates& of, int64_t token, int blocks) {
    for (int64_t word = threadIdx.x; word < of.words; word += kSelectThreads) marks[word] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < of.blocks.shape[1]; i += kSelectThreads) {
        const int64_t block = load_int(of.blocks, token, i);
        if (block >= 0 && block < blocks) atomicOr(marks + block / 32, 1u << (block % 32));
    }
    __syncthreads();
}

__global__ void __launch_bounds__(kSelectThreads)
    list_candidates(const __grid_constant__ Candidates task, float* maxima, int64_t maxima_stride,
                    int64_t all_blocks) {
    __shared__ uint32_t warps[kSelectWarps];
    const int64_t token = blockIdx.x;
    const Window window = task.windows(token);
    const int length = window.end - window.begin;
    const int blocks = int((int64_t(length) + task.block_size - 1) / task.block_size);
    if (maxima)
        for (int64_t i = threadIdx.x; i < all_blocks; i += kSelectThreads)
            maxima[token * maxima_stride + i] = -INFINITY;
    if (!present(task.blocks)) {
        if (threadIdx.x == 0) task.counts[token] = blocks, task.columns[token] = length;
        return;
    }
    uint32_t* const marks = task.marks + token * task.words;
    int32_t* const list = task.list + token * task.most;
    mark(marks, task, token, blocks);
    uint32_t count = 0;
    for (int64_t first = 0; first < task.words; first += kSelectThreads) {
        const int64_t word = first + threadIdx.x;
        uint32_t bits = word < task.words ? marks[word] : 0, total;
        uint32_t at = count + block_scan(uint32_t(__popc(bits)), warps, total);
        for (; bits != 0; bits &= bits - 1) list[at++] = int32_t(word * 32 + __ffs(int(bits)) - 1);
        count += total;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    task.counts[token] = int(count);
    if (count == 0) {
        task.columns[token] = 0;
        return;
    }
    const Window last = task.part(window, list[count - 1]);
    task.columns[token] = int(int64_t(count - 1) * task.block_size) + last.end - last.begin;
}

struct ScoreBlocks {
    Candidates candidates;
    ScoreInputs inputs;
    KeyColumns place;
    float* logits;  // [tokens,capacity]
};

__global__ void __launch_bounds__(kWarps * 32) score_candidates(const __grid_constant__ ScoreBlocks task) {
    extern __shared__ float shared[];
    const Candidates& of = task.candidates;
    const unsigned groups = unsigned((of.capacity + kColumns - 1) / kColumns);
    const int64_t token = blockIdx.x / groups;
    const int first = int(blockIdx.x % groups * kColumns), warp = int(threadIdx.x / 32);
    const int count = min(kColumns, of.columns[token] - first);
    float* const key = shared + warp * task.inputs.keys.width;
    const Window window = of.windows(token);
    const KeyColumns::Pages pages = task.place.pages_of(task.place.request(token));
    for (int i = warp; i < count; i += kWarps) {
        const int at = first + i;
        const Window part = of.part(window, of.block(token, at / of.block_size));
        const KeyColumns::Place found = task.place.find(pages, part.begin + at % of.block_size);
        float value = -INFINITY;
        if (found.page >= 0) {
            const float scale =
                load_key(task.inputs.keys, found.page * task.inputs.keys.page_rows + found.offset, key);
            value = logit(task.inputs, token, key, scale);
            __syncwarp();  // before the next key
        }
        if (threadIdx.x % 32 == 0) task.logits[token * of.capacity + at] = value;
    }
}

// The best score of each candidate, +inf of the newest block.
__global__ void __launch_bounds__(kSelectThreads)
    find_maxima(const __grid_constant__ Candidates of, const float* logits, float* maxima, float* out,
                int64_t out_stride) {
    const int64_t token = blockIdx.x;
    const Window window = of.windows(token);
    const int count = of.counts[token];
    for (int i = int(threadIdx.x); i < count; i += kSelectThreads) {
        const int block = of.block(token, i);
        const Window part = of.part(window, block);
        const float* const scores = logits + token * of.capacity + int64_t(i) * of.block_size;
        float best = scores[0];
        for (int j = 1; j < part.end - part.begin; ++j)
            if (scores[j] > best || isnan(best)) best = scores[j];
        if (part.end == window.end) best = INFINITY;
        maxima[token * of.most + i] = best;
        if (out) out[token * out_stride + block] = best;
    }
}

// Places among the candidates' columns become columns, or places among candidates become blocks.
__global__ void __launch_bounds__(kSelectThreads)
    name_winners(const __grid_constant__ Candidates of, int32_t* winners, int64_t stride, int64_t k,
                 bool columns, bool relative) {
    const int64_t token = blockIdx.x;
    const Window window = of.windows(token);
    int32_t* const row = winners + token * stride;
    const int64_t last = min(int64_t(of.counts[token]), k) - 1;
    for (int64_t i = threadIdx.x; i < k; i += kSelectThreads) {
        const int at = row[i];
        if (at < 0) continue;
        if (columns) {
            const Window part = of.part(window, of.block(token, at / of.block_size));
            row[i] = part.begin + at % of.block_size - (relative ? window.begin : 0);
        } else {
            // The newest block stays in even where the lists of others are full of +inf.
            const bool newest = i == last && of.has_newest(token, window);
            row[i] = of.block(token, newest ? of.counts[token] - 1 : at);
        }
    }
}

Tensor part_of(const Tensor& tensor, int64_t first, int64_t last) {
    return smla::present(tensor) ? slice(tensor, 0, first, last) : tensor;
}

// Tokens [first, last) of a call.
Args part_of(const Args& args, int64_t first, int64_t last) {
    Args part = args;
    for (Tensor* each :
         {&part.q, &part.q_scales, &part.w, &part.request_of_token, &part.starts, &part.ends, &part.blocks,
          &part.indices, &part.selected, &part.counts, &part.block_maxima, &part.best_blocks})
        *each = part_of(*each, first, last);
    return part;
}

// How a call is cut: a function of shapes and budget. Results do not depend on it.
struct Plan {
    // Without a budget: parts large enough that starting kernels costs little.
    static constexpr size_t kPays = size_t(256) << 20;

    int64_t tokens, most, capacity, words, part_tokens;
    bool listed, maxima;

    Plan(const Args& args, size_t budget)
        : tokens(args.q.shape[0]),
          most(block_count(args)),
          capacity(0),
          words(0),
          part_tokens(std::max<int64_t>(tokens, 1)),
          listed(smla::present(args.blocks)),
          maxima(smla::present(args.block_maxima) || smla::present(args.best_blocks)) {
        if (listed) words = ceil_div(most, 32);
        if (listed) most = std::min(most, args.blocks.shape[1]);
        capacity = std::min<int64_t>(args.columns, most * args.block_size);
        const size_t limit = budget == 0 ? kPays : std::min(budget, kPays);
        while (part_tokens > 1 && bytes() > limit) part_tokens = ceil_div(part_tokens, 2);
    }
    struct Scratch {
        float *logits, *maxima;
        uint32_t* marks;
        int32_t *list, *counts, *columns;
    };
    Scratch take(Arena& arena) const {
        const auto n = size_t(part_tokens);
        Scratch out;
        out.logits = arena.take<float>(n * size_t(capacity));
        out.maxima = arena.take<float>(maxima ? n * size_t(most) : 0);
        out.marks = arena.take<uint32_t>(n * size_t(words));
        out.list = arena.take<int32_t>(listed ? n * size_t(most) : 0);
        out.counts = arena.take<int32_t>(n);
        out.columns = arena.take<int32_t>(n);
        return out;
    }
    size_t bytes() const {
        Arena arena;
        take(arena);
        return arena.used();
    }
};

// The k best of a row of scratch, as places in it.
void select_places(const float* scores, int64_t stride, int32_t* ends, int64_t tokens,
                   const SelectOutput& output, const Env& env) {
    const SelectInput input{.scores = scores,
                            .stride = stride,
                            .dtype = SMLA_F32,
                            .tokens = tokens,
                            .ends = make_tensor(ends, SMLA_I32, {tokens}),
                            .columns = stride,
                            .begin = 0,
                            .end = stride};
    run_select_exact(input, output, env);
}

void run_part(const Args& args, const Plan& plan, const Plan::Scratch& scratch, const Env& env) {
    const int64_t tokens = args.q.shape[0];
    const smla_score_args score = score_args_of(args);
    const CacheView keys(args.keys);
    const Candidates candidates{.blocks = args.blocks,
                                .windows = Windows(args.starts, args.ends, args.columns, 0, args.columns),
                                .block_size = args.block_size,
                                .most = plan.most,
                                .capacity = plan.capacity,
                                .words = plan.words,
                                .marks = scratch.marks,
                                .list = scratch.list,
                                .counts = scratch.counts,
                                .columns = scratch.columns};
    const bool shown = smla::present(args.block_maxima);
    float* const shown_maxima = shown ? static_cast<float*>(args.block_maxima.data) : nullptr;
    const int64_t shown_stride = shown ? args.block_maxima.stride_elems[0] : 0;
    launch(list_candidates, tokens, kSelectThreads, 0, env, candidates, shown_maxima, shown_stride,
           block_count(args));
    const ScoreBlocks task{candidates,
                           {args.q, args.q_scales, args.w, DeviceCache(args.keys)},
                           KeyColumns(score, keys),
                           scratch.logits};
    launch(score_candidates, tokens * ceil_div(plan.capacity, kColumns), kWarps * 32,
           kWarps * size_t(keys.width) * sizeof(float), env, task);
    SelectOutput output = select_output(select_args_of(args));
    const bool relative = output.relative;
    output.relative = false;
    select_places(scratch.logits, plan.capacity, scratch.columns, tokens, output, env);
    launch(name_winners, tokens, kSelectThreads, 0, env, candidates, output.indices, output.index_stride,
           output.k, true, relative);
    if (!plan.maxima) return;
    launch(find_maxima, tokens, kSelectThreads, 0, env, candidates, scratch.logits, scratch.maxima,
           shown_maxima, shown_stride);
    if (!smla::present(args.best_blocks)) return;
    const SelectOutput best{.indices = static_cast<int32_t*>(args.best_blocks.data),
                            .index_stride = args.best_blocks.stride_elems[0],
                            .k = args.best_blocks.shape[1]};
    select_places(scratch.maxima, plan.most, scratch.counts, tokens, best, env);
    launch(name_winners, tokens, kSelectThreads, 0, env, candidates, best.indices, best.index_stride, best.k,
           false, false);
}

}  // namespace

}  // namespace smla::cuda

namespace smla {

CallPlan<smla_score_select_blocks_args> plan_cuda_score_select_blocks(
    const smla_score_select_blocks_args& args, const Env& env) {
    using Args = smla_score_select_blocks_args;
    CallPlan<Args> plan = refuse_call<Args>(refuse_f64(args));
    if (!plan.refusal.empty()) return plan;
    const cuda::Plan cut(args, env.budget);
    plan.scratch = cut.bytes();
    plan.launch = [cut](const Args& call, const Env& on) {
        Arena arena(on.workspace);
        const cuda::Plan::Scratch scratch = cut.take(arena);
        for (int64_t first = 0; first < cut.tokens; first += cut.part_tokens)
            cuda::run_part(cuda::part_of(call, first, std::min(first + cut.part_tokens, cut.tokens)), cut,
                           scratch, on);
    };
    return plan;
}

}  // namespace smla
