// score on Hopper over whole pages: 128 channels, pages of 64, 128, ... tokens or a single page of any size;
// e4m3 queries of 20 to 64 heads with index_fp8_132 keys, or e2m1 queries of 32 or 64 heads with
// index_mxfp4_68 keys. A request has one or two rows (decoding) or, in precision rounded, many (prompts).
//
// Math       As in ../kernel.cu.
// Tile       Per warpgroup 64 keys x (1, 2 or 4 rows) x (32 or 64 heads): one step of 64 or 128 columns.
// Blocks     One per multiprocessor. Each finds all tiles of the call from the windows and processes an equal
//            share (units.cuh), so that the start of a request overlaps the keys of the previous one. In long
//            calls, blocks that have finished their share draw the last tiles.
// Roles      4 warpgroups multiply a tile each; with many rows, teams of 2 or 4 share a tile, each warpgroup
//            with different rows (consumer.cuh). In the fifth, 3 warps copy every third tile of keys each,
//            and one copies queries and weights and announces the next unit (producer.cuh).
// Shared     16 stages of keys (f16: 12, many rows: 6) | 2 slots of queries and weights | windows (config.h).
// Barriers   Full and empty mbarriers per stage (one thread and its bytes; 4 warps, with many rows 16) and
//            per slot (a warp and its bytes; 16 warps). One thread arrives at `drawn_full`; warps that copy
//            keys wait. All threads wait twice: for the costs per warp and for all costs.
// Registers  As in ../kernel.cu.
// Why        Weights of the rows stay in registers, which leaves none for keys, so both operands are shared,
//            and boxes of a tensor map are swizzled. 16-bit operands leave room for keys. A single warp would
//            copy a tile of keys in 480 cycles, which would bound two rows.
// Results    docs/kernels/cuda_score.md.
#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/score/sm90/pages/consumer.cuh"
#include "engines/cuda/score/sm90/pages/producer.cuh"
#include "ops/score/score.h"

#include <bit>

