#include "calls.h"

namespace contract {

namespace {

constexpr int64_t kHoleEvery = 4;  // of the tokens, one in so many writes nowhere

// Slots of the first N tokens: rows of their own, some of them holes; the last token is padding.
template <class Args>
void add_slots(CallOf<Args>& call, smla_tensor& slots, smla_dtype dtype, int64_t tokens,
               const smla_cache& cache) {
    const int64_t n = std::max<int64_t>(tokens - 1, 0);
    fill_int(call.add(slots, dtype, {n}, 0, 3), [&](int64_t t, int64_t) {
        return t % kHoleEvery == 2 ? (t % 8 == 2 ? -1 : int64_t(INT32_MAX))
                                   : (7 * t + 3) % (cache.pages * cache.page_tokens);
    });
    for (int64_t t = 0; t < n; ++t) call.memory.allow_record(cache, get_int(slots, t));
}

template <smla_stage Stage, smla_format Format, smla_dtype Slot>
std::unique_ptr<Call> write(int64_t tokens) {
    constexpr bool index = Stage == SMLA_STAGE_WRITE_INDEX;
    auto call =
        std::make_unique<CallOf<smla_write_args>>("", Stage, index ? smla_write_index : smla_write_kv);
    auto& a = call->with;
    const int64_t width = Format == SMLA_FP8_656 ? 576 : index ? 128 : 512, tail = index ? 0 : 64;
    const CacheShape shape{Format, int32_t(width), 5, 0, 9};
    a.hadamard = index;
    call->add_normal(a.head, SMLA_BF16, {tokens, width - tail});
    if (tail) call->add_normal(a.tail, SMLA_F32, {tokens, tail}, 8, 2);
    call->add_cache(a.cache, shape);
    add_slots(*call, a.slots, Slot, tokens, a.cache);
    call->choices = {{"args.hadamard", &a.hadamard, 0, index ? 1 : 0},
                     {"args.reserved", &a.reserved, 0, 0},
                     {"args.norm_kind", &a.norm_kind, 0, 1},
                     {"args.rope_style", &a.rope_style, 0, 1}};
    return call;
}

// The same call, its rows normed and rotated on the way.
template <smla_stage Stage, smla_format Format, smla_dtype Slot>
std::unique_ptr<Call> write_changed(int64_t tokens) {
    auto call = write<Stage, Format, Slot>(tokens);
    auto& with = static_cast<CallOf<smla_write_args>&>(*call);
    auto& a = with.with;
    constexpr bool index = Stage == SMLA_STAGE_WRITE_INDEX;
    constexpr int64_t pairs = 32;
    const int64_t head = a.head.shape[1], width = head + (index ? 0 : 64);
    a.norm_kind = index ? SMLA_NORM_LAYER : SMLA_NORM_RMS;
    a.rope_style = index ? SMLA_ROPE_HALF : SMLA_ROPE_INTERLEAVED;
    a.rope_first = index ? 0 : int32_t(width - 2 * pairs);
    a.eps = 1e-6;
    with.add_normal(a.norm_weight, SMLA_BF16, {head});
    if (index) with.add_normal(a.norm_bias, SMLA_F32, {head});
    fill_int(with.add(a.positions, SMLA_I32, {tokens}), [](int64_t t, int64_t) { return 100 * t + 5; });
    with.add(a.frequencies, SMLA_F64, {pairs});
    for (int64_t i = 0; i < pairs; ++i)
        set(a.frequencies, i, 0, 0, std::pow(10000., -double(i) / double(pairs)));
    with.add(a.values, SMLA_F32, {tokens, width}, 8, 2);
    with.positives = {{"args.eps", &a.eps}};
    return call;
}

std::unique_ptr<Call> save_state(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_save_state_args>>("", SMLA_STAGE_SAVE_STATE, smla_save_state);
    auto& a = call->with;
    call->add_normal(a.kv, SMLA_BF16, {tokens, 48}, 8, 2);
    call->add_normal(a.score, SMLA_F32, {tokens, 48});
    call->add_normal(a.ape, SMLA_F32, {4, 48});
    fill_int(call->add(a.positions, SMLA_I64, {tokens}), [](int64_t t, int64_t) { return 11 * t; });
    call->add_cache(a.state, {SMLA_STATE_F32, 96, 4, 0, 9});
    add_slots(*call, a.slots, SMLA_I32, tokens, a.state);
    call->choices = {{"args.reserved", &a.reserved, 0, 0}};
    return call;
}

// Two requests; every third token closes nothing. Only the state rows that are pooled are not poison.
template <int32_t Ratio, smla_format Format, int32_t NoOverlap = 0>
std::unique_ptr<Call> compress(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_compress_args>>("", SMLA_STAGE_COMPRESS, smla_compress);
    auto& a = call->with;
    constexpr int32_t width = Format == SMLA_INDEX_FP8_132 ? 128 : 512,
                      coff = Ratio == 4 && !NoOverlap ? 2 : 1;
    const int64_t blocks = tokens / 2 * Ratio / 4 + 2;
    a.ratio = Ratio;
    a.hadamard = Format == SMLA_INDEX_FP8_132;
    a.no_overlap = NoOverlap;
    if (!NoOverlap) a.eps = 1e-6;
    call->add_cache(a.state, {SMLA_STATE_F32, 2 * coff * width, 4, 0, 2 * blocks + 1});
    fill_int(call->add(a.state_table, SMLA_I32, {2, blocks}),
             [&](int64_t r, int64_t b) { return 2 * b + r; });
    fill_int(call->add(a.request_of_token, SMLA_I32, {tokens}), [](int64_t t, int64_t) { return t % 2; });
    fill_int(call->add(a.positions, SMLA_I32, {tokens}),
             [](int64_t t, int64_t) { return t / 2 * Ratio + Ratio - 1 - (t % 3 == 2); });
    call->add_cache(a.cache, {Format, width, 5, 0, tokens / 2 + 9});
    add_slots(*call, a.slots, SMLA_I64, tokens, a.cache);
    if (!NoOverlap) call->add_normal(a.norm_weight, SMLA_BF16, {width});
    call->add(a.frequencies, SMLA_F64, {32});
    for (int64_t i = 0; i < 32; ++i) set(a.frequencies, i, 0, 0, 1. / double(i + 1));
    call->add(a.entries, SMLA_F32, {tokens, width}, 8, 2);
    call->add(a.latents, SMLA_F32, {tokens, width}, 8, 2);
    for (int64_t t = 0; t < tokens; ++t) {
        const int64_t position = get_int(a.positions, t);
        for (int64_t p = std::max<int64_t>(position + 1 - coff * Ratio, 0); p <= position; ++p)
            write_normal(a.state, get_int(a.state_table, t % 2, p / 4) * 4 + p % 4, call->memory.rng);
    }
    if (!NoOverlap) call->positives = {{"args.eps", &a.eps}};
    call->choices = {{"args.hadamard", &a.hadamard, 0, Format == SMLA_INDEX_FP8_132 ? 1 : 0},
                     {"args.no_overlap", &a.no_overlap, 0, 1}};
    return call;
}

template <bool Raw>
std::unique_ptr<Call> gather(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_gather_args>>("", SMLA_STAGE_GATHER, smla_gather);
    auto& a = call->with;
    const int64_t width = Raw ? 128 : 576, blocks = tokens / 4 + 3;
    a.raw = Raw;
    call->add_cache(a.cache, {Raw ? SMLA_INDEX_FP8_132 : SMLA_FP8_656, 0, 4, 0, 2 * blocks});
    fill_int(call->add(a.block_table, SMLA_I32, {2, blocks}),
             [&](int64_t r, int64_t b) { return (2 * b + r) % (2 * blocks); });
    fill_int(call->add(a.starts, SMLA_I32, {2}, 0, 2), [](int64_t r, int64_t) { return 3 * r; });
    const int64_t first = tokens / 3, rows = tokens + 2;  // two rows of out stay untouched
    fill_int(call->add(a.cu, SMLA_I32, {3}), [&](int64_t r, int64_t) {
        return r == 0 ? 0 : r == 1 ? first : tokens;
    });
    for (int64_t r = 0; r < 2; ++r)
        for (int64_t i = 0; i < get_int(a.cu, r + 1) - get_int(a.cu, r); ++i) {
            const int64_t token = get_int(a.starts, r) + i;
            write_normal(a.cache, get_int(a.block_table, r, token / 4) * 4 + token % 4, call->memory.rng);
        }
    call->add(a.out, Raw ? SMLA_E4M3 : SMLA_BF16, {rows, width});
    if (Raw) call->add(a.scales, SMLA_F32, {rows});
    call->memory.allow(smla_tensor(a.out).shape[0] ? [&] {
        smla_tensor used = a.out;
        used.shape[0] = tokens;
        return used;
    }() : a.out);
    if (Raw) {
        smla_tensor used = a.scales;
        used.shape[0] = tokens;
        call->memory.allow(used);
    }
    call->choices = {{"args.raw", &a.raw, 0, 1}};
    call->has_tokens = false;
    return call;
}

std::unique_ptr<Call> copy_pages(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_copy_pages_args>>("", SMLA_STAGE_COPY_PAGES, smla_copy_pages);
    auto& a = call->with;
    call->add_cache(a.source, {SMLA_FP8_584, 0, 4, 0, tokens + 1, 128});
    call->add_cache(a.target, {SMLA_FP8_584, 0, 4, 0, tokens + 3, 256});
    for (int64_t row = 0; row < a.source.pages * 4; ++row) write_normal(a.source, row, call->memory.rng);
    fill_int(call->add(a.pairs, SMLA_I32, {tokens, 2}), [&](int64_t i, int64_t side) {
        return side ? i + 2 : i % 3 == 1 ? -1 : tokens - i;
    });
    for (int64_t i = 0; i < tokens; ++i)
        for (int64_t row = 0; row < 4 && get_int(a.pairs, i, 0) >= 0; ++row)
            call->memory.allow_record(a.target, get_int(a.pairs, i, 1) * 4 + row);
    call->choices = {{"args.reserved", &a.reserved, 0, 0}};
    return call;
}

std::unique_ptr<Call> map(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_map_args>>("", SMLA_STAGE_MAP, smla_map);
    auto& a = call->with;
    a.page_tokens = 4;
    a.page_rows = 12;
    fill_int(call->add(a.positions, SMLA_I32, {tokens, 9}, 8, 2), [](int64_t t, int64_t j) {
        return j == 4 ? -1 : j == 6 ? INT32_MAX : j == 7 ? INT32_MIN : (5 * t + j) % 24;
    });
    fill_int(call->add(a.request_of_token, SMLA_I32, {tokens}), [](int64_t t, int64_t) { return t % 3; });
    fill_int(call->add(a.block_table, SMLA_I32, {2, 6}), [](int64_t r, int64_t b) { return 6 * r + b; });
    call->add(a.rows, SMLA_I32, {tokens, 9}, 8, 3);
    call->add(a.counts, SMLA_I32, {tokens}, 0, 2);
    call->add(a.lengths, SMLA_I32, {tokens}, 0, 2);
    fill_int(call->add(a.limits, SMLA_I32, {tokens}), [](int64_t t, int64_t) { return t % 4 * 3; });
    call->choices = {{"args.page_tokens", &a.page_tokens, 1, INT32_MAX}};
    return call;
}

// Lists of pools of 3 tokens, and the tokens behind the last whole one.
std::unique_ptr<Call> map_pools(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_map_args>>("", SMLA_STAGE_MAP, smla_map);
    auto& a = call->with;
    a.page_tokens = 4;
    a.page_rows = 12;
    a.pool_tokens = 3;
    fill_int(call->add(a.positions, SMLA_I32, {tokens, 5}, 8, 2), [](int64_t t, int64_t j) {
        return j == 2 ? -1 : j > t ? -1 : j == 3 ? INT32_MAX : (5 * t + j) % 8;
    });
    fill_int(call->add(a.request_of_token, SMLA_I32, {tokens}), [](int64_t t, int64_t) { return t % 3; });
    fill_int(call->add(a.block_table, SMLA_I32, {2, 6}), [](int64_t r, int64_t b) { return 6 * r + b; });
    call->add(a.rows, SMLA_I32, {tokens, 17}, 8, 3);
    call->add(a.counts, SMLA_I32, {tokens}, 0, 2);
    call->add(a.lengths, SMLA_I32, {tokens}, 0, 2);
    fill_int(call->add(a.limits, SMLA_I32, {tokens}), [](int64_t t, int64_t) { return 5 - t % 4; });
    fill_int(call->add(a.visible_tokens, SMLA_I32, {tokens}, 0, 2),
             [](int64_t t, int64_t) { return 7 * t % 23; });
    call->choices = {{"args.page_tokens", &a.page_tokens, 1, INT32_MAX}};
    return call;
}

}  // namespace

std::vector<NamedMaker> cache_calls() {
    return {
        {"write_kv_656", write<SMLA_STAGE_WRITE_KV, SMLA_FP8_656, SMLA_I64>},
        {"write_kv_584", write<SMLA_STAGE_WRITE_KV, SMLA_FP8_584, SMLA_I32>},
        {"write_kv_584_changed", write_changed<SMLA_STAGE_WRITE_KV, SMLA_FP8_584, SMLA_I64>},
        {"write_index_132", write<SMLA_STAGE_WRITE_INDEX, SMLA_INDEX_FP8_132, SMLA_I64>},
        {"write_index_132_changed", write_changed<SMLA_STAGE_WRITE_INDEX, SMLA_INDEX_FP8_132, SMLA_I32>},
        {"write_index_mxfp4", write<SMLA_STAGE_WRITE_INDEX, SMLA_INDEX_MXFP4_68, SMLA_I32>},
        {"save_state", save_state},
        {"compress_4", compress<4, SMLA_FP8_584>},
        {"compress_8_index", compress<8, SMLA_INDEX_FP8_132>},
        {"gather", gather<false>},
        {"gather_raw", gather<true>},
        {"copy_pages", copy_pages},
        {"compress_4_pools", compress<4, SMLA_INDEX_FP8_132, 1>},
        {"map", map},
        {"map_pools", map_pools},
    };
}

}  // namespace contract
