// What an attention layer attends to, numbered as smla_layer_kind.
#pragma once

#include <cstdint>

namespace smla {

enum class LayerKind {
    dsa,                 // V3.2, GLM: keys that its own indexer selects (GLM-5.3: pools of keys)
    dsa_shared,          // GLM-5.2: the selection of an earlier layer
    sliding,             // V4: the window alone
    compressed_sparse,   // V4: the window, and entries that its own indexer selects
    heavily_compressed,  // V4: the window and every entry
    shared_sparse,  // V4.1: the window, and entries that a source layer wrote and a source layer selected
    linear          // GLM-5.3: linear attention (KDA), which is not computed here; no smla_layer_kind
};

// A V4 layer's kind follows from its tokens per entry (0: no entries).
constexpr LayerKind hybrid_layer_kind(int64_t ratio) {
    return ratio == 0   ? LayerKind::sliding
           : ratio == 4 ? LayerKind::compressed_sparse
                        : LayerKind::heavily_compressed;
}

// A V4.1 layer's kind follows from its tokens per entry (0: no entries).
constexpr LayerKind sharing_layer_kind(int64_t ratio) {
    return ratio == 0 ? LayerKind::sliding : LayerKind::shared_sparse;
}

// Whether a V3.2 or V4 layer has an indexer; for V4.1, its kind does not tell (AttentionConfig::selects).
constexpr bool has_indexer(LayerKind kind) {
    return kind == LayerKind::dsa || kind == LayerKind::compressed_sparse;
}

// Attends to keys that an indexer has selected, its own or another layer's.
constexpr bool reads_selection(LayerKind kind) {
    return has_indexer(kind) || kind == LayerKind::dsa_shared || kind == LayerKind::shared_sparse;
}

}  // namespace smla
