#include "engines/cuda/common/launch.cuh"
#include "engines/cuda/score/sm90/few.cuh"

#include <bit>

namespace smla::cuda {

namespace {

using namespace sm90;

template <class Shape>
void launch_few(const FewTask& task, int blocks, const Env& env) {
    launch(score_few_sm90<Shape>, blocks, kThreads, sizeof(FewShared<Shape>), env, task);
}

}  // namespace

void run_score_few(const smla_score_args& args, const ScorePart& part, const Env& env) {
    const int64_t tokens = args.q.shape[0], heads = args.q.shape[1];
    if (part.begin == part.end || tokens == 0) return;
    const CacheView keys(args.keys);
    const int rows = int(ceil_div(tokens, std::max<int64_t>(1, args.block_table.shape[0])));
    const bool wide = heads > kWideHeads;
    const int most = wide ? (rows > 1 ? 2 : 1) : (rows > 2 ? 4 : 2);
    const int blocks = std::max(1, env.device->facts().multiprocessors);
    const auto at_least_16 = [](int64_t stride) { return std::max<int64_t>(stride, 16); };
    const FewTask task{.key_map = make_tensor_map({.data = keys.data,
                                                   .rows = keys.page_tokens,
                                                   .depth = keys.pages,
                                                   .row_stride_bytes = kWidth,
                                                   .depth_stride_bytes = keys.page_stride,
                                                   .box_rows = kKeys,
                                                   .box_depth = 1}),
                       .query_map = make_tensor_map({.data = args.q.data,
                                                     .rows = heads,
                                                     .depth = tokens,
                                                     .row_stride_bytes = at_least_16(args.q.stride_elems[1]),
                                                     .depth_stride_bytes = at_least_16(args.q.stride_elems[0]),
                                                     .box_rows = wide ? 64 : 32,
                                                     .box_depth = most}),
                       .place = KeyColumns(args, keys),
                       .data = keys.data,
                       .page_stride = keys.page_stride,
                       .w = args.w,
                       .window = Windows(args.starts, args.ends, part.columns, part.begin, part.end),
                       .logits = part.logits,
                       .tokens = int(tokens),
                       .heads = int(heads),
                       .fill = args.fill,
                       .fill_splits = int(ceil_div(blocks, tokens)),
                       .tiles_shift = std::countr_zero(uint32_t(keys.page_tokens / kKeys)),
                       .by_blocks = Divisor(uint64_t(blocks))};
    if (wide && most == 1) return launch_few<FewShape<64, 1>>(task, blocks, env);
    if (wide) return launch_few<FewShape<64, 2>>(task, blocks, env);
    if (most == 2) return launch_few<FewShape<32, 2>>(task, blocks, env);
    launch_few<FewShape<32, 4>>(task, blocks, env);
}

}  // namespace smla::cuda
