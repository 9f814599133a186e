// score_select_blocks: the streamed kernel, over the score kernels of this engine, and the generic kernel,
// for any heads, width, key format, dtype and list of blocks.
//
// Math       A token's candidate blocks become an ascending list (a bit per block, then a prefix sum over the
//            bits). The logits of their columns are stored side by side, as if the blocks were neighbors. An
//            exact select gives the winners' columns. The maxima of the blocks are selected likewise.
// Logits     Streamed: a table has the page, and the part of the page, of each token's candidates.
//            cuda_mma_score reads it as a block table: each token is a request whose pages are blocks.
//            Without a list of blocks the score kernels run as in the score stage. Generic: a warp per logit,
//            as in score.cu.
// Tile       A block of 512 threads per token, except for the logits.
// Limit      The products of score; the workspace has the logits of some of the tokens.
#include "engines/cuda/candidates.h"
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/score/columns.cuh"
#include "engines/cuda/score/logit.cuh"
#include "engines/cuda/score_select/run.h"
#include "engines/cuda/select/cut.cuh"
#include "engines/cuda/select/run.h"
#include "ops/score_select_blocks/score_select_blocks.h"
#include "ops/select/select.h"

#include <algorithm>

namespace smla::cuda {

namespace {

using Args = smla_score_select_blocks_args;

constexpr int kWarps = 8, kColumns = 64;  // of a scoring block

// Candidates of each token of a part, as kernel arguments.
struct Candidates {
    Tensor blocks;  // absent: all blocks
    Windows windows;
    int block_size;
    int64_t most;      // maximum per token
    int64_t capacity;  // maximum of columns per token
    int64_t words;     // words of marks per token
    uint32_t* marks;   // [tokens,words], one bit per block
    int32_t* list;     // [tokens,most], ascending; unused without `blocks`
    int32_t* counts;   // [tokens]
    int32_t* columns;  // [tokens]: number of columns of all candidates
    int32_t* table;    // null or [tokens,most]: page << part_bits | part of each candidate of `list`
    int32_t* order;    // [tokens], used with the table: 0, 1, ...
    int part_bits;

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

// Returns the table entry of a candidate block, page << part_bits | part, or -1 if the page is masked.
__device__ int table_entry(const Candidates& of, const KeyColumns& place, const KeyColumns::Pages& pages,
                           int block) {
    const KeyColumns::Place at = place.find(pages, block * of.block_size);
    return at.page < 0 ? -1 : int(at.page << of.part_bits | at.offset / uint32_t(of.block_size));
}

__global__ void __launch_bounds__(kSelectThreads)
    list_candidates(const __grid_constant__ Candidates task, const __grid_constant__ KeyColumns place,
                    float* maxima, int64_t maxima_stride, int64_t all_blocks) {
    __shared__ uint32_t warps[kSelectWarps];
    follow_grid_before();
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
    if (task.table) {
        const KeyColumns::Pages pages = place.pages_of(place.request(token));
        for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads)
            task.table[token * task.most + i] = table_entry(task, place, pages, list[i]);
        if (threadIdx.x == 0) task.order[token] = int(token);
    }
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

__global__ void __launch_bounds__(kWarps * 32) generic_logits(const __grid_constant__ ScoreBlocks task) {
    extern __shared__ float shared[];
    follow_grid_before();
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
            __syncwarp();  // before the next key is loaded
        }
        if (threadIdx.x % 32 == 0) task.logits[token * of.capacity + at] = value;
    }
}

// Writes the best score of each candidate block; +inf for the newest block.
__global__ void __launch_bounds__(kSelectThreads)
    find_maxima(const __grid_constant__ Candidates of, const float* logits, float* maxima, float* out,
                int64_t out_stride) {
    follow_grid_before();
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

// Replaces positions among the candidates' columns by columns, or among the candidates by blocks.
__global__ void __launch_bounds__(kSelectThreads)
    name_winners(const __grid_constant__ Candidates of, int32_t* winners, int64_t stride, int64_t k,
                 bool columns, bool relative) {
    follow_grid_before();
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
            // The newest block is selected even if k or more other blocks score +inf.
            const bool newest = i == last && of.has_newest(token, window);
            row[i] = of.block(token, newest ? of.counts[token] - 1 : at);
        }
    }
}

