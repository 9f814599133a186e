// Plans that a layer takes: those of its window, its ratio and its groups, whatever they hold for other
// layers.
#include "random_layer.h"

#include <smla/smla.h>

#include <functional>

namespace smla::layers_test {
namespace {

constexpr int64_t kHidden = 64;

using Change = std::function<void(smla_plan_args&)>;

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

    // Whether a step of such a plan is refused for it.
    bool refuses(const Change& change) const {
        smla_plan_args made{.struct_size = sizeof made, .groups = info.plan_groups};
        made.max_tokens = made.max_requests = 1;
        made.max_seq_len = 300;
        made.window = info.window;
        made.ratio = lists_entries() ? info.ratio : 0;
        made.list_entries = info.kind == SMLA_LAYER_HEAVILY_COMPRESSED;
        change(made);
        smla_plan* plan = nullptr;
        EXPECT_EQ(smla_plan_create(&made, &plan), SMLA_OK) << smla_last_error();
        smla_layer_step step{.struct_size = sizeof step};
        step.plan = plan;
        step.hidden = step.out = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {1, kHidden});
        size_t bytes = 0;
        smla_error error{};
        if (smla_layer_workspace_size(layer_, &step, 0, &bytes) != SMLA_OK) smla_last_error_info(&error);
        const bool refused = error.field && std::string(error.field) == "step.plan";
        smla_plan_destroy(plan);
        return refused;
    }
    bool lists_entries() const { return info.plan_groups & (SMLA_GROUP_COMPRESSED | SMLA_GROUP_INDEX); }

    smla_layer_info info{};

private:
    RandomWeights weights_;
    smla_context* context_ = nullptr;
    smla_layer* layer_ = nullptr;
};

TEST(LayerPlans, AreOfTheLayersWindowRatioAndGroups) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const LayerOfKind layer(kind);
        const smla_layer_info& info = layer.info;
        EXPECT_FALSE(layer.refuses([](smla_plan_args&) {}));
        EXPECT_FALSE(layer.refuses([](smla_plan_args& a) { a.max_tokens = 5, a.heads = 3, a.workers = 2; }));
        if (info.window) {
            EXPECT_TRUE(layer.refuses([](smla_plan_args& a) { a.window -= 1; }));
            EXPECT_TRUE(layer.refuses([](smla_plan_args& a) { a.window *= 2; }));
        }
        if (layer.lists_entries()) {
            EXPECT_TRUE(layer.refuses([](smla_plan_args& a) { a.ratio = 2 * std::max(a.ratio, 1); }));
        }
        EXPECT_EQ(layer.refuses([](smla_plan_args& a) { a.list_entries = 0; }),
                  info.kind == SMLA_LAYER_HEAVILY_COMPRESSED);
        if (info.plan_groups & SMLA_GROUP_COMPRESSED) {
            EXPECT_FALSE(layer.refuses([](smla_plan_args& a) { a.list_entries = 1; }));
        }
    }
}

TEST(LayerPlans, MayHaveMoreGroupsButNotFewer) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const LayerOfKind layer(kind);
        const bool window = layer.info.window > 0;
        EXPECT_FALSE(layer.refuses([=](smla_plan_args& a) {
            a.groups |= window ? SMLA_GROUP_COMPRESSED | SMLA_GROUP_STATE | SMLA_GROUP_INDEX
                               : SMLA_GROUP_INDEX | SMLA_GROUP_INDEX_STATE;
            if (a.ratio == 0 && window) a.ratio = 4;
        }));
        for (int32_t bit = 1; bit <= SMLA_GROUP_INDEX_STATE; bit *= 2) {
            if (!(layer.info.plan_groups & bit) || layer.info.plan_groups == bit) continue;
            EXPECT_TRUE(layer.refuses([=](smla_plan_args& a) {
                a.groups &= ~bit;
                if (bit == SMLA_GROUP_WINDOW) a.window = 0;
                if (bit == SMLA_GROUP_COMPRESSED) a.list_entries = 0;
                if (!(a.groups & (SMLA_GROUP_PRIMARY | SMLA_GROUP_COMPRESSED | SMLA_GROUP_INDEX)))
                    a.ratio = 0;
            })) << bit;
        }
    }
}

}  // namespace
}  // namespace smla::layers_test
