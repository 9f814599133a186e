// The weights of one attention layer, by name from a checkpoint. Each weight is stored once: as the
// checkpoint's tensor if that has the right dtype, else as a converted copy.
#pragma once

#include "model/checkpoint.h"
#include "model/config.h"

#include <optional>
#include <string>
#include <vector>

namespace smla {

struct WeightOptions {
    // dtype of matrices: f32, bf16 or f64. Vectors, ape and sinks are f32 (f64 with f64).
    smla_dtype matrices = SMLA_F32;
    std::string prefix;      // prefix of all names in the checkpoint
    bool as_stored = false;  // whether f32 and bf16 matrices keep their dtype
};

// Shapes: Q q_lora_rank, L kv_lora_rank, N qk_nope_head_dim, R rope_dim, V v_head_dim, X hidden_size, H
// heads, Hi and D index heads and width. Matrices are [out,in].
struct DsaIndexerWeights {
    HostTensor q_b;           // [Hi*D,Q]
    HostTensor k;             // [D,X]
    HostTensor k_norm;        // [D]
    HostTensor k_norm_bias;   // [D]
    HostTensor head_weights;  // [Hi,X]
    HostTensor pool_gate;     // [D,X]: GLM-5.3, logits of a token's weight in its pool
    HostTensor pool_ape;      // [pool,D]: GLM-5.3, bias of these logits by place in the pool
};

struct DsaWeights {
    HostTensor input_norm;  // [X], norm before the block; absent (ndim 0) if not in the checkpoint
    HostTensor q_a;         // [Q,X]
    HostTensor q_norm;      // [Q]
    HostTensor q_b;         // [H*(N+R),Q]
    HostTensor kv_a;        // [L+R,X]
    HostTensor kv_norm;     // [L]
    HostTensor kv_b;        // [H*(N+V),L]: per head N rows for keys, then V for values
    HostTensor out;         // [X,H*V]
    std::optional<DsaIndexerWeights> indexer;  // absent in a layer with a shared selection

    Tensor key_up(const AttentionConfig& config) const;    // [H,N,L] of kv_b
    Tensor value_up(const AttentionConfig& config) const;  // [H,V,L] of kv_b
};

// C is the head_dim of entries; kv, gate and ape have 2C channels if windows overlap (ratio 4).
struct CompressorWeights {
    HostTensor kv, gate;  // [C or 2C,X]; V4.1 has no gate at ratio 1
    HostTensor ape;       // [ratio,C or 2C]; not in V4.1
    HostTensor norm;      // [C]
};

struct HybridIndexerWeights {
    HostTensor q_b;                // [Hi*D,Q]
    HostTensor head_weights;       // [Hi,X]
    CompressorWeights compressor;  // V4
    HostTensor k, k_norm;          // [D,C], [D]: V4.1, only in layers that write entries
};

struct HybridWeights {
    HostTensor input_norm;  // [X], as above
    HostTensor q_a;         // [Q,X]
    HostTensor q_norm;      // [Q]
    HostTensor q_b;         // [H*C,Q]
    HostTensor kv;          // [C,X]
    HostTensor kv_norm;     // [C]
    HostTensor sink;        // [H]
    HostTensor out_a;       // [G*O,H/G*C], G o_groups, O o_lora_rank
    HostTensor out_b;       // [X,G*O]
    std::optional<CompressorWeights> compressor;
    std::optional<HybridIndexerWeights> indexer;

    Tensor out_a_groups(const AttentionConfig& config) const;  // [G,O,H/G*C]
};

// Returns the matrices that a layer multiplies with its hidden states (latent_weights(): with the query
// latent). Weights is a struct above. An absent weight is omitted or has no shape.
template <class Weights>
auto hidden_weights(Weights& w) {
    std::vector out{&w.q_a};
    if constexpr (requires { w.kv_a; }) {
        out.push_back(&w.kv_a);
        if (w.indexer)
            for (auto* each : {&w.indexer->k, &w.indexer->pool_gate, &w.indexer->head_weights})
                out.push_back(each);
    } else {
        out.push_back(&w.kv);
        if (w.compressor)
            for (auto* each : {&w.compressor->kv, &w.compressor->gate}) out.push_back(each);
        if (w.indexer)
            for (auto* each :
                 {&w.indexer->compressor.kv, &w.indexer->compressor.gate, &w.indexer->head_weights})
                out.push_back(each);
    }
    return out;
}
template <class Weights>
auto latent_weights(Weights& w) {
    std::vector out{&w.q_b};
    if (w.indexer) out.push_back(&w.indexer->q_b);
    return out;
}

// Calls use(tensor) for each weight; a layer's forward reads all except the norm before the block.
template <class Use>
void each_tensor(DsaWeights& w, Use use) {
    for (HostTensor* each : {&w.input_norm, &w.q_a, &w.q_norm, &w.q_b, &w.kv_a, &w.kv_norm, &w.kv_b, &w.out})
        use(*each);
    if (!w.indexer) return;
    DsaIndexerWeights& i = *w.indexer;
    for (HostTensor* each :
         {&i.q_b, &i.k, &i.k_norm, &i.k_norm_bias, &i.head_weights, &i.pool_gate, &i.pool_ape})
        use(*each);
}
template <class Use>
void each_tensor(CompressorWeights& w, Use use) {
    for (HostTensor* each : {&w.kv, &w.gate, &w.ape, &w.norm}) use(*each);
}
template <class Use>
void each_tensor(HybridWeights& w, Use use) {
    for (HostTensor* each :
         {&w.input_norm, &w.q_a, &w.q_norm, &w.q_b, &w.kv, &w.kv_norm, &w.sink, &w.out_a, &w.out_b})
        use(*each);
    if (w.compressor) each_tensor(*w.compressor, use);
    if (!w.indexer) return;
    use(w.indexer->q_b);
    use(w.indexer->head_weights);
    each_tensor(w.indexer->compressor, use);
    use(w.indexer->k);
    use(w.indexer->k_norm);
}

// Both functions throw SMLA_DATA_ERROR with a list of all tensors that are absent or have another shape or
// dtype. Names are from the published checkpoints, for V4 also from transformers, with or without "model." in
// front; GLM-5.3 also has "model.language_model.".
DsaWeights load_dsa_weights(const Checkpoint& checkpoint, const AttentionConfig& config, int64_t layer,
                            const WeightOptions& options = {});
HybridWeights load_hybrid_weights(const Checkpoint& checkpoint, const AttentionConfig& config, int64_t layer,
                                  const WeightOptions& options = {});

}  // namespace smla
