#include "calls.h"

namespace contract {

namespace {

constexpr int64_t kHeads = 4, kWidth = 128, kColumns = 70, kPage = 16;

template <smla_dtype Out, bool Turned = false>
std::unique_ptr<Call> quant_index_q(int64_t tokens) {
    auto call =
        std::make_unique<CallOf<smla_quant_index_q_args>>("", SMLA_STAGE_QUANT_INDEX_Q, smla_quant_index_q);
    auto& a = call->with;
    a.hadamard = 1;
    a.factor = 0.044;
    call->add_normal(a.q, SMLA_BF16, {tokens, kHeads, kWidth});
    call->add_normal(a.w, SMLA_F32, {tokens, kHeads}, 8, 2);
    call->add(a.q_out, Out, {tokens, kHeads, kWidth});
    if (Out == SMLA_E2M1) call->add(a.scales, SMLA_E8M0, {tokens, kHeads, kWidth / 32});
    call->add(a.w_out, SMLA_F32, {tokens, kHeads}, 8, 3);
    if (Turned) {
        constexpr int64_t pairs = 32;
        a.rope_first = 8;
        fill_int(call->add(a.positions, SMLA_I64, {tokens}), [](int64_t t, int64_t) { return 100 * t + 5; });
        call->add(a.frequencies, SMLA_F64, {pairs});
        for (int64_t i = 0; i < pairs; ++i)
            set(a.frequencies, i, 0, 0, std::pow(10000., -double(i) / double(pairs)));
        call->add(a.rotated, SMLA_BF16, {tokens, kHeads, kWidth}, 8, 2);
    }
    call->choices = {{"args.hadamard", &a.hadamard, 0, 1}, {"args.rope_style", &a.rope_style, 0, 1}};
    call->positives = {{"args.factor", &a.factor}, {"args.amax_floor", &a.amax_floor, true}};
    return call;
}

// The inputs of score: windows of all kinds, a request that does not exist, and pages that nobody names.
template <class Args, class Score>
void add_score(CallOf<Args>& call, Score& a, int64_t tokens, bool paged, bool e2m1) {
    if (e2m1) {
        call.add_normal(a.q, SMLA_E2M1, {tokens, kHeads, kWidth});
        const smla_tensor& scales = call.add(a.q_scales, SMLA_E8M0, {tokens, kHeads, kWidth / 32});
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t h = 0; h < kHeads; ++h) {
                auto* const row = static_cast<uint8_t*>(scales.data) + t * scales.stride_elems[0] +
                                  h * scales.stride_elems[1];
                for (int64_t i = 0; i < kWidth / 32; ++i) row[i] = uint8_t(122 + (t + h + i) % 6);
            }
    } else {
        call.add_normal(a.q, paged ? SMLA_E4M3 : SMLA_BF16, {tokens, kHeads, kWidth});
    }
    call.add_normal(a.w, SMLA_F32, {tokens, kHeads}, 8, 2);
    const int64_t pages = paged ? 12 : 5;
    call.add_cache(a.keys, {paged ? SMLA_INDEX_FP8_132 : SMLA_ROW_BF16, kWidth, kPage, 0, pages});
    if (paged) {
        fill_int(call.add(a.block_table, SMLA_I32, {2, 5}),
                 [](int64_t r, int64_t b) { return 2 * b + r + 1; });
        fill_int(call.add(a.request_of_token, SMLA_I32, {tokens}),
                 [](int64_t t, int64_t) { return t % 4 == 3 ? 9 : t % 2; });
    }
    fill_int(call.add(a.starts, SMLA_I32, {tokens}, 0, 2),
             [](int64_t t, int64_t) { return t % 3 == 0 ? INT32_MIN : 3 * t % 40; });
    fill_int(call.add(a.ends, SMLA_I32, {tokens}),
             [](int64_t t, int64_t) { return t % 5 == 2 ? -7 : 20 + 9 * t % 45; });
    for (int64_t page = paged ? 1 : 0; page < (paged ? 11 : 5); ++page)
        for (int64_t i = 0; i < kPage; ++i) write_normal(a.keys, page * kPage + i, call.memory.rng);
}

template <bool Paged, bool E2m1 = false>
std::unique_ptr<Call> score(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_score_args>>("", SMLA_STAGE_SCORE, smla_score);
    auto& a = call->with;
    add_score(*call, a, tokens, Paged, E2m1);
    a.fill = Paged;
    call->add(a.logits, SMLA_F32, {tokens, kColumns});
    call->choices = {{"args.fill", &a.fill, 0, 1},
                     {"args.precision", &a.precision, 0, 2},
                     {"args.reserved", &a.reserved, 0, 0}};
    return call;
}

// Rows of a cache for what is selected, of a table of two requests that is too narrow for the last columns.
template <class Args>
void add_rows(CallOf<Args>& call, smla_select_args& a, int64_t tokens) {
    a.page_tokens = kPage;
    a.page_rows = kPage + 2;
    call.add(a.rows, SMLA_I32, {tokens, 24});
    fill_int(call.add(a.row_table, SMLA_I32, {2, 4}, 8, 2),
             [](int64_t r, int64_t b) { return b == 2 ? -1 : 7 * r + b; });
}

template <bool Ids>
std::unique_ptr<Call> select(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_select_args>>("", SMLA_STAGE_SELECT, smla_select);
    auto& a = call->with;
    a.relative = !Ids;
    call->add_normal(a.scores, SMLA_F32, {tokens, kColumns});
    for (int64_t t = 0; t < tokens; ++t)  // ties
        for (int64_t j = 0; j < kColumns; j += 3) set(a.scores, t, j, 0, double(j % 2));
    if (Ids)
        fill_int(call->add(a.ids, SMLA_I32, {tokens, kColumns}),
                 [](int64_t t, int64_t j) { return j % 9 == 4 ? -1 : 1000 * t + 13 * (kColumns - j); });
    fill_int(call->add(a.starts, SMLA_I32, {tokens}, 0, 2),
             [](int64_t t, int64_t) { return t % 3 == 0 ? INT32_MIN : 3 * t % 40; });
    fill_int(call->add(a.ends, SMLA_I32, {tokens}),
             [](int64_t t, int64_t) { return t % 5 == 2 ? INT32_MAX : 20 + 9 * t % 45; });
    call->add(a.indices, SMLA_I32, {tokens, 24});
    call->add(a.selected, SMLA_F32, {tokens, 24});
    call->add(a.counts, SMLA_I32, {tokens}, 0, 2);
    call->choices = {{"args.relative", &a.relative, 0, Ids ? 0 : 1}};
    if (Ids) return call;
    add_rows(*call, a, tokens);
    fill_int(call->add(a.request_of_token, SMLA_I32, {tokens}, 0, 2),
             [](int64_t t, int64_t) { return t % 4 == 3 ? 9 : t % 2; });
    call->choices.push_back({"args.page_tokens", &a.page_tokens, 1, INT32_MAX});
    return call;
}

template <bool E2m1>
std::unique_ptr<Call> score_select(int64_t tokens) {
    auto call =
        std::make_unique<CallOf<smla_score_select_args>>("", SMLA_STAGE_SCORE_SELECT, smla_score_select);
    auto& a = call->with;
    a.columns = kColumns;
    add_score(*call, a.score, tokens, true, E2m1);
    call->add(a.select.indices, SMLA_I32, {tokens, 24});
    call->add(a.select.selected, SMLA_F32, {tokens, 24});
    call->add(a.select.counts, SMLA_I32, {tokens}, 0, 2);
    add_rows(*call, a.select, tokens);
    call->choices = {{"args.score.fill", &a.score.fill, 0, 1},
                     {"args.score.precision", &a.score.precision, 0, 2},
                     {"args.score.reserved", &a.score.reserved, 0, 0},
                     {"args.select.relative", &a.select.relative, 0, 1},
                     {"args.select.page_tokens", &a.select.page_tokens, 1, INT32_MAX},
                     {"args.columns", &a.columns, 0, INT32_MAX}};
    return call;
}

// Candidates with holes, duplicates and blocks past the windows.
template <bool Listed, bool Paged, bool E2m1 = false>
std::unique_ptr<Call> score_select_blocks(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_score_select_blocks_args>>("", SMLA_STAGE_SCORE_SELECT_BLOCKS,
                                                                        smla_score_select_blocks);
    auto& a = call->with;
    a.columns = kColumns;
    a.block_size = 8;
    add_score(*call, a, tokens, Paged, E2m1);
    if (Listed)
        fill_int(call->add(a.blocks, SMLA_I32, {tokens, 7}, 8, 2),
                 [](int64_t t, int64_t i) { return (5 * t + 3 * i) % 8 - (i % 3 == 2 ? 1000 : i % 2); });
    call->add(a.indices, SMLA_I32, {tokens, 24});
    call->add(a.selected, SMLA_F32, {tokens, 24});
    call->add(a.counts, SMLA_I32, {tokens}, 0, 2);
    call->add(a.block_maxima, SMLA_F32, {tokens, 9});
    call->add(a.best_blocks, SMLA_I32, {tokens, 4});
    call->choices = {{"args.relative", &a.relative, 0, 1},
                     {"args.block_size", &a.block_size, 1, INT32_MAX},
                     {"args.columns", &a.columns, 0, INT32_MAX}};
    return call;
}

}  // namespace

std::vector<NamedMaker> index_calls() {
    return {
        {"quant_index_q_e4m3", quant_index_q<SMLA_E4M3>},
        {"quant_index_q_e2m1", quant_index_q<SMLA_E2M1>},
        {"quant_index_q_turned", quant_index_q<SMLA_E4M3, true>},
        {"quant_index_q_bf16", quant_index_q<SMLA_BF16>},
        {"score_paged", score<true>},
        {"score_ragged", score<false>},
        {"score_e2m1", score<true, true>},
        {"select", select<false>},
        {"select_ids", select<true>},
        {"score_select", score_select<false>},
        {"score_select_e2m1", score_select<true>},
        {"score_all_blocks", score_select_blocks<false, false>},
        {"score_listed_blocks", score_select_blocks<true, true>},
        {"score_blocks_e2m1", score_select_blocks<true, true, true>},
    };
}

}  // namespace contract
