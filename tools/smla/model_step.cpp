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
          needs_(cache_needs(config, layer, shape.caches)) {}

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

    IndexInput index(double floor) const {
        const IndexerConfig& indexer = *config_.indexer;
        return {.q = absent_data(SMLA_F32, {tokens_, indexer.heads, indexer.head_dim}),
                .w = absent_data(SMLA_F32, {tokens_, indexer.heads}),
                .factor = indexer.weight_factor(),
                .amax_floor = floor,
                .topk = indexer.topk};
    }

    DsaStep dsa() const {
        const DsaConfig& model = *config_.dsa;
        const int64_t heads = config_.common.heads, latent = model.kv_lora_rank,
                      rope = config_.common.rope_dim, nope = model.qk_nope_head_dim, value = model.v_head_dim;
        DsaStep step;
        step.q = absent_data(SMLA_F32, {tokens_, heads, nope + rope});
        step.frequencies = frequencies();
        step.latent = absent_data(SMLA_F32, {tokens_, latent});
        step.k_rope = absent_data(SMLA_F32, {tokens_, rope});
        // keys' rows of kv_b [H,nope + v,L], transposed for the absorption
        step.w_uk = transposed(slice(absent_data(shape_.weights, {heads, nope + value, latent}), 1, 0, nope));
        step.w_uv = slice(absent_data(shape_.weights, {heads, nope + value, latent}), 1, nope, nope + value);
        step.query_dtype = shape_.queries;
        step.softmax_scale = config_.softmax_scale();
        step.kv = group(SMLA_PLAN_PRIMARY);
        step.out = absent_data(SMLA_F32, {tokens_, heads, value});
        if (config_.layer_kind(layer_) == LayerKind::dsa_shared) {
            step.forced_topk = absent_data(SMLA_I32, {tokens_, config_.indexer->topk});
            return step;
        }
        step.index_k = absent_data(SMLA_F32, {tokens_, config_.indexer->head_dim});
        step.index = index(1e-10);
        step.index_cache = group(SMLA_PLAN_INDEX);
        return step;
    }

    CompressInput compressor(int64_t width, int32_t state, int32_t entries, int64_t ratio) const {
        const int64_t channels = (ratio == 4 ? 2 : 1) * width;
        return {.kv = absent_data(SMLA_F32, {tokens_, channels}),
                .score = absent_data(SMLA_F32, {tokens_, channels}),
                .ape = absent_data(SMLA_F32, {ratio, channels}),
                .norm_weight = absent_data(SMLA_F32, {width}),
                .state = group(state),
                .entries = group(entries)};
    }

    HybridStep hybrid() const {
        const HybridConfig& model = *config_.hybrid;
        const int64_t heads = config_.common.heads, width = model.head_dim,
                      ratio = config_.compress_ratio(layer_);
        HybridStep step;
        step.ratio = int32_t(ratio);
        step.q = absent_data(shape_.queries, {tokens_, heads, width});
        step.kv = absent_data(SMLA_F32, {tokens_, width});
        step.frequencies = frequencies();
        step.eps = config_.common.rms_norm_eps;
        step.softmax_scale = config_.softmax_scale();
        step.sink = absent_data(SMLA_F32, {heads});
        step.window = group(SMLA_PLAN_WINDOW);
        step.window_rows = absent_data(SMLA_I32, {tokens_, model.window});
        step.window_lengths = ints();
        step.visible_entries = ints();
        step.out = absent_data(SMLA_F32, {tokens_, heads, width});
        if (ratio) step.main = compressor(width, SMLA_PLAN_STATE, SMLA_PLAN_COMPRESSED, ratio);
        if (ratio == 4) {
            step.indexer =
                compressor(config_.indexer->head_dim, SMLA_PLAN_INDEX_STATE, SMLA_PLAN_INDEX, ratio);
            step.index = index(1e-4);
        } else if (ratio) {
            step.entry_rows = absent_data(SMLA_I32, {tokens_, std::max<int64_t>(shape_.context / ratio, 1)});
            step.entry_lengths = ints();
        }
        return step;
    }

    const AttentionConfig& config_;
    int layer_;
    const StepShape& shape_;
    int64_t tokens_;
    std::vector<CacheNeed> needs_;
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
    const auto compressor = [&](CompressInput& each) {
        tensors({&each.kv, &each.score, &each.ape, &each.norm_weight});
        group(each.state);
        group(each.entries);
    };
    StepBatch& batch = step.batch;
    tensors({&batch.request_of_token, &batch.position, &batch.rope_position, &batch.visible_tokens});
    DsaStep& dsa = step.dsa;
    tensors({&dsa.q, &dsa.frequencies, &dsa.latent, &dsa.k_rope, &dsa.index_k, &dsa.index.q, &dsa.index.w,
             &dsa.w_uk, &dsa.w_uv, &dsa.forced_topk, &dsa.topk, &dsa.out});
    group(dsa.kv);
    group(dsa.index_cache);
    HybridStep& hybrid = step.hybrid_step;
    tensors({&hybrid.q, &hybrid.kv, &hybrid.frequencies, &hybrid.index.q, &hybrid.index.w,
             &hybrid.forced_topk, &hybrid.sink, &hybrid.window_rows, &hybrid.window_lengths,
             &hybrid.visible_entries, &hybrid.entry_rows, &hybrid.entry_lengths, &hybrid.out});
    compressor(hybrid.main);
    compressor(hybrid.indexer);
    group(hybrid.window);
}

}  // namespace smla::cli
