// A layer of each kind, with random weights, through the C ABI.
#pragma once

#include "random_layer.h"

#include <smla/smla.h>

namespace smla::layers_test {

constexpr int64_t kHidden = 64;

class LayerOfKind {
public:
    explicit LayerOfKind(const KindOfLayer& kind) : weights_(kind.config(kHidden), kind.layer) {
        smla_context_args on{.struct_size = sizeof on, .version = SMLA_VERSION, .threads = 1};
        EXPECT_EQ(smla_context_create(&on, &context_), SMLA_OK);
        const std::string json = kind.config(kHidden);
        std::vector<smla_named_tensor> tensors;
        for (const NamedTensor& each : weights_.tensors) tensors.push_back({each.name.c_str(), each.tensor});
        smla_layer_args args{.struct_size = sizeof args, .layer = kind.layer};
        args.tensors = tensors.data();
        args.tensor_count = int32_t(tensors.size());
        args.config_json = json.c_str();
        EXPECT_EQ(smla_layer_create(context_, &args, &layer_), SMLA_OK) << smla_last_error();
        info.struct_size = sizeof info;
        EXPECT_EQ(smla_layer_get_info(layer_, &info), SMLA_OK);
    }
    ~LayerOfKind() {
        smla_layer_destroy(layer_);
        smla_context_destroy(context_);
    }
    LayerOfKind(const LayerOfKind&) = delete;

    // The least plan that the layer takes.
    smla_plan_args plan_args() const {
        smla_plan_args out{.struct_size = sizeof out, .groups = info.plan_groups};
        out.max_tokens = out.max_requests = 1;
        out.max_seq_len = 300;
        out.window = info.window;
        out.ratio = lists_entries() ? info.ratio : 0;
        out.list_entries = info.kind == SMLA_LAYER_HEAVILY_COMPRESSED;
        return out;
    }
    bool lists_entries() const { return info.plan_groups & (SMLA_GROUP_COMPRESSED | SMLA_GROUP_INDEX); }

    smla_layer_info info{};

    const AttentionConfig& config() const { return weights_.config; }
    int index() const { return weights_.layer; }
    smla_context* context() const { return context_; }
    const smla_layer* get() const { return layer_; }

private:
    RandomWeights weights_;
    smla_context* context_ = nullptr;
    smla_layer* layer_ = nullptr;
};

}  // namespace smla::layers_test
