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
    const FewRows group(args, part);
    const int blocks = std::max(1, env.device->facts().multiprocessors);
    const auto at_least_16 = [](int64_t stride) { return std::max<int64_t>(stride, 16); };
    const FewTask task{
        .key_map = make_tensor_map({.data = keys.data,
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
                                      .box_rows = group.heads,
                                      .box_depth = group.rows}),
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
        .tiles_shift = std::countr_zero(uint32_t(keys.page_tokens / kKeys)),
        .by_blocks = Divisor(uint64_t(blocks))};
    constexpr auto e4m3 = Products::e4m3, f16 = Products::f16;
    const bool wide = group.heads == 64, many = group.heads * group.rows > 64;
    if (args.precision != SMLA_PRECISION_ROUNDED) {
        if (wide) return launch_few<FewShape<64, 1, f16>>(task, blocks, env);
        return launch_few<FewShape<32, 2, f16>>(task, blocks, env);
    }
    if (wide && many) return launch_few<FewShape<64, 2, e4m3>>(task, blocks, env);
    if (wide) return launch_few<FewShape<64, 1, e4m3>>(task, blocks, env);
    if (many) return launch_few<FewShape<32, 4, e4m3>>(task, blocks, env);
    launch_few<FewShape<32, 2, e4m3>>(task, blocks, env);
}

}  // namespace smla::cuda
