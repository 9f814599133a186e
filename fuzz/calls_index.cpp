#include "calls.h"

namespace smla::fuzz {

void make(World& world, smla_quant_index_q_args& args) {
    Choices& choose = world.choose;
    const smla_dtype out = choose.any({SMLA_E4M3, SMLA_E2M1, SMLA_F32, SMLA_BF16});
    const int64_t tokens = choose.between(0, kTokens), heads = choose.between(0, 9);
    args.hadamard = choose.any({0, 1});
    const int64_t width = out == SMLA_E2M1 ? choose.any({32, 64, 96, 128}) : choose.between(1, 130);
    args.amax_floor = choose.any({0., 1e-10, 1.});
    args.factor = choose.any({1., 0.0625, 0.3});
    args.q = world.values(choose.any({SMLA_F32, SMLA_BF16, SMLA_F16}), {tokens, heads, width});
    args.w = world.values(choose.any({SMLA_F32, SMLA_BF16}), {tokens, heads});
    args.q_out = world.output(out, {tokens, heads, width});
    if (out == SMLA_E2M1) args.scales = world.output(SMLA_E8M0, {tokens, heads, width / 32});
    args.w_out = world.output(SMLA_F32, {tokens, heads}, 1e-4);
    if (args.hadamard) {  // the rotation may round elsewhere, which moves values over the edge of a code
        world.ignore(args.q_out);
        world.ignore(args.w_out);
        if (present(args.scales)) world.ignore(args.scales);
    }
}

namespace {

// All of a score call but the logits; returns the columns.
template <class Args>
int64_t make_inputs(World& world, Args& args) {
    Choices& choose = world.choose;
    const smla_format format =
        choose.any({SMLA_ROW_F32, SMLA_ROW_BF16, SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68});
    const int32_t own = find_format(format)->width, width = own ? own : int32_t(choose.between(1, 130));
    const int64_t tokens = choose.between(0, kTokens), heads = choose.between(1, 20),
                  columns = choose.between(0, 60);
    smla_dtype q = choose.any({SMLA_E4M3, SMLA_F32, SMLA_BF16, SMLA_E2M1});
    if (q == SMLA_E2M1 && width % 32 != 0) q = SMLA_F32;
    if constexpr (requires { args.fill; }) args.fill = choose.any({0, 1});
    args.q = world.values(q, {tokens, heads, width});
    if (q == SMLA_E2M1) args.q_scales = world.values(SMLA_E8M0, {tokens, heads, width / 32});
    args.w = world.powers(SMLA_F32, {tokens, heads});
    args.keys = world.cache(format, width);
    if (choose.flag()) {
        const int64_t requests = choose.between(0, kTokens), blocks = choose.between(0, 8);
        args.block_table =
            world.indices(SMLA_I32, {requests, blocks}, 0, std::max<int64_t>(args.keys.pages - 1, 0));
        args.request_of_token = world.indices(SMLA_I32, {tokens}, 0, std::max<int64_t>(requests - 1, 0));
    }
    if (choose.flag()) args.starts = world.indices(SMLA_I32, {tokens}, 0, columns);
    args.ends = world.indices(SMLA_I32, {tokens}, 0, columns);
    return columns;
}

// Sums of quarters times powers of two are exact; with block scales their range grows past f32's 24 bits.
template <class Args>
double logit_tolerance(const Args& args) {
    return args.q.dtype == SMLA_E2M1 || args.keys.format == SMLA_INDEX_MXFP4_68 ? 0.05 : 0;
}

template <class Args>
void make_outputs(World& world, Args& args, int64_t tokens) {
    Choices& choose = world.choose;
    const int64_t k = choose.between(0, 40);
    args.relative = choose.any({0, 1});
    args.indices = world.output(SMLA_I32, {tokens, k});
    if (choose.flag()) args.selected = world.output(SMLA_F32, {tokens, k});
    if (choose.flag()) args.counts = world.output(SMLA_I32, {tokens});
}

}  // namespace

void make(World& world, smla_score_args& args) {
    const int64_t columns = make_inputs(world, args);
    args.logits = world.output(SMLA_F32, {args.q.shape[0], columns}, logit_tolerance(args));
}

void make(World& world, smla_select_args& args) {
    Choices& choose = world.choose;
    const int64_t tokens = choose.between(0, kTokens), columns = choose.between(0, 300);
    args.scores = world.hostile(choose.any({SMLA_F32, SMLA_BF16, SMLA_F16}), {tokens, columns});
    if (choose.below(3) == 0) args.ids = world.indices(SMLA_I32, {tokens, columns}, -1, 100);
    if (choose.flag()) args.starts = world.indices(SMLA_I32, {tokens}, 0, columns);
    if (choose.flag()) args.ends = world.indices(SMLA_I32, {tokens}, 0, columns);
    make_outputs(world, args, tokens);
    if (present(args.ids)) args.relative = 0;
}

void make(World& world, smla_score_select_args& args) {
    args.score.struct_size = sizeof args.score;
    args.select.struct_size = sizeof args.select;
    args.columns = int32_t(make_inputs(world, args.score));
    args.score.fill = 0;
    make_outputs(world, args.select, args.score.q.shape[0]);
    if (logit_tolerance(args.score) > 0) {  // ties may fall either way
        world.ignore(args.select.indices);
        if (present(args.select.selected)) world.ignore(args.select.selected);
    }
}

void make(World& world, smla_score_select_blocks_args& args) {
    Choices& choose = world.choose;
    args.columns = int32_t(make_inputs(world, args));
    args.block_size = int32_t(choose.between(1, 20));
    const int64_t tokens = args.q.shape[0], blocks = ceil_div(args.columns, args.block_size);
    if (choose.flag()) args.blocks = world.indices(SMLA_I32, {tokens, choose.between(0, 9)}, -1, blocks);
    make_outputs(world, args, tokens);
    const double tolerance = logit_tolerance(args);
    if (choose.flag()) args.block_maxima = world.output(SMLA_F32, {tokens, blocks}, tolerance);
    if (choose.flag()) args.best_blocks = world.output(SMLA_I32, {tokens, choose.between(0, 9)});
    if (tolerance == 0) return;
    world.ignore(args.indices);  // ties may fall either way
    if (present(args.selected)) world.ignore(args.selected);
    if (present(args.best_blocks)) world.ignore(args.best_blocks);
}

void make(World& world, smla_map_args& args) {
    Choices& choose = world.choose;
    const int64_t tokens = choose.between(0, kTokens), columns = choose.between(0, 20);
    const int64_t requests = choose.between(0, kTokens), blocks = choose.between(0, 6);
    args.page_tokens = int32_t(choose.between(1, 20));
    if (choose.flag()) args.page_rows = args.page_tokens + int32_t(choose.between(0, 3));
    args.positions = world.indices(SMLA_I32, {tokens, columns}, -1, args.page_tokens * blocks);
    args.request_of_token = world.indices(SMLA_I32, {tokens}, 0, std::max<int64_t>(requests - 1, 0));
    args.block_table = world.indices(SMLA_I32, {requests, blocks}, 0, 1000);
    args.rows = choose.below(4) == 0 ? args.positions : world.output(SMLA_I32, {tokens, columns});
    if (choose.flag()) args.counts = world.output(SMLA_I32, {tokens});
}

}  // namespace smla::fuzz