// Division of a call, which depends only on shapes and budget and does not affect results.
struct Plan {
    // Limit of scratch without a budget; larger parts hardly reduce the cost of launches.
    static constexpr size_t kPays = size_t(256) << 20;

    int64_t tokens, most, capacity, words, part_tokens;
    bool listed, maxima, streamed;
    size_t most_bytes;  // largest scratch of this call or one with fewer tokens

    Plan(const Args& args, bool over_score_kernels, size_t budget)
        : tokens(args.q.shape[0]),
          most(block_count(args)),
          capacity(0),
          words(0),
          part_tokens(1),
          listed(smla::present(args.blocks)),
          maxima(smla::present(args.block_maxima) || smla::present(args.best_blocks)),
          streamed(over_score_kernels),
          most_bytes(0) {
        if (listed) words = ceil_div(most, 32);
        if (listed) most = std::min(most, args.blocks.shape[1]);
        capacity = std::min<int64_t>(args.columns, most * args.block_size);
        const auto bytes_of_part = [this](int64_t of) {
            part_tokens = of;
            return bytes();
        };
        const size_t limit = budget == 0 ? kPays : std::min(budget, kPays);
        most_bytes = std::max(limit, bytes_of_part(1));
        most_bytes = std::min(most_bytes, bytes_of_part(std::max<int64_t>(tokens, 1)));
        while (part_tokens > 1 && bytes() > limit) part_tokens = ceil_div(part_tokens, 2);
    }
    struct Scratch {
        float *logits, *maxima;
        uint32_t* marks;
        int32_t *list, *counts, *columns, *table, *order;
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
        const bool in_table = streamed && listed;
        out.table = in_table ? arena.take<int32_t>(n * size_t(most)) : nullptr;
        out.order = in_table ? arena.take<int32_t>(n) : nullptr;
        return out;
    }
    size_t bytes() const {
        Arena arena;
        take(arena);
        return arena.used();
    }
};

// Selects the k best of each row of scratch, as positions in the row.
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
    run_select_exact(input, output, nullptr, env);
}

// Returns the bits of a table entry that number the blocks of a page.
int part_bits(const Args& args) {
    int bits = 0;
    while ((int64_t(1) << bits) * args.block_size < args.keys.page_tokens) ++bits;
    return bits;
}

// Returns the arguments of score with the candidates' table as block table.
smla_score_args in_table(const Args& args, const Plan& plan, const Plan::Scratch& scratch) {
    const int64_t tokens = args.q.shape[0];
    smla_score_args score = score_args_of(args);
    score.block_table = make_tensor(scratch.table, SMLA_I32, {tokens, plan.most});
    score.request_of_token = make_tensor(scratch.order, SMLA_I32, {tokens});
    score.ends = make_tensor(scratch.columns, SMLA_I32, {tokens});
    return score;
}

void run_streamed(const Args& args, const Plan& plan, const Plan::Scratch& scratch, const Env& env) {
    ScorePart part{.columns = plan.capacity,
                   .begin = 0,
                   .end = plan.capacity,
                   .logits = {scratch.logits, plan.capacity}};
    if (!plan.listed) {
        const smla_score_args score = score_args_of(args);
        return choose_score_kernel(score, env)->run(score, part, env);
    }
    part.part_tokens = uint32_t(args.block_size);
    part.part_bits = part_bits(args);
    run_score_tile(in_table(args, plan, scratch), part, env);
}

void run_generic(const Args& args, const Plan& plan, const Candidates& candidates, const KeyColumns& place,
                 float* logits, const Env& env) {
    const ScoreBlocks task{
        candidates, {args.q, args.q_scales, args.w, DeviceCache(args.keys)}, place, logits};
    launch_early(generic_logits, args.q.shape[0] * ceil_div(plan.capacity, kColumns), kWarps * 32,
                 kWarps * size_t(args.q.shape[2]) * sizeof(float), env, task);
}

