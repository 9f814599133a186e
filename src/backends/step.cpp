#include "backends/step.h"

namespace smla {

namespace {

bool is_f64(const Tensor& tensor) { return tensor.dtype == SMLA_F64; }

// Queries in the type that the index cache is scored with: fp8 keys with e4m3 queries, mxfp4 with e2m1, rows
// plain.
struct IndexQuery {
    Tensor q, scales, w;
};

IndexQuery quantise_index_q(Runner& run, const IndexInput& in, const smla_cache& keys) {
    const int64_t tokens = in.q.shape[0], heads = in.q.shape[1], width = in.q.shape[2];
    const bool fp8 = keys.format == SMLA_INDEX_FP8_132, fp4 = keys.format == SMLA_INDEX_MXFP4_68;
    const smla_dtype plain = is_f64(in.q) ? SMLA_F64 : SMLA_F32;
    IndexQuery out{};
    out.q = run.activation(fp8 ? SMLA_E4M3 : fp4 ? SMLA_E2M1 : plain, {tokens, heads, width});
    if (fp4) out.scales = run.activation(SMLA_E8M0, {tokens, heads, width / 32});
    out.w = run.activation(plain, {tokens, heads});
    run.run<Stage::quant_index_q>({.hadamard = in.hadamard,
                                   .amax_floor = in.amax_floor,
                                   .factor = in.factor,
                                   .q = in.q,
                                   .w = in.w,
                                   .q_out = out.q,
                                   .scales = out.scales,
                                   .w_out = out.w});
    run.tap("index_w", out.w);
    return out;
}

// The best columns of [0, ends[t]) of each token, as positions (or entry numbers), ascending, then -1.
void select_columns(Runner& run, const StepBatch& batch, const IndexInput& in, const CacheGroup& keys,
                    const Tensor& ends, const Tensor& indices) {
    const IndexQuery query = quantise_index_q(run, in, keys.cache);
    smla_score_args score{.struct_size = sizeof(smla_score_args),
                          .fill = 0,
                          .q = query.q,
                          .q_scales = query.scales,
                          .w = query.w,
                          .keys = keys.cache,
                          .block_table = keys.block_table,
                          .request_of_token = batch.request_of_token,
                          .starts = {},
                          .ends = ends,
                          .logits = {}};
    smla_select_args select{};
    select.struct_size = sizeof select;
    select.indices = indices;
    run.run<Stage::score_select>({.columns = int32_t(batch.max_columns), .score = score, .select = select});
    if (run.tapped()) {  // whole logits exist only for those who look at them
        score.fill = 1;
        score.logits = run.activation(is_f64(in.q) ? SMLA_F64 : SMLA_F32, {in.q.shape[0], batch.max_columns});
        run.run<Stage::score>(score);
        run.tap("index_score", score.logits);
    }
    run.tap("topk", indices);
}

void map_rows(Runner& run, const StepBatch& batch, const CacheGroup& group, const Tensor& positions,
              const Tensor& rows) {
    run.run<Stage::map>({.page_tokens = group.cache.page_tokens,
                         .page_rows = group.cache.page_rows,
                         .positions = positions,
                         .request_of_token = batch.request_of_token,
                         .block_table = group.block_table,
                         .rows = rows});
}

Tensor tokens_of(const Tensor& tensor, int64_t begin, int64_t end) {
    return present(tensor) ? slice(tensor, 0, begin, end) : tensor;
}

// A captured graph or a kernel tuned for one query length wants decodes and prefill chunks in calls of their
// own; scratch is sized for all tokens at once, which no part exceeds.
void attend_in_parts(Runner& run, const StepBatch& batch, const smla_attend_args& whole) {
    if (batch.parts.empty() || run.sizing()) return run.run<Stage::attend>(whole);
    for (size_t i = 0; i + 1 < batch.parts.size(); ++i) {
        const int64_t begin = batch.parts[i], end = batch.parts[i + 1];
        smla_attend_args part = whole;
        for (Tensor* each : {&part.q, &part.primary.rows, &part.primary.lengths, &part.extra.rows,
                             &part.extra.lengths, &part.out, &part.lse})
            *each = tokens_of(*each, begin, end);
        if (begin < end) run.run<Stage::attend>(part);
    }
}

// [T,H,nope + rope] to [T,H,L + rope].
Tensor absorb_query(Runner& run, const StepBatch& batch, const DsaStep& step) {
    const int64_t latent = step.w_uk.shape[1], nope = step.w_uk.shape[2], width = step.q.shape[2];
    const Tensor q =
        run.activation(step.query_dtype, {step.q.shape[0], step.q.shape[1], latent + width - nope});
    run.run<Stage::absorb>({.x = slice(step.q, 2, 0, nope), .w = step.w_uk, .out = slice(q, 2, 0, latent)});
    if (nope == width) return q;
    const Tensor rotated = slice(q, 2, latent, latent + width - nope);
    run.run<Stage::rope>({.first = int32_t(nope),
                          .x = step.q,
                          .positions = batch.rope_position,
                          .frequencies = step.frequencies,
                          .out = rotated});
    run.tap("q_nope", slice(step.q, 2, 0, nope));
    run.tap("q_rope", rotated);
    return q;
}

}  // namespace

void run_dsa_step(Runner& run, const StepBatch& batch, const DsaStep& step) {
    const int64_t tokens = step.q.shape[0], heads = step.q.shape[1], topk = step.index.topk;
    const smla_dtype plain = is_f64(step.q) ? SMLA_F64 : SMLA_F32;

    if (present(step.latent))
        run.run<Stage::write_kv>(
            {.head = step.latent, .tail = step.k_rope, .slots = step.kv.slots, .cache = step.kv.cache});

    Tensor positions = step.forced_topk;
    if (present(step.index_k))
        run.run<Stage::write_index>({.hadamard = step.index.hadamard,
                                     .head = step.index_k,
                                     .slots = step.index_cache.slots,
                                     .cache = step.index_cache.cache});
    if (!present(positions)) {
        positions = present(step.topk) ? step.topk : run.activation(SMLA_I32, {tokens, topk});
        select_columns(run, batch, step.index, step.index_cache, batch.visible_tokens, positions);
    }
    const Tensor rows = run.activation(SMLA_I32, {tokens, positions.shape[1]});
    map_rows(run, batch, step.kv, positions, rows);

    const Tensor q = present(step.w_uk) ? absorb_query(run, batch, step) : step.q;
    smla_attend_args attend{};
    attend.softmax_scale = step.softmax_scale;
    attend.q = q;
    attend.primary.cache = step.kv.cache;
    attend.primary.rows = rows;
    attend.primary.lengths = step.row_lengths;
    attend.lse = step.lse;
    if (!present(step.w_uv)) {
        attend.out = step.out;
        return attend_in_parts(run, batch, attend);
    }
    const Tensor core = run.activation(plain, {tokens, heads, step.w_uv.shape[2]});
    attend.out = core;
    attend_in_parts(run, batch, attend);
    run.run<Stage::up_project>({.x = core, .w = step.w_uv, .out = step.out});
}

namespace {

void run_compressor(Runner& run, const StepBatch& batch, const HybridStep& step, const CompressInput& in,
                    const char* tap) {
    run.run<Stage::save_state>({.kv = in.kv,
                                .score = in.score,
                                .ape = in.ape,
                                .positions = batch.position,
                                .slots = in.state.slots,
                                .state = in.state.cache});
    smla_compress_args args{.struct_size = sizeof(smla_compress_args),
                            .ratio = step.ratio,
                            .hadamard = in.hadamard,
                            .eps = step.eps,
                            .state = in.state.cache,
                            .state_table = in.state.block_table,
                            .request_of_token = batch.request_of_token,
                            .positions = batch.position,
                            .slots = in.entries.slots,
                            .norm_weight = in.norm_weight,
                            .frequencies = step.frequencies,
                            .cache = in.entries.cache,
                            .entries = {}};
    if (run.tapped())
        args.entries =
            run.activation(is_f64(in.kv) ? SMLA_F64 : SMLA_F32, {in.kv.shape[0], in.norm_weight.shape[0]});
    run.run<Stage::compress>(args);
    run.tap(tap, args.entries);
}

}  // namespace

void run_hybrid_step(Runner& run, const StepBatch& batch, const HybridStep& step) {
    const int64_t tokens = step.q.shape[0], width = step.q.shape[2];
    if (present(step.kv))
        run.run<Stage::write_kv>({.head = step.kv, .slots = step.window.slots, .cache = step.window.cache});
    if (present(step.main.kv)) run_compressor(run, batch, step, step.main, "entries");

    smla_attend_args attend{};
    if (present(step.indexer.kv)) run_compressor(run, batch, step, step.indexer, "entries_index");
    if (step.ratio && present(step.entry_rows)) {
        attend.extra.rows = step.entry_rows;
    } else if (step.ratio) {
        Tensor entries = step.forced_topk;
        if (!present(entries)) {
            entries = present(step.topk) ? step.topk : run.activation(SMLA_I32, {tokens, step.index.topk});
            select_columns(run, batch, step.index, step.indexer.entries, step.visible_entries, entries);
        }
        attend.extra.rows = run.activation(SMLA_I32, {tokens, entries.shape[1]});
        map_rows(run, batch, step.main.entries, entries, attend.extra.rows);
    }
    if (step.ratio) {
        attend.extra.cache = step.main.entries.cache;
        attend.extra.lengths = step.entry_lengths;
    }

    attend.softmax_scale = step.softmax_scale;
    attend.q_scale = step.q_scale;
    attend.q = step.q;
    attend.primary = {.cache = step.window.cache, .rows = step.window_rows, .lengths = step.window_lengths};
    attend.sink = step.sink;
    attend.out = step.out;
    attend.lse = step.lse;
    attend_in_parts(run, batch, attend);
    run.tap("core_rotated", step.out);
    if (!present(step.frequencies)) return;
    run.run<Stage::inverse_rope>({.inverse = 1,
                                  .first = int32_t(width - 2 * step.frequencies.shape[0]),
                                  .x = step.out,
                                  .positions = batch.rope_position,
                                  .frequencies = step.frequencies});
    run.tap("core_out", step.out);
}

}  // namespace smla
