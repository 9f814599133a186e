#include "problems.h"

#include <cmath>

namespace smla::cli {

namespace {

alignas(kCacheLine) char nowhere[kCacheLine];

smla_attend_source source_of(const ListShape& shape, const AttendShape& attend) {
    if (shape.format == SMLA_FORMAT_NONE) return {};
    return {.cache = cache_of(shape.format, attend.width, shape.pool_rows, shape.page_tokens),
            .rows = absent_data(SMLA_I32, {attend.tokens, shape.listed}),
            .lengths = absent_data(SMLA_I32, {attend.tokens})};
}

}  // namespace

Tensor absent_data(smla_dtype dtype, std::initializer_list<int64_t> shape) {
    return make_tensor(nowhere, dtype, shape);
}

smla_cache cache_of(smla_format format, int64_t width, int64_t rows, int32_t page_tokens) {
    const Format* known = find_format(format);
    smla_cache cache{};
    cache.data = nowhere;
    cache.format = format;
    cache.width = int32_t(width);
    cache.page_tokens = page_tokens;
    cache.pages = ceil_div(rows, page_tokens);
    cache.scale = known && known->scale == ScaleKind::per_tensor ? 0.03125f : 0.f;
    return cache;
}

smla_attend_args attend_args(const AttendShape& shape) {
    smla_attend_args args{};
    args.struct_size = sizeof args;
    args.precision = shape.precision;
    args.softmax_scale = 1 / std::sqrt(float(shape.width));
    args.q_scale = shape.q == SMLA_E4M3 ? 1.f : 0.f;
    args.q = absent_data(shape.q, {shape.tokens, shape.heads, shape.width});
    args.primary = source_of(shape.primary, shape);
    args.extra = source_of(shape.extra, shape);
    if (shape.sink) args.sink = absent_data(SMLA_F32, {shape.heads});
    args.out = absent_data(shape.out, {shape.tokens, shape.heads, shape.value_width});
    args.lse = absent_data(SMLA_F32, {shape.tokens, shape.heads});
    return args;
}

smla_score_args score_args(const ScoreShape& shape) {
    smla_score_args args{};
    args.struct_size = sizeof args;
    args.q = absent_data(shape.q, {shape.tokens, shape.heads, shape.width});
    if (shape.q == SMLA_E2M1)
        args.q_scales = absent_data(SMLA_E8M0, {shape.tokens, shape.heads, shape.width / 32});
    args.w = absent_data(SMLA_F32, {shape.tokens, shape.heads});
    args.precision = shape.precision;
    const int64_t pages = ceil_div(shape.columns, shape.page_tokens), requests = shape.requests();
    args.keys = cache_of(shape.format, shape.width, shape.columns * requests, shape.page_tokens);
    args.keys.pages = pages * requests;
    if (requests > 1 || shape.tokens == 1) {
        args.block_table = absent_data(SMLA_I32, {requests, pages});
        args.request_of_token = absent_data(SMLA_I32, {shape.tokens});
    }
    args.ends = absent_data(SMLA_I32, {shape.tokens});
    args.logits = absent_data(SMLA_F32, {shape.tokens, shape.columns});
    return args;
}

smla_select_args select_args(const SelectShape& shape) {
    smla_select_args args{};
    args.struct_size = sizeof args;
    args.scores = absent_data(SMLA_F32, {shape.tokens, shape.columns});
    args.indices = absent_data(SMLA_I32, {shape.tokens, shape.topk});
    return args;
}

smla_score_select_args score_select_args(const ScoreShape& shape, int64_t topk) {
    smla_score_select_args args{};
    args.struct_size = sizeof args;
    args.columns = int32_t(shape.columns);
    args.score = score_args(shape);
    args.score.logits = {};
    args.select = select_args({.tokens = shape.tokens, .columns = shape.columns, .topk = topk});
    args.select.scores = {};
    return args;
}

smla_merge_args merge_args(const MergeShape& shape) {
    smla_merge_args args{};
    args.struct_size = sizeof args;
    args.partials = absent_data(SMLA_F32, {shape.partials, shape.tokens, shape.heads, shape.value_width});
    args.lse = absent_data(SMLA_F32, {shape.partials, shape.tokens, shape.heads});
    args.out = absent_data(SMLA_F32, {shape.tokens, shape.heads, shape.value_width});
    args.lse_out = absent_data(SMLA_F32, {shape.tokens, shape.heads});
    return args;
}

}  // namespace smla::cli
