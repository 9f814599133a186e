#include "model_step.h"

namespace smla::cli {

namespace {

class Builder {
public:
    Builder(const AttentionConfig& config, int layer, const StepShape& shape)
        : config_(config),
          layer_(layer),
          shape_(shape),
          tokens_(shape.requests * shape.tokens),
          needs_(cache_needs(config, layer, shape.caches)),
          sources_(config.sources(layer)) {
        if (sources_.entries < 0 || sources_.entries == layer) return;
        for (const CacheNeed& need : cache_needs(config, int(sources_.entries), shape.caches))
            if (need.group == SMLA_GROUP_COMPRESSED || need.group == SMLA_GROUP_INDEX) needs_.push_back(need);
    }

    ModelStep build() const {
        ModelStep step;
        step.hybrid = config_.hybrid.has_value();
        const int64_t ratio = std::max<int64_t>(config_.compress_ratio(layer_), 1);
        step.batch = {ints(), ints(), ints(), ints(), shape_.context / ratio};
        if (step.hybrid) step.hybrid_step = hybrid();
        else step.dsa = dsa();
        return step;
    }

private:
    Tensor ints() const { return absent_data(SMLA_I32, {tokens_}); }
    Tensor frequencies() const { return absent_data(SMLA_F64, {config_.common.rope_dim / 2}); }

    CacheGroup group(int32_t bit) const {
        for (const CacheNeed& need : needs_) {
            if (need.group != bit) continue;
            const int64_t pages = need.pages(shape_.context, shape_.tokens);
            const int64_t columns = ceil_div(std::max<int64_t>(need.rows(shape_.context), 1), need.page_rows);
            CacheGroup out;
            out.cache =
                cache_of(need.format, need.width, pages * need.page_rows * shape_.requests, need.page_rows);
            out.block_table = absent_data(SMLA_I32, {shape_.requests, columns});
            out.slots = absent_data(SMLA_I64, {tokens_});
            return out;
        }
        return {};
    }

    Indexer indexer(double floor) const {
        const IndexerConfig& indexer = *config_.indexer;
        return {.q = absent_data(SMLA_F32, {tokens_, indexer.heads, indexer.head_dim}),
                .w = absent_data(SMLA_F32, {tokens_, indexer.heads}),
                .factor = indexer.weight_factor(),
                .amax_floor = floor,
                .topk = indexer.topk,
                .keys = group(SMLA_GROUP_INDEX)};
    }

    DsaStep dsa() const {
        const DsaConfig& model = *config_.dsa;
        const int64_t heads = config_.common.heads, latent = model.kv_lora_rank,
                      rope = config_.common.rope_dim, nope = model.qk_nope_head_dim, value = model.v_head_dim;
        DsaStep step;
        step.q = absent_data(SMLA_F32, {tokens_, heads, nope + rope});
        step.key = key(latent, config_.common.latent_norm_eps);
        if (rope) {
            step.frequencies = frequencies();
            step.key.tail = absent_data(SMLA_F32, {tokens_, rope});
            step.key.rotation = {.first = int32_t(latent), .frequencies = frequencies()};
        }
        step.pool = int32_t(model.pool);
        // keys' rows of kv_b [H,nope + v,L], transposed for the absorption
        step.w_uk = transposed(slice(absent_data(shape_.weights, {heads, nope + value, latent}), 1, 0, nope));
        step.w_uv = slice(absent_data(shape_.weights, {heads, nope + value, latent}), 1, nope, nope + value);
        step.query_dtype = shape_.queries;
        step.softmax_scale = config_.softmax_scale();
        step.kv = group(SMLA_GROUP_PRIMARY);
        step.out = absent_data(SMLA_F32, {tokens_, heads, value});
        if (config_.layer_kind(layer_) == LayerKind::dsa_shared) {
            step.forced.indices = absent_data(SMLA_I32, {tokens_, config_.indexer->topk});
            return step;
        }
        const int64_t width = config_.indexer->head_dim;
        step.indexer = indexer(model.pool ? 1e-4 : 1e-10);
        if (model.pool) {
            step.index_compressor = compressor(width, SMLA_GROUP_INDEX_STATE, model.pool, 1);
            step.index_compressor.norm_weight = {};
            step.visible_pools = ints();
        } else {
            step.index_key = key(width, config_.indexer->key_norm_eps);
            step.index_key.norm_kind = SMLA_NORM_LAYER;
            step.index_key.norm_bias = absent_data(SMLA_F32, {width});
            if (rope)
                step.index_key.rotation = step.indexer.rotation = {.style = config_.indexer->rope_style,
                                                                   .frequencies = frequencies()};
        }
        return step;
    }

    // A row that is normed on its way into a cache.
    KeyRow key(int64_t width, double eps) const {
        return {.head = absent_data(SMLA_F32, {tokens_, width}),
                .eps = eps,
                .norm_weight = absent_data(SMLA_F32, {width})};
    }
    // The last channels of a row rotate.
    RowRotation tail_rotation(int64_t width) const {
        const Tensor all = frequencies();
        return {.first = int32_t(width - 2 * all.shape[0]), .frequencies = all};
    }

    Compressor compressor(int64_t width, int32_t state, int64_t ratio, int64_t windows) const {
        const int64_t channels = windows * width;
        return {.kv = absent_data(SMLA_F32, {tokens_, channels}),
                .score = absent_data(SMLA_F32, {tokens_, channels}),
                .ape = absent_data(SMLA_F32, {ratio, channels}),
                .norm_weight = absent_data(SMLA_F32, {width}),
                .state = group(state)};
    }

