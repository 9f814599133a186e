// Facts about a model for capacity, explain, bench and demo: its kinds of layers, FLOPs of one layer.
#pragma once

#include "layers/cache_layout.h"
#include "model/config.h"

#include <string>
#include <vector>

namespace smla::cli {

// Layers of one kind and compression ratio that publish the same things for other layers.
struct LayerClass {
    LayerKind kind;
    int64_t ratio;  // tokens per compressed entry or pool; 0: none
    int64_t first;  // number of the first such layer
    int64_t count;
    bool selects = false, writes = false;  // has an indexer; writes entries
    std::string name()
        const;  // "dsa_shared", "dsa 16", "heavily_compressed 128", "shared_sparse 2 (selects)"
};
LayerClass layer_class(const AttentionConfig& config, int64_t layer);  // of this layer alone
// The classes of layers [0, layers); those of linear attention are left out.
std::vector<LayerClass> layer_classes(const AttentionConfig& config, int64_t layers);

// Returns the layer whose dimensions describe the model to a backend: the first layer that attends to
// selected keys, because it has all dimensions of the other layers. Returns 0 if there is no such layer.
int64_t telling_layer(const AttentionConfig& config);

// Formats by name; "auto" is the first format that serves a model of these dimensions.
CacheChoice choose_caches(const AttentionConfig& config, const std::string& kv_format,
                          const std::string& index_format, int32_t page_tokens);

// Floating-point operations of one query token (2 per multiply-add) whose request has `context` tokens,
// itself included. Norms, rotations, softmax, relu and sums are left out: together below 2 % of these.
struct TokenFlops {
    double project = 0, absorb = 0, score = 0, attend = 0, up_project = 0, out_project = 0;
    double total() const { return project + absorb + score + attend + up_project + out_project; }
};
struct TokenKeys {
    int64_t scored = 0, attended = 0;
};
TokenKeys token_keys(const AttentionConfig& config, const LayerClass& layers, int64_t context);
TokenFlops token_flops(const AttentionConfig& config, const LayerClass& layers, int64_t context);

}  // namespace smla::cli
