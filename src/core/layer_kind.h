// Keys that an attention layer attends to, numbered as in smla_layer_kind.
#pragma once

#include <cstdint>

namespace smla {

enum class LayerKind {
    dsa,                 // V3.2, GLM: keys selected by the layer's own indexer (GLM-5.3: pools of keys)
    dsa_shared,          // GLM-5.2: keys selected by an earlier layer
    sliding,             // V4: only the window
    compressed_sparse,   // V4: the window, and entries selected by the layer's own indexer
    heavily_compressed,  // V4: the window and every entry
    shared_sparse,       // V4.1: the window, and entries written and selected by source layers
    linear               // GLM-5.3: linear attention (KDA), which smla does not compute; no smla_layer_kind
};

// Returns the kind of a V4 layer from its tokens per entry (0: no entries).
constexpr LayerKind hybrid_layer_kind(int64_t ratio) {
    return ratio == 0   ? LayerKind::sliding
           : ratio == 4 ? LayerKind::compressed_sparse
                        : LayerKind::heavily_compressed;
}

// Returns the kind of a V4.1 layer from its tokens per entry (0: no entries).
constexpr LayerKind sharing_layer_kind(int64_t ratio) {
    return ratio == 0 ? LayerKind::sliding : LayerKind::shared_sparse;
}

// Returns whether a V3.2 or V4 layer has an indexer. For V4.1, see AttentionConfig::selects.
constexpr bool has_indexer(LayerKind kind) {
    return kind == LayerKind::dsa || kind == LayerKind::compressed_sparse;
}

// Returns whether the layer attends to keys selected by an indexer, its own or another layer's.
constexpr bool reads_selection(LayerKind kind) {
    return has_indexer(kind) || kind == LayerKind::dsa_shared || kind == LayerKind::shared_sparse;
}

}  // namespace smla
