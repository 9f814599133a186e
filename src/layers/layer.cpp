#include "layers/layer.h"

namespace smla {

std::unique_ptr<Layer> open_layer(const Checkpoint& checkpoint, const AttentionConfig& config, int layer,
                                  LayerPrecision precision, Device& device) {
    return config.hybrid ? make_hybrid_layer(checkpoint, config, layer, precision, device)
                         : make_dsa_layer(checkpoint, config, layer, precision, device);
}

void check_forced_topk(const char* field, const Layer& layer, const Tensor& given, int64_t tokens) {
    const LayerKind kind = layer.kind();
    if (kind == LayerKind::dsa_shared) return check_tensor(field, given, kInt32, {tokens, kAny});
    if (!check_optional(field, given, kInt32, {tokens, kAny})) return;
    SMLA_CHECK(kind != LayerKind::sliding && kind != LayerKind::heavily_compressed, field, describe(given),
               text("nothing: a layer of kind ", layer_kind_name(kind), " selects none"));
}

size_t layer_workspace(const Layer& layer, const Env& env, const LayerStep& step, size_t stage_budget,
                       const Tap* tap) {
    Runner sizing(env, stage_budget, tap);
    layer.forward(sizing, step);
    return sizing.total_bytes();
}

void run_layer(const Layer& layer, const Env& env, const LayerStep& step, Workspace workspace,
               size_t stage_budget, StageRecords* records, const Tap* tap) {
    Runner sizing(env, stage_budget, tap);
    sizing.check_calls();
    layer.forward(sizing, step);
    Runner run(env, sizing, workspace, records);
    layer.forward(run, step);
}

}  // namespace smla
