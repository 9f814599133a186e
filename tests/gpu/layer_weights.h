// Random weights of a small layer, for calls of the C ABI.
#pragma once

#include <smla/layer.h>

#include <memory>
#include <string>
#include <vector>

namespace gpu {

constexpr int64_t kHidden = 64;

struct LayerWeights {
    std::string config;  // text of a config.json
    int32_t layer = 0;
    std::vector<smla_named_tensor> tensors;
    std::shared_ptr<const void> owner;  // of names and values
};
// By the name of the kind: "dsa", "sliding", "ratio 4", "ratio 128".
LayerWeights layer_weights(const std::string& kind);

}  // namespace gpu
