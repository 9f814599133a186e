#include "backends/step.h"

#include "ops/map/row_of.h"

#include <algorithm>

namespace smla {

namespace {

bool is_f64(const Tensor& tensor) { return tensor.dtype == SMLA_F64; }

// Queries in the dtype that the index keys require: e4m3 for fp8 keys, e2m1 for mxfp4, bf16 for bf16 rows if
// requested, else unchanged.
struct IndexQuery {
    Tensor q, scales, w;
};

IndexQuery quantise_index_q(Runner& run, const StepBatch& batch, const Indexer& in) {
    const smla_cache& keys = in.keys.cache;
    const int64_t tokens = in.q.shape[0], heads = in.q.shape[1], width = in.q.shape[2];
    const bool fp8 = keys.format == SMLA_INDEX_FP8_132, fp4 = keys.format == SMLA_INDEX_MXFP4_68;
    const bool bf16 = keys.format == SMLA_ROW_BF16 && in.query_dtype == SMLA_BF16;
    const smla_dtype plain = is_f64(in.q) ? SMLA_F64 : SMLA_F32;
    IndexQuery out{};
    out.q = run.activation(fp8    ? SMLA_E4M3
                           : fp4  ? SMLA_E2M1
                           : bf16 ? SMLA_BF16
                                  : plain,
                           {tokens, heads, width});
    if (fp4) out.scales = run.activation(SMLA_E8M0, {tokens, heads, width / 32});
    out.w = run.activation(plain, {tokens, heads});
    const bool rotates = present(in.rotation.frequencies);
    const Tensor rotated = rotates && run.taps() ? run.activation(plain, {tokens, heads, width}) : Tensor{};
    run.beside<Stage::quant_index_q>({.hadamard = in.hadamard,
                                      .amax_floor = in.amax_floor,
                                      .factor = in.factor,
                                      .q = in.q,
                                      .w = in.w,
                                      .q_out = out.q,
                                      .scales = out.scales,
                                      .w_out = out.w,
                                      .rope_style = in.rotation.style,
                                      .rope_first = in.rotation.first,
                                      .positions = rotates ? batch.rope_position : Tensor{},
                                      .frequencies = in.rotation.frequencies,
                                      .rotated = rotated});
    run.tap("index_q", rotates ? rotated : in.q);
    return out;
}

// Returns arguments that write a row of each token into `group`, and into `values` for an observer.
smla_write_args writing_of(Runner& run, const StepBatch& batch, const KeyRow& key, const CacheGroup& group) {
    const bool rotates = present(key.rotation.frequencies);
    const int64_t width = key.head.shape[1] + (present(key.tail) ? key.tail.shape[1] : 0);
    return {.head = key.head,
            .tail = key.tail,
            .slots = group.slots,
            .cache = group.cache,
            .norm_kind = key.norm_kind,
            .rope_style = key.rotation.style,
            .rope_first = key.rotation.first,
            .eps = key.eps,
            .norm_weight = key.norm_weight,
            .norm_bias = key.norm_bias,
            .positions = rotates ? batch.rope_position : Tensor{},
            .frequencies = key.rotation.frequencies,
            .values = run.taps() && (rotates || present(key.norm_weight))
                          ? run.activation(is_f64(key.head) ? SMLA_F64 : SMLA_F32, {key.head.shape[0], width})
                          : Tensor{}};
}

// Maps a selection to cache rows, unless the indexer did, and sets list lengths, because the first tokens of
// a prompt see fewer keys than a list has columns.
smla_attend_source rows_of(Runner& run, const StepBatch& batch, const CacheGroup& group,
                           const Selection& selection, int32_t pool = 1) {
    const Tensor& indices = selection.indices;
    if (present(selection.rows))
        return {.cache = group.cache, .rows = selection.rows, .lengths = selection.lengths};
    const int64_t columns = Pool{pool, pool > 1}.columns(indices.shape[1]);
    const smla_attend_source source{.cache = group.cache,
                                    .rows = run.activation(SMLA_I32, {indices.shape[0], columns}),
                                    .lengths = run.activation(SMLA_I32, {indices.shape[0]})};
    run.run<Stage::map>({.page_tokens = group.cache.page_tokens,
                         .page_rows = group.cache.page_rows,
                         .pool_tokens = pool,
                         .positions = indices,
                         .request_of_token = batch.request_of_token,
                         .block_table = group.block_table,
                         .rows = source.rows,
                         .lengths = source.lengths,
                         .limits = selection.lengths,
                         .visible_tokens = pool > 1 ? batch.visible_tokens : Tensor{}});
    return source;
}

// Runs attend once per decode part and prefill chunk, for captured graphs and for kernels tuned to one query
// length. The sizing pass sizes one call over all tokens, which no part exceeds.
void attend_in_parts(Runner& run, const StepBatch& batch, const smla_attend_args& whole) {
    if (batch.parts.empty() || run.sizing()) return run.run<Stage::attend>(whole);
    for (size_t i = 0; i + 1 < batch.parts.size(); ++i) {
        const int64_t begin = batch.parts[i], end = batch.parts[i + 1];
        if (begin < end) run.run<Stage::attend>(tokens_of(whole, begin, end));
    }
}

// Returns an empty tensor of frequencies on the device of `like`, with which rope rotates no channel.
Tensor nothing_rotated(const Tensor& like) {
    Tensor out = make_tensor(static_cast<double*>(nullptr), SMLA_F64, {0});
    out.device_type = like.device_type;
    out.device_index = like.device_index;
    return out;
}

// Returns arguments for a copy between any strides and float types: rope without frequencies.
smla_rope_args copy_of(const StepBatch& batch, const Tensor& from, const Tensor& to) {
    return {.x = from, .positions = batch.rope_position, .frequencies = nothing_rotated(from), .out = to};
}

// Absorbs [T,H,nope + rope] into [T,H,L + rope], concurrently with the selection.
Tensor absorb_query(Runner& run, const StepBatch& batch, const DsaStep& step) {
    const int64_t latent = step.w_uk.shape[1], nope = step.w_uk.shape[2], width = step.q.shape[2];
    const Tensor q =
        run.activation(step.query_dtype, {step.q.shape[0], step.q.shape[1], latent + width - nope});
    if (nope < width) {  // rope runs first: after absorb, it made one-token steps 3 us longer (H200)
        const Tensor rotated = slice(q, 2, latent, latent + width - nope);
        if (present(step.frequencies))
            run.beside<Stage::rope>({.first = int32_t(nope),
                                     .x = step.q,
                                     .positions = batch.rope_position,
                                     .frequencies = step.frequencies,
                                     .out = rotated});
        else run.beside<Stage::rope>(copy_of(batch, slice(step.q, 2, nope, width), rotated));
        run.tap("q_rope", rotated);
    }
    run.beside<Stage::absorb>(
        {.x = slice(step.q, 2, 0, nope), .w = step.w_uk, .out = slice(q, 2, 0, latent)});
    return q;
}

// A compressor's pooling of saved tokens into entries; see smla_compress_args.
struct Pooling {
    int32_t ratio = 0, no_overlap = 0;
    double eps = 0;
    Tensor frequencies{};
};

smla_save_state_args saving_of(const StepBatch& batch, const Compressor& in) {
    return {.kv = in.kv,
            .score = in.score,
            .ape = in.ape,
            .positions = batch.position,
            .slots = in.state.slots,
            .state = in.state.cache};
}

// Returns the arguments that write entries closed by the step's tokens into `entries`.
smla_compress_args pooling_of(const StepBatch& batch, const Pooling& how, const Compressor& in,
                              const CacheGroup& entries, const Tensor& latents = {}) {
    return {.ratio = how.ratio,
            .hadamard = in.hadamard,
            .no_overlap = how.no_overlap,
            .eps = how.eps,
            .state = in.state.cache,
            .state_table = in.state.block_table,
            .request_of_token = batch.request_of_token,
            .positions = batch.position,
            .slots = entries.slots,
            .norm_weight = in.norm_weight,
            .frequencies = how.frequencies,
            .cache = entries.cache,
            .latents = latents};
}

// Saves the step's tokens, concurrently with the previous call, and pools them into the indexer's keys.
void run_index_compressor(Runner& run, const StepBatch& batch, const Pooling& how, const Compressor& in,
                          const CacheGroup& keys) {
    if (!present(in.kv)) return;
    run.beside<Stage::save_state>(saving_of(batch, in));
    run.name_entries("entries_index");
    run.run<Stage::compress>(pooling_of(batch, how, in, keys));
    run.name_entries("entries");
}

Pooling rule_of(const HybridStep& step) {
    return {.ratio = step.ratio, .eps = step.eps, .frequencies = step.frequencies};
}

}  // namespace

void copy_rows(Runner& run, const StepBatch& batch, const Tensor& from, const Tensor& to) {
    run.run<Stage::rope>(copy_of(batch, from, to));
}

Selection run_indexer(Runner& run, const StepBatch& batch, const Indexer& in, const Tensor& ends,
                      const Tensor& topk, const CacheGroup* attended) {
    const Tensor indices = present(topk) ? topk : run.activation(SMLA_I32, {in.q.shape[0], in.topk});
    const IndexQuery query = quantise_index_q(run, batch, in);
    smla_score_args score{.struct_size = sizeof(smla_score_args),
                          .fill = 0,
                          .q = query.q,
                          .q_scales = query.scales,
                          .w = query.w,
                          .keys = in.keys.cache,
                          .block_table = in.keys.block_table,
                          .request_of_token = batch.request_of_token,
                          .starts = {},
                          .ends = ends,
                          .logits = {}};
    if (in.block_size > 0) {
        run.run<Stage::score_select_blocks>({.columns = int32_t(batch.max_columns),
                                             .block_size = in.block_size,
                                             .q = query.q,
                                             .q_scales = query.scales,
                                             .w = query.w,
                                             .keys = in.keys.cache,
                                             .block_table = in.keys.block_table,
                                             .request_of_token = batch.request_of_token,
                                             .ends = ends,
                                             .blocks = in.blocks,
                                             .indices = indices,
                                             .best_blocks = in.best_blocks});
        return {.indices = indices};
    }
    smla_select_args select{};
    select.struct_size = sizeof select;
    select.indices = indices;
    Selection out{.indices = indices};
    if (attended) {
        select.counts = out.lengths = run.activation(SMLA_I32, {in.q.shape[0]});
        select.rows = out.rows = run.activation(SMLA_I32, {indices.shape[0], indices.shape[1]});
        select.row_table = attended->block_table;
        select.page_tokens = attended->cache.page_tokens;
        select.page_rows = attended->cache.page_rows;
    }
    run.run<Stage::score_select>({.columns = int32_t(batch.max_columns), .score = score, .select = select});
    return out;
}

void run_dsa_step(Runner& run, const StepBatch& batch, const DsaStep& step) {
    const int64_t tokens = step.q.shape[0], heads = step.q.shape[1];
    run.wait_for_calls();
    // write_kv runs first: right before attend, it made one-token steps 4 to 7 us longer on an H200.
    if (present(step.key.head)) {
        const smla_write_args write = writing_of(run, batch, step.key, step.kv);
        run.run<Stage::write_kv>(write);
        if (present(write.values)) {
            const int64_t latent = step.key.head.shape[1], width = write.values.shape[1];
            run.tap("latent", slice(write.values, 1, 0, latent));
            if (latent < width) run.tap("kpe", slice(write.values, 1, latent, width));
        }
    }
    if (present(step.index_key.head)) {
        smla_write_args write = writing_of(run, batch, step.index_key, step.indexer.keys);
        write.hadamard = step.indexer.hadamard;
        run.beside<Stage::write_index>(write);
        if (present(write.values)) run.tap("index_k", write.values);
    }
    run_index_compressor(run, batch,
                         {.ratio = step.pool, .no_overlap = 1, .frequencies = nothing_rotated(step.q)},
                         step.index_compressor, step.indexer.keys);
    const Tensor& visible = step.pool ? step.visible_pools : batch.visible_tokens;
    const Selection selection =
        present(step.forced.indices)
            ? step.forced
            : run_indexer(run, batch, step.indexer, visible, step.topk, step.pool ? nullptr : &step.kv);

    smla_attend_args attend{};
    attend.q = present(step.w_uk) ? absorb_query(run, batch, step) : step.q;
    attend.primary = rows_of(run, batch, step.kv, selection, std::max(step.pool, 1));
    attend.precision = step.precision;
    attend.softmax_scale = step.softmax_scale;
    attend.lse = step.lse;
    if (!present(step.w_uv)) {
        attend.out = step.out;
        return attend_in_parts(run, batch, attend);
    }
    attend.out = run.activation(is_f64(step.q) ? SMLA_F64 : SMLA_F32, {tokens, heads, step.w_uv.shape[2]});
    attend_in_parts(run, batch, attend);
    run.run<Stage::up_project>({.x = attend.out, .w = step.w_uv, .out = step.out});
}

Tensor write_entries(Runner& run, const StepBatch& batch, const HybridStep& step) {
    const Compressor& in = step.compressor;
    const CacheGroup& entries = step.entries.group;
    const int64_t tokens = in.kv.shape[0], width = in.norm_weight.shape[0];
    const smla_dtype plain = is_f64(in.kv) ? SMLA_F64 : SMLA_F32;
    const Tensor latents = run.activation(plain, {tokens, 1, width});
    const Tensor rows = reshape_rows(latents, {width});
    if (step.ratio > 1) {
        run.run<Stage::save_state>(saving_of(batch, in));
        run.run<Stage::compress>(pooling_of(batch, rule_of(step), in, entries, rows));
        return latents;
    }
    Tensor kv = reshape_rows(in.kv, {1, width});
    if (entries.cache.writer & SMLA_WRITER_BF16_POOLED) {
        const Tensor rounded = run.activation(SMLA_BF16, {tokens, 1, width});
        copy_rows(run, batch, kv, rounded);
        kv = rounded;
    }
    run.run<Stage::norm>({.eps = step.eps, .x = kv, .weight = in.norm_weight, .out = latents});
    const Tensor rotated = run.activation(plain, {tokens, 1, width});
    run.run<Stage::rope>({.first = int32_t(width - 2 * step.frequencies.shape[0]),
                          .x = latents,
                          .positions = batch.position,
                          .frequencies = step.frequencies,
                          .out = rotated});
    run.tap("entries", reshape_rows(rotated, {width}));
    run.run<Stage::write_kv>(
        {.head = reshape_rows(rotated, {width}), .slots = entries.slots, .cache = entries.cache});
    return latents;
}

void run_hybrid_step(Runner& run, const StepBatch& batch, const HybridStep& step) {
    const Window& window = step.window;
    const Entries& entries = step.entries;
    const bool all_entries = step.kind == LayerKind::heavily_compressed,
               lists = step.kind != LayerKind::sliding && !all_entries,
               selects = lists && !present(step.forced.indices), pools = present(step.compressor.kv);
    run.wait_for_calls();
    if (present(step.key.head)) {  // runs first: see run_dsa_step
        const smla_write_args write = writing_of(run, batch, step.key, window.group);
        run.run<Stage::write_kv>(write);
        if (present(write.values)) run.tap("kv_window", write.values);
    }
    run_index_compressor(run, batch, rule_of(step), step.index_compressor, step.indexer.keys);
    if (present(step.index_key.head))
        run.beside<Stage::write_index>(writing_of(run, batch, step.index_key, step.indexer.keys));
    if (pools) run.beside<Stage::save_state>(saving_of(batch, step.compressor));
    const auto close_entries = pooling_of(batch, rule_of(step), step.compressor, entries.group);
    if (pools && !selects) run.run<Stage::compress>(close_entries);

    Selection selection = step.forced;
    if (selects)
        selection = run_indexer(run, batch, step.indexer, entries.visible, step.topk, &entries.group);
    if (pools && selects) run.beside<Stage::compress>(close_entries);  // selection only needs index keys

    smla_attend_args attend{};
    attend.primary = {.cache = window.group.cache, .rows = window.rows, .lengths = window.lengths};
    if (lists) attend.extra = rows_of(run, batch, entries.group, selection);
    else if (all_entries)
        attend.extra = {.cache = entries.group.cache, .rows = entries.rows, .lengths = entries.lengths};
    attend.precision = step.precision;
    attend.softmax_scale = step.softmax_scale;
    attend.q_scale = step.q_scale;
    attend.q = step.q;
    attend.sink = step.sink;
    attend.out = step.out;
    attend.lse = step.lse;
    if (present(step.frequencies)) {
        attend.out_positions = batch.rope_position;
        attend.out_frequencies = step.frequencies;
    }
    attend_in_parts(run, batch, attend);
    if (present(step.frequencies)) run.tap("core_out", step.out);
}

}  // namespace smla
