#include "model_step.h"

namespace smla::cli {

namespace {

class StepFiller {
public:
    StepFiller(const StepShape& shape, Memory& memory, ThreadPool& pool, uint64_t seed)
        : shape_(shape), memory_(memory), filler_(memory, pool, seed) {}

    void batch(StepBatch& batch) {
        memory_.back(batch.request_of_token);
        memory_.back(batch.position);
        memory_.back(batch.visible_tokens);
        for (int64_t t = 0; t < batch.position.shape[0]; ++t) {
            at(batch.request_of_token, t) = int32_t(t / shape_.tokens);
            at(batch.position, t) = int32_t(position(t));
            at(batch.visible_tokens, t) = int32_t(position(t) + 1);
        }
        batch.rope_position = batch.position;
    }

    // Records everywhere, shuffled pages, and slots for the step's last tokens (or entries of `ratio`
    // tokens).
    void group(CacheGroup& group, int64_t ratio) {
        if (group.cache.format == SMLA_FORMAT_NONE) return;
        filler_.records(group.cache);
        filler_.table(group.block_table, group.cache);
        memory_.back(group.slots);
        auto* slots = static_cast<int64_t*>(group.slots.data);
        for (int64_t t = 0; t < group.slots.shape[0]; ++t)
            slots[t] = (position(t) + 1) % ratio ? -1 : row(group, t, position(t) / ratio);
    }

    // Rows of the last `columns` tokens (or entries), oldest first.
    void list(Tensor& rows, Tensor& lengths, const CacheGroup& group, int64_t ratio) {
        memory_.back(rows);
        memory_.back(lengths);
        const int64_t columns = rows.shape[1];
        for (int64_t t = 0; t < rows.shape[0]; ++t) {
            const int64_t visible = (position(t) + 1) / ratio, count = std::min(visible, columns);
            for (int64_t j = 0; j < columns; ++j)
                at(rows, t, j) = j < count ? int32_t(row(group, t, visible - count + j)) : -1;
            at(lengths, t) = int32_t(count);
        }
    }

    void frequencies(Tensor& tensor) {
        memory_.back(tensor);
        auto* values = static_cast<double*>(tensor.data);
        RopeParameters rope;
        const std::vector<double> from = rope_frequencies(2 * tensor.shape[0], rope);
        std::copy(from.begin(), from.end(), values);
    }

    void entries(Tensor& visible, int64_t ratio) {
        memory_.back(visible);
        for (int64_t t = 0; t < visible.shape[0]; ++t) at(visible, t) = int32_t((position(t) + 1) / ratio);
    }

    void compressor(Compressor& input) {
        for (Tensor* each : {&input.kv, &input.score, &input.ape, &input.norm_weight})
            if (present(*each)) filler_.values(*each);
        group(input.state, 1);
    }

    void key(KeyRow& input) {
        for (Tensor* each : {&input.head, &input.tail, &input.norm_weight, &input.norm_bias})
            if (present(*each)) filler_.values(*each);
        if (present(input.rotation.frequencies)) frequencies(input.rotation.frequencies);
    }

    void indexer(Indexer& input, int64_t ratio) {
        if (present(input.rotation.frequencies)) frequencies(input.rotation.frequencies);
        filler_.values(input.q);
        filler_.values(input.w, 0.1f);
        group(input.keys, ratio);
    }

    // Blocks at even distances, as far as the entries reach.
    void blocks(Tensor& blocks, int64_t size, int64_t ratio) {
        if (!present(blocks)) return;
        memory_.back(blocks);
        const int64_t all = std::max<int64_t>(shape_.context / ratio / size, 1), n = blocks.shape[1];
        for (int64_t t = 0; t < blocks.shape[0]; ++t)
            for (int64_t i = 0; i < n; ++i) at(blocks, t, i) = int32_t(all * i / n);
    }

    Filler& filler() { return filler_; }

private:
    static int32_t& at(const Tensor& tensor, int64_t i, int64_t j = 0) {
        return reinterpret_cast<int32_t*>(address(tensor, i))[j];
    }
    int64_t position(int64_t token) const { return shape_.context - shape_.tokens + token % shape_.tokens; }
    int64_t row(const CacheGroup& group, int64_t token, int64_t item) const {
        const int64_t page = item / group.cache.page_tokens;
        return int64_t(at(group.block_table, token / shape_.tokens, page)) * group.cache.page_tokens +
               item % group.cache.page_tokens;
    }

    const StepShape& shape_;
    Memory& memory_;
    Filler filler_;
};

}  // namespace

void fill(ModelStep& step, const StepShape& shape, Memory& memory, ThreadPool& pool, uint64_t seed) {
    StepFiller fill(shape, memory, pool, seed);
    fill.batch(step.batch);
    if (!step.hybrid) {
        DsaStep& dsa = step.dsa;
        fill.filler().values(dsa.q);
        fill.key(dsa.key);
        fill.key(dsa.index_key);
        if (present(dsa.frequencies)) fill.frequencies(dsa.frequencies);
        const int64_t pool = std::max(dsa.pool, 1);
        fill.indexer(dsa.indexer, pool);
        if (present(dsa.visible_pools)) {
            fill.compressor(dsa.index_compressor);
            fill.entries(dsa.visible_pools, pool);
        }
        // one kv_b [H,nope + v,L], as in a checkpoint; its two halves are views
        const int64_t heads = dsa.w_uv.shape[0], value = dsa.w_uv.shape[1], latent = dsa.w_uv.shape[2],
                      nope = dsa.w_uk.shape[2];
        Tensor kv_b = absent_data(shape.weights, {heads, nope + value, latent});
        fill.filler().values(kv_b, 0.05f);
        dsa.w_uk = transposed(slice(kv_b, 1, 0, nope));
        dsa.w_uv = slice(kv_b, 1, nope, nope + value);
        fill.group(dsa.kv, 1);
        if (present(dsa.forced.indices)) fill.filler().rows(dsa.forced.indices, dsa.kv.cache);
        memory.back(dsa.out);
        return;
    }
    HybridStep& hybrid = step.hybrid_step;
    for (Tensor* each : {&hybrid.q, &hybrid.sink}) fill.filler().values(*each);
    fill.key(hybrid.key);
    fill.key(hybrid.index_key);
    fill.frequencies(hybrid.frequencies);
    fill.group(hybrid.window.group, 1);
    fill.list(hybrid.window.rows, hybrid.window.lengths, hybrid.window.group, 1);
    memory.back(hybrid.out);
    const int64_t ratio = hybrid.ratio;
    if (hybrid.kind == LayerKind::sliding) return;
    Entries& entries = hybrid.entries;
    fill.entries(entries.visible, ratio);
    if (present(hybrid.compressor.kv)) fill.compressor(hybrid.compressor);
    fill.group(entries.group, ratio);
    if (hybrid.kind == LayerKind::shared_sparse) {
        if (present(hybrid.forced.indices)) fill.filler().rows(hybrid.forced.indices, entries.group.cache);
        else fill.indexer(hybrid.indexer, ratio);
        fill.blocks(hybrid.indexer.blocks, hybrid.indexer.block_size, ratio);
        if (present(hybrid.indexer.best_blocks)) memory.back(hybrid.indexer.best_blocks);
    } else if (hybrid.kind == LayerKind::compressed_sparse) {
        fill.compressor(hybrid.index_compressor);
        fill.indexer(hybrid.indexer, ratio);
    } else {
        fill.list(entries.rows, entries.lengths, entries.group, ratio);
    }
}

}  // namespace smla::cli
