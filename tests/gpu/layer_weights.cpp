#include "layer_weights.h"

#include "layers/random_layer.h"

#include <stdexcept>

namespace gpu {

using smla::layers_test::KindOfLayer;
using smla::layers_test::kKinds;
using smla::layers_test::RandomWeights;

LayerWeights layer_weights(const std::string& kind) {
    for (const KindOfLayer& each : kKinds) {
        if (kind != each.name) continue;
        const auto weights = std::make_shared<RandomWeights>(each.config(kHidden), each.layer);
        LayerWeights out{each.config(kHidden), each.layer, {}, weights};
        for (const smla::NamedTensor& tensor : weights->tensors)
            out.tensors.push_back({tensor.name.c_str(), tensor.tensor});
        return out;
    }
    throw std::runtime_error("no layer of kind " + kind);
}

}  // namespace gpu