    HybridStep hybrid() const {
        const HybridConfig& model = *config_.hybrid;
        const int64_t heads = config_.common.heads, width = model.head_dim,
                      ratio = config_.compress_ratio(layer_);
        HybridStep step;
        step.kind = config_.layer_kind(layer_);
        step.ratio = int32_t(ratio);
        step.q = absent_data(shape_.queries, {tokens_, heads, width});
        step.key = key(width, config_.common.rms_norm_eps);
        step.key.rotation = tail_rotation(width);
        step.frequencies = frequencies();
        step.eps = config_.common.rms_norm_eps;
        step.softmax_scale = config_.softmax_scale();
        step.sink = absent_data(SMLA_F32, {heads});
        step.window = {.group = group(SMLA_GROUP_WINDOW),
                       .rows = absent_data(SMLA_I32, {tokens_, model.window}),
                       .lengths = ints()};
        step.entries.visible = ints();
        step.out = absent_data(SMLA_F32, {tokens_, heads, width});
        if (step.kind == LayerKind::sliding) return step;
        step.entries.group = group(SMLA_GROUP_COMPRESSED);
        if (step.kind == LayerKind::shared_sparse) {
            add_shared(step);
            return step;
        }
        const int64_t windows = ratio == 4 ? 2 : 1;
        step.compressor = compressor(width, SMLA_GROUP_STATE, ratio, windows);
        if (step.kind == LayerKind::compressed_sparse) {
            step.index_compressor =
                compressor(config_.indexer->head_dim, SMLA_GROUP_INDEX_STATE, ratio, windows);
            step.indexer = indexer(1e-4);
            step.indexer.rotation = tail_rotation(config_.indexer->head_dim);
        } else {
            step.entries.rows =
                absent_data(SMLA_I32, {tokens_, std::max<int64_t>(shape_.context / ratio, 1)});
            step.entries.lengths = ints();
        }
        return step;
    }

    // V4.1: what the layer does itself. Entries of ratio 1 are a norm, a rope and a write_kv outside of the
    // step.
    void add_shared(HybridStep& step) const {
        const IndexerConfig& model = *config_.indexer;
        if (sources_.entries == layer_) {
            if (step.ratio > 1)
                step.compressor = compressor(config_.hybrid->head_dim, SMLA_GROUP_STATE, step.ratio, 1);
            step.compressor.ape = {};
            step.index_key.head = absent_data(SMLA_F32, {tokens_, model.head_dim});
        }
        if (sources_.selection != layer_) {
            step.forced.indices = absent_data(SMLA_I32, {tokens_, model.topk});
            return;
        }
        step.indexer = indexer(1e-4);
        step.indexer.rotation = tail_rotation(model.head_dim);
        if (sources_.candidates < 0) return;
        const SharingConfig& sharing = *config_.hybrid->sharing;
        const Tensor blocks = absent_data(SMLA_I32, {tokens_, sharing.candidate_blocks});
        step.indexer.block_size = int32_t(sharing.candidate_block_size);
        (sources_.candidates == layer_ ? step.indexer.best_blocks : step.indexer.blocks) = blocks;
    }

    const AttentionConfig& config_;
    int layer_;
    const StepShape& shape_;
    int64_t tokens_;
    std::vector<CacheNeed> needs_;
    LayerSources sources_;
};

}  // namespace

void ModelStep::run(Runner& runner) const {
    if (hybrid) run_hybrid_step(runner, batch, hybrid_step);
    else run_dsa_step(runner, batch, dsa);
}

ModelStep model_step(const AttentionConfig& config, int layer, const StepShape& shape) {
    return Builder(config, layer, shape).build();
}

void place(ModelStep& step, PlacedMemory& memory) {
    const auto group = [&](CacheGroup& each) {
        memory.take(each.cache);
        memory.take(each.block_table);
        memory.take(each.slots);
    };
    const auto tensors = [&](std::initializer_list<Tensor*> all) {
        for (Tensor* each : all) memory.take(*each);
    };
    const auto compressor = [&](Compressor& each) {
        tensors({&each.kv, &each.score, &each.ape, &each.norm_weight});
        group(each.state);
    };
    const auto indexer = [&](Indexer& each) {
        tensors({&each.q, &each.w, &each.blocks, &each.best_blocks, &each.rotation.frequencies});
        group(each.keys);
    };
    const auto key = [&](KeyRow& each) {
        tensors({&each.head, &each.tail, &each.norm_weight, &each.norm_bias, &each.rotation.frequencies});
    };
    StepBatch& batch = step.batch;
    tensors({&batch.request_of_token, &batch.position, &batch.rope_position, &batch.visible_tokens});
    DsaStep& dsa = step.dsa;
    tensors({&dsa.q, &dsa.frequencies, &dsa.w_uk, &dsa.w_uv, &dsa.forced.indices, &dsa.topk,
             &dsa.visible_pools, &dsa.out});
    key(dsa.key);
    key(dsa.index_key);
    group(dsa.kv);
    compressor(dsa.index_compressor);
    indexer(dsa.indexer);
    HybridStep& hybrid = step.hybrid_step;
    tensors({&hybrid.q, &hybrid.frequencies, &hybrid.forced.indices, &hybrid.sink, &hybrid.window.rows,
             &hybrid.window.lengths, &hybrid.entries.visible, &hybrid.entries.rows, &hybrid.entries.lengths,
             &hybrid.out});
    key(hybrid.key);
    key(hybrid.index_key);
    group(hybrid.window.group);
    group(hybrid.entries.group);
    compressor(hybrid.compressor);
    compressor(hybrid.index_compressor);
    indexer(hybrid.indexer);
}

}  // namespace smla::cli
