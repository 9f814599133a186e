#include "calls.h"

#include <cmath>

namespace contract {

namespace {

// Lists with holes of every kind, lengths below and above K, and look-alikes past them that name poison.
template <class Args>
void add_source(CallOf<Args>& call, smla_attend_source& source, const CacheShape& shape, int64_t tokens,
                int64_t width) {
    call.add_cache(source.cache, shape);
    constexpr int64_t holes[] = {-1, INT32_MIN, INT32_MAX, 2147480000};
    const int64_t rows = capacity(source.cache), poison = rows - 1;
    call.add(source.rows, SMLA_I32, {tokens, width}, 8, 2);
    call.add(source.lengths, SMLA_I32, {tokens}, 0, 2);
    std::uniform_int_distribution<int64_t> pick(0, rows - 2);
    for (int64_t t = 0; t < tokens; ++t) {
        const int64_t length = t % 4 == 1 ? width + 9 : t % 4 == 3 ? width / 2 : width;
        set_int(source.lengths, t, 0, length);
        for (int64_t j = 0; j < width; ++j) {
            const int64_t row = pick(call.memory.rng);
            const bool hole = (t + j) % 7 == 3 || !is_row(source.cache, row);
            set_int(source.rows, t, j, j >= length ? poison : hole ? holes[j % 4] : row);
        }
    }
    for (int64_t row = 0; row < poison; ++row)
        if (is_row(source.cache, row)) write_normal(source.cache, row, call.memory.rng);
}

struct Kind {
    smla_format primary = SMLA_FP8_656, extra = SMLA_FORMAT_NONE;
    smla_dtype q = SMLA_BF16, out = SMLA_BF16;
    int64_t heads = 6, width = 576, value_width = 512, rows = 40;
    int64_t pairs = 0;  // rotated back
};

std::unique_ptr<Call> attend(int64_t tokens, const Kind& kind) {
    auto call = std::make_unique<CallOf<smla_attend_args>>("", SMLA_STAGE_ATTEND, smla_attend);
    auto& a = call->with;
    a.softmax_scale = 1 / std::sqrt(double(kind.width));
    a.q_scale = kind.q == SMLA_E4M3 ? 0.5 : 0;
    call->add_normal(a.q, kind.q, {tokens, kind.heads, kind.width});
    add_source(*call, a.primary, {kind.primary, int32_t(kind.width), 8, 0, 5}, tokens, kind.rows);
    if (kind.extra)
        add_source(*call, a.extra, {kind.extra, int32_t(kind.width), 2, 3, 20}, tokens, kind.rows / 2);
    call->add_normal(a.sink, SMLA_F32, {kind.heads}, 0, 2);
    call->add(a.out, kind.out, {tokens, kind.heads, kind.value_width});
    call->add(a.lse, SMLA_F32, {tokens, kind.heads}, 8, 2);
    call->add(a.max_logits, SMLA_F32, {tokens, kind.heads});
    if (kind.pairs) {
        fill_int(call->add(a.out_positions, SMLA_I64, {tokens}, 0, 2),
                 [](int64_t t, int64_t) { return 1000 * t + 7; });
        call->add(a.out_frequencies, SMLA_F64, {kind.pairs});
        for (int64_t i = 0; i < kind.pairs; ++i)
            set(a.out_frequencies, i, 0, 0, std::pow(10000., -double(i) / double(kind.pairs)));
    }
    call->choices = {{"args.precision", &a.precision, 0, 2},
                     {"args.lse_base", &a.lse_base, 0, 1},
                     {"args.empty_lse", &a.empty_lse, 0, 1}};
    call->positives = {{"args.softmax_scale", &a.softmax_scale}};
    if (kind.q == SMLA_E4M3) call->positives.push_back({"args.q_scale", &a.q_scale});
    return call;
}

std::unique_ptr<Call> attend_656(int64_t tokens) { return attend(tokens, {}); }
std::unique_ptr<Call> attend_v4(int64_t tokens) {
    return attend(tokens, {.primary = SMLA_FP8_584, .extra = SMLA_FP8_584, .width = 512, .pairs = 32});
}
std::unique_ptr<Call> attend_f32_rows(int64_t tokens) {
    return attend(tokens,
                  {.primary = SMLA_ROW_F32, .q = SMLA_F32, .out = SMLA_F32, .width = 40, .value_width = 33});
}
std::unique_ptr<Call> attend_fp8_q(int64_t tokens) {
    return attend(tokens, {.primary = SMLA_FP8_512, .q = SMLA_E4M3, .width = 512});
}

std::unique_ptr<Call> merge(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_merge_args>>("", SMLA_STAGE_MERGE, smla_merge);
    auto& a = call->with;
    constexpr int64_t parts = 3, heads = 5, width = 33;
    call->add(a.partials, SMLA_BF16, {parts, tokens, heads, width});
    call->add_normal(a.lse, SMLA_F32, {parts, tokens, heads}, 8, 2);
    for (int64_t i = 0; i < parts; ++i)
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t h = 0; h < heads; ++h) {
                if ((i + t + h) % 3 == 1 || t == 2) {  // an empty part: its numbers are poison
                    set(a.lse, i, t, h, h % 2 ? INFINITY : -INFINITY);
                    continue;
                }
                smla_tensor row = a.partials;
                row.ndim = 1;
                row.shape[0] = width;
                row.stride_elems[0] = a.partials.stride_elems[3];
                row.data = static_cast<uint16_t*>(a.partials.data) + i * a.partials.stride_elems[0] +
                           t * a.partials.stride_elems[1] + h * a.partials.stride_elems[2];
                fill_normal(row, call->memory.rng);
            }
    call->add_normal(a.sink, SMLA_F32, {heads}, 0, 2);
    call->add(a.out, SMLA_F16, {tokens, heads, width});
    call->add(a.lse_out, SMLA_F32, {tokens, heads});
    call->choices = {{"args.lse_base", &a.lse_base, 0, 1}};
    return call;
}

}  // namespace

std::vector<NamedMaker> attend_calls() {
    return {
        {"attend_656", attend_656},     {"attend_v4", attend_v4}, {"attend_f32_rows", attend_f32_rows},
        {"attend_fp8_q", attend_fp8_q}, {"merge", merge},
    };
}

}  // namespace contract