void run_part(const Args& args, const Plan& plan, const Plan::Scratch& scratch, const Env& env) {
    const int64_t tokens = args.q.shape[0];
    const smla_score_args score = score_args_of(args);
    const KeyColumns place(score, CacheView(args.keys));
    const Candidates candidates{.blocks = args.blocks,
                                .windows = Windows(args.starts, args.ends, args.columns, 0, args.columns),
                                .block_size = args.block_size,
                                .most = plan.most,
                                .capacity = plan.capacity,
                                .words = plan.words,
                                .marks = scratch.marks,
                                .list = scratch.list,
                                .counts = scratch.counts,
                                .columns = scratch.columns,
                                .table = scratch.table,
                                .order = scratch.order,
                                .part_bits = part_bits(args)};
    const bool shown = smla::present(args.block_maxima);
    float* const shown_maxima = shown ? static_cast<float*>(args.block_maxima.data) : nullptr;
    const int64_t shown_stride = shown ? args.block_maxima.stride_elems[0] : 0;
    launch_early(list_candidates, tokens, kSelectThreads, 0, env, candidates, place, shown_maxima,
                 shown_stride, block_count(args));
    if (plan.streamed) run_streamed(args, plan, scratch, env);
    else run_generic(args, plan, candidates, place, scratch.logits, env);
    SelectOutput output = select_output(select_args_of(args));
    const bool relative = output.relative;
    output.relative = false;
    select_places(scratch.logits, plan.capacity, scratch.columns, tokens, output, env);
    launch_early(name_winners, tokens, kSelectThreads, 0, env, candidates, output.indices,
                 output.index_stride, output.k, true, relative);
    if (!plan.maxima) return;
    launch_early(find_maxima, tokens, kSelectThreads, 0, env, candidates, scratch.logits, scratch.maxima,
                 shown_maxima, shown_stride);
    if (!smla::present(args.best_blocks)) return;
    const SelectOutput best{.indices = static_cast<int32_t*>(args.best_blocks.data),
                            .index_stride = args.best_blocks.stride_elems[0],
                            .k = args.best_blocks.shape[1]};
    select_places(scratch.maxima, plan.most, scratch.counts, tokens, best, env);
    launch_early(name_winners, tokens, kSelectThreads, 0, env, candidates, best.indices, best.index_stride,
                 best.k, false, false);
}

// Returns why the score kernels cannot run the call. A block of a list must not cross the end of a page.
std::string refuse_streamed(const Args& args, const Env& env) {
    if (smla::present(args.starts)) return "args.starts is not supported";
    const std::string refusal = refuse_score_tile(score_args_of(args), env);
    if (!refusal.empty()) return refusal;
    if (!smla::present(args.blocks))
        return choose_score_kernel(score_args_of(args), env)
                   ? ""
                   : "the score kernel that the context allows does not support these arguments";
    if (!env.allows(Stage::score, "cuda_mma_score"))
        return "args.blocks requires cuda_mma_score, which the context does not allow";
    const CacheView keys(args.keys);
    if (keys.page_tokens % args.block_size || keys.page_rows % args.block_size)
        return text("pages of ", keys.page_tokens, " tokens are not divisible into blocks of ",
                    args.block_size);
    if (keys.pages > INT32_MAX >> part_bits(args))
        return text(keys.pages, " pages exceed the limit of the block table");
    return {};
}

template <bool Streamed>
CallPlan<Args> plan_blocks(const Args& args, const Env& env) {
    CallPlan<Args> plan = refuse_call<Args>(refuse_f64(args));
    if (Streamed && plan.refusal.empty()) plan.refusal = refuse_streamed(args, env);
    if (!plan.refusal.empty()) return plan;
    const Plan cut(args, Streamed, env.budget);
    plan.scratch = cut.bytes();
    plan.scratch_of_fewer = cut.most_bytes;
    plan.launch = [cut](const Args& call, const Env& on) {
        Arena arena(on.workspace);
        const Plan::Scratch scratch = cut.take(arena);
        for (int64_t first = 0; first < cut.tokens; first += cut.part_tokens)
            run_part(tokens_of(call, first, std::min(first + cut.part_tokens, cut.tokens)), cut, scratch, on);
    };
    return plan;
}

}  // namespace

const Candidate<Args> kStreamedBlocks{.name = "cuda_streamed_score_select_blocks", .plan = plan_blocks<true>};
const Candidate<Args> kGenericBlocks{.name = "cuda_generic_score_select_blocks", .plan = plan_blocks<false>};

}  // namespace smla::cuda
