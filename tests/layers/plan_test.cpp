// Plans that a layer takes: those of its window, its ratio and its groups, whatever they hold for other
// layers.
#include "layer_of_kind.h"

#include <functional>

namespace smla::layers_test {
namespace {

using Change = std::function<void(smla_plan_args&)>;

// Whether a step of such a plan is refused for it.
bool refuses(const LayerOfKind& layer, const Change& change) {
    smla_plan_args made = layer.plan_args();
    change(made);
    smla_plan* plan = nullptr;
    EXPECT_EQ(smla_plan_create(&made, &plan), SMLA_OK) << smla_last_error();
    smla_layer_step step{.struct_size = sizeof step};
    step.plan = plan;
    step.hidden = step.out = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {1, kHidden});
    size_t bytes = 0;
    smla_error error{};
    if (smla_layer_workspace_size(layer.get(), &step, 0, &bytes) != SMLA_OK) smla_last_error_info(&error);
    const bool refused = error.field && std::string(error.field) == "step.plan";
    smla_plan_destroy(plan);
    return refused;
}

TEST(LayerPlans, AreOfTheLayersWindowRatioAndGroups) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const LayerOfKind layer(kind);
        const smla_layer_info& info = layer.info;
        EXPECT_FALSE(refuses(layer, [](smla_plan_args&) {}));
        EXPECT_FALSE(refuses(layer, [](smla_plan_args& a) { a.max_tokens = 5, a.heads = 3, a.workers = 2; }));
        if (info.window) {
            EXPECT_TRUE(refuses(layer, [](smla_plan_args& a) { a.window -= 1; }));
            EXPECT_TRUE(refuses(layer, [](smla_plan_args& a) { a.window *= 2; }));
        }
        if (layer.lists_entries()) {
            EXPECT_TRUE(refuses(layer, [](smla_plan_args& a) { a.ratio = 2 * std::max(a.ratio, 1); }));
        }
        EXPECT_EQ(refuses(layer, [](smla_plan_args& a) { a.list_entries = 0; }),
                  info.kind == SMLA_LAYER_HEAVILY_COMPRESSED);
        if (info.plan_groups & SMLA_GROUP_COMPRESSED) {
            EXPECT_FALSE(refuses(layer, [](smla_plan_args& a) { a.list_entries = 1; }));
        }
    }
}

TEST(LayerPlans, MayHaveMoreGroupsButNotFewer) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const LayerOfKind layer(kind);
        const bool window = layer.info.window > 0;
        EXPECT_FALSE(refuses(layer, [=](smla_plan_args& a) {
            a.groups |= window ? SMLA_GROUP_COMPRESSED | SMLA_GROUP_STATE | SMLA_GROUP_INDEX
                               : SMLA_GROUP_INDEX | SMLA_GROUP_INDEX_STATE;
            if (a.ratio == 0 && window) a.ratio = 4;
        }));
        for (int32_t bit = 1; bit <= SMLA_GROUP_INDEX_STATE; bit *= 2) {
            if (!(layer.info.plan_groups & bit) || layer.info.plan_groups == bit) continue;
            EXPECT_TRUE(refuses(layer, [=](smla_plan_args& a) {
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