namespace smla::cuda {

namespace sm90::pages {

namespace {

template <class Shape>
__global__ void __launch_bounds__(kThreads, 1) score_pages_sm90(const __grid_constant__ Task task) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Shape>*>(memory);
    const bool produces = int(threadIdx.x) >= kConsumers;
    const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
    if (threadIdx.x == kConsumers) {
        shared.start();
        if (!Shape::mxfp4) prefetch_map(&task.key_map), prefetch_map(&task.query_map);
    }
    wait_for_grid_before();
    if (warp == kConsumers / 32 + kCopyWarps) {
        prefetch_table(task);
        // Weights of padded heads, which no copy writes.
        const int padding = Shape::heads - task.heads;
        for (int i = int(threadIdx.x % 32); i < kSlots * Shape::unit_rows * padding; i += 32)
            (&shared.weights[0][0])[i / padding * Shape::heads + task.heads + i % padding] = 0;
    }
    if (produces) Producer<Shape>::prepare(task, warp - kConsumers / 32);
    else add_costs(task, shared);
    __syncthreads();
    if (!produces) join_costs(task, shared);
    __syncthreads();
    if (produces) {
        lower_registers<kProducerRegisters>();
        const Division division(task, shared.ends[task.tokens - 1], Shape::draws);
        if (warp == kConsumers / 32 + kCopyWarps) announce_units<Shape>(task, shared, division);
        else Producer<Shape>(task, shared, warp - kConsumers / 32).run(division);
        return;
    }
    raise_registers<kConsumerRegisters>();
    if (task.fill) {
        const int pieces = task.tokens * task.fill_splits;
        for (int i = int(blockIdx.x); i < pieces; i += int(gridDim.x))
            fill_outside<kConsumers>(task.window, task.logits, i / task.fill_splits, 1, i % task.fill_splits,
                                     task.fill_splits);
    }
    Consumer<Shape>(task, shared).run();
}

template <class Shape>
void launch_pages(const Task& task, int blocks, const Env& env) {
    static_assert(sizeof(Shared<Shape>) <= 227 * 1024);  // limit per block
    launch_early(score_pages_sm90<Shape>, blocks, kThreads, sizeof(Shared<Shape>), env, task);
}

void launch_task(const Rows& rows, const Task& task, int blocks, const Env& env) {
    constexpr auto e4m3 = Products::e4m3, f16 = Products::f16, bf16 = Products::bf16;
    const bool wide = rows.heads == 64, full = rows.heads * rows.rows > 64;
    if (rows.products == bf16) {
        if (wide) return launch_pages<Shape<64, 1, bf16>>(task, blocks, env);
        return launch_pages<Shape<32, 2, bf16>>(task, blocks, env);
    }
    if (rows.products == f16) {
        if (wide) return launch_pages<Shape<64, 1, f16>>(task, blocks, env);
        return launch_pages<Shape<32, 2, f16>>(task, blocks, env);
    }
    if (rows.many && wide) return launch_pages<Shape<64, 2, e4m3, true>>(task, blocks, env);
    if (rows.many) return launch_pages<Shape<32, 4, e4m3, true>>(task, blocks, env);
    if (wide && full) return launch_pages<Shape<64, 2, e4m3>>(task, blocks, env);
    if (wide) return launch_pages<Shape<64, 1, e4m3>>(task, blocks, env);
    if (full) return launch_pages<Shape<32, 4, e4m3>>(task, blocks, env);
    launch_pages<Shape<32, 2, e4m3>>(task, blocks, env);
}

// Returns a counter in the workspace's header, after the counters of select.
uint32_t* draws_of(const Workspace& workspace) {
    if (workspace.bytes < kWorkspaceHeader) return nullptr;
    return reinterpret_cast<uint32_t*>(static_cast<char*>(workspace.data) + kWorkspaceHeader / 2);
}

void run_tokens(const smla_score_args& args, const ScorePart& part, const Rows& rows, const Env& env) {
    const int64_t tokens = args.q.shape[0], heads = args.q.shape[1];
    const CacheView keys(args.keys);
    const int blocks = std::max(1, env.device->facts().multiprocessors);
    const int64_t head_stride = args.q.stride_elems[1];  // with one token, the token stride is arbitrary
    const int64_t token_stride = tokens > 1 ? args.q.stride_elems[0] : heads * head_stride;
    const auto map_of = [&](const ByteTensor& tensor) {
        return rows.products == Products::bf16 ? CUtensorMap{} : make_tensor_map(tensor);
    };
    const bool table = args.block_table.ndim != 0, one_page = !table && keys.pages == 1;
    launch_task(rows,
                {.key_map = map_of({.data = keys.data,
                                    .rows = keys.page_tokens,
                                    .depth = keys.pages,
                                    .row_stride_bytes = kWidth,
                                    .depth_stride_bytes = keys.page_stride,
                                    .box_rows = kKeys,
                                    .box_depth = 1}),
                 .query_map = map_of({.data = args.q.data,
                                      .rows = heads,
                                      .depth = tokens,
                                      .row_stride_bytes = head_stride,
                                      .depth_stride_bytes = token_stride,
                                      .box_rows = rows.heads,
                                      .box_depth = rows.of_unit}),
                 .q = args.q,
                 .q_scales = args.q_scales,
                 .place = KeyColumns(args, keys),
                 .data = keys.data,
                 .page_stride = keys.page_stride,
                 .w = args.w,
                 .window = Windows(args.starts, args.ends, part.columns, part.begin, part.end),
                 .logits = part.logits,
                 .two_rows_bytes = 2 * part.logits.stride * (part.logits.bf16 ? 2 : 4),
                 .tokens = int(tokens),
                 .heads = int(heads),
                 .fill = args.fill,
                 .fill_splits = int(ceil_div(blocks, tokens)),
                 .group = rows.group,
                 .chunk = 32 / rows.group * rows.group,
                 .requests = table ? int(std::min<int64_t>(args.block_table.shape[0], INT32_MAX)) : 1,
                 .tiles_shift = one_page ? 31 : std::countr_zero(uint32_t(keys.page_tokens / kKeys)),
                 .by_blocks = Divisor(uint64_t(blocks)),
                 .draws = draws_of(env.workspace)},
                blocks, env);
}

}  // namespace

}  // namespace sm90::pages

void run_score_pages(const smla_score_args& args, const ScorePart& part, const Env& env) {
    using namespace sm90::pages;
    const int64_t tokens = args.q.shape[0];
    if (part.begin == part.end || tokens == 0) return;
    const Rows rows(args, part);
    const auto whole_groups = [&](int64_t n) { return n / rows.group * rows.group; };
    const int64_t most = whole_groups(rows.many ? kMostTokensOfMany : kMostTokens),
                  each = whole_groups(ceil_div(tokens, ceil_div(tokens, most)) + rows.group - 1);
    if (each >= tokens) return run_tokens(args, part, rows, env);
    for (int64_t first = 0; first < tokens; first += each) {
        ScorePart some = part;
        some.logits.data =
            static_cast<char*>(part.logits.data) + first * part.logits.stride * (part.logits.bf16 ? 2 : 4);
        run_tokens(tokens_of(args, first, std::min(first + each, tokens)), some, rows, env);
    }
}

}  // namespace smla::cuda
