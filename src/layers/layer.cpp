#include "layers/layer.h"

#include "layers/cache_layout.h"

#include <algorithm>

namespace smla {

namespace {

constexpr auto kStepPlaces = [] {
    using Args = LayerStep;
    const auto group = [](size_t at) { return fields_inside(kGroupPlaces, at); };
    return join_fields(std::array{SMLA_PLACE(hidden), SMLA_PLACE(out), SMLA_PLACE(forced_topk),
                                  SMLA_PLACE(topk), SMLA_PLACE(candidates), SMLA_PLACE(best_blocks)},
                       fields_inside(kBatchPlaces, offsetof(Args, batch)), group(offsetof(Args, caches.kv)),
                       group(offsetof(Args, caches.index)),
                       fields_inside(kWindowPlaces, offsetof(Args, caches.window)),
                       fields_inside(kEntriesPlaces, offsetof(Args, caches.entries)),
                       group(offsetof(Args, caches.state)), group(offsetof(Args, caches.index_state)));
}();

// A step's outputs, and the inputs that they must not overlap. The caches' stages check the caches.
constexpr auto kOwnPlaces = [] {
    using Args = LayerStep;
    return std::array{SMLA_PLACE(hidden),
                      fields::out(SMLA_FIELD(out), 0, {}).or_in_place_of(offsetof(Args, hidden)),
                      SMLA_PLACE(forced_topk),
                      fields::out(SMLA_FIELD(topk), 0, {}),
                      SMLA_PLACE(candidates),
                      fields::out(SMLA_FIELD(best_blocks), 0, {}),
                      fields::cache("primary", offsetof(Args, caches.kv.cache), 0),
                      fields::cache("index", offsetof(Args, caches.index.cache), 0),
                      fields::cache("window", offsetof(Args, caches.window.group.cache), 0),
                      fields::cache("compressed", offsetof(Args, caches.entries.group.cache), 0),
                      fields::cache("state", offsetof(Args, caches.state.cache), 0),
                      fields::cache("index_state", offsetof(Args, caches.index_state.cache), 0)};
}();

// Checks a step's caches under their names in the step. Stages would report other names, some after other
// stages have written.
void check_caches(const Layer& layer, const LayerCaches& caches, const CheckContext& context) {
    const struct {
        int32_t group;
        const smla_cache& cache;
        uint32_t allowed;
    } all[] = {{SMLA_GROUP_PRIMARY, caches.kv.cache, kKvFormats},
               {SMLA_GROUP_INDEX, caches.index.cache, kIndexFormats},
               {SMLA_GROUP_WINDOW, caches.window.group.cache, kKvFormats},
               {SMLA_GROUP_COMPRESSED, caches.entries.group.cache, kKvFormats},
               {SMLA_GROUP_STATE, caches.state.cache, kStateFormats},
               {SMLA_GROUP_INDEX_STATE, caches.index_state.cache, kStateFormats}};
    const std::vector<CacheNeed> needs = cache_needs(layer.config(), layer.layer_index(), {});
    for (const auto& [group, cache, allowed] : all) {
        const auto need = std::find_if(needs.begin(), needs.end(),
                                       [&, bit = group](const CacheNeed& each) { return each.group == bit; });
        if (need == needs.end() && cache.format == SMLA_FORMAT_NONE) continue;
        const std::string field = text("step.", group_name(group), ".cache");
        check_cache(field.c_str(), cache, allowed, context);
        if (need == needs.end()) continue;  // another layer's cache, whose width its own step checks
        const int32_t width = CacheView(cache).width;
        SMLA_CHECK(width == need->width, field + ".width", width,
                   text(need->width, " (the width of the layer)"));
    }
}

}  // namespace

const char* group_name(int32_t bit) {
    switch (bit) {
        case SMLA_GROUP_PRIMARY: return "primary";
        case SMLA_GROUP_WINDOW: return "window";
        case SMLA_GROUP_COMPRESSED: return "compressed";
        case SMLA_GROUP_INDEX: return "index";
        case SMLA_GROUP_STATE: return "state";
        default: return "index_state";
    }
}

std::unique_ptr<Layer> open_layer(const Checkpoint& checkpoint, const AttentionConfig& config, int layer,
                                  LayerPrecision precision, Device& device) {
    return config.hybrid ? make_hybrid_layer(checkpoint, config, layer, precision, device)
                         : make_dsa_layer(checkpoint, config, layer, precision, device);
}

PlanMaxima plan_for(const AttentionConfig& config, int layer) {
    PlanMaxima out{};
    out.struct_size = sizeof out;
    for (const CacheNeed& need : cache_needs(config, layer, {})) out.groups |= need.group;
    if (config.hybrid && config.sources(layer).entries >= 0)
        out.groups |= SMLA_GROUP_COMPRESSED;  // possibly another layer's
    out.window = config.hybrid ? int32_t(config.hybrid->window) : 0;
    if (out.groups & (SMLA_GROUP_COMPRESSED | SMLA_GROUP_INDEX))
        out.ratio = int32_t(config.compress_ratio(layer));
    out.list_entries = config.layer_kind(layer) == LayerKind::heavily_compressed;
    return out;
}

smla_layer_info describe_layer(const AttentionConfig& config, int layer) {
    const LayerSources sources = config.sources(layer);
    smla_layer_info out{};
    out.struct_size = sizeof out;
    out.plan_groups = plan_for(config, layer).groups;
    out.kind = int32_t(config.layer_kind(layer));
    out.hidden_size = int32_t(config.common.hidden_size);
    out.heads = int32_t(config.common.heads);
    for (const CacheNeed& need : cache_needs(config, layer, {}))
        if (need.group == SMLA_GROUP_PRIMARY || need.group == SMLA_GROUP_WINDOW) out.kv_width = need.width;
    out.window = config.hybrid ? int32_t(config.hybrid->window) : 0;
    out.ratio = int32_t(config.compress_ratio(layer));
    out.entries_of = int32_t(sources.entries);
    out.selection_of = int32_t(sources.selection);
    out.candidates_of = int32_t(sources.candidates);
    if (sources.candidates >= 0) out.candidate_blocks = int32_t(config.hybrid->sharing->candidate_blocks);
    if (config.selects(layer)) {
        out.index_width = int32_t(config.indexer->head_dim);
        out.index_heads = int32_t(config.indexer->heads);
        out.topk = int32_t(config.indexer->topk);
        out.index_rope_style = config.indexer->rope_style;
    }
    out.rope_width = int32_t(config.common.rope_dim);
    if (out.rope_width) out.rope_theta = config.rope(layer).theta;
    out.softmax_scale = config.softmax_scale();
    return out;
}

void check_plan(const char* field, const PlanMaxima& plan, const PlanMaxima& wanted) {
    const int32_t missing = wanted.groups & ~plan.groups;
    SMLA_CHECK(missing == 0, field, text("a plan for groups ", plan.groups),
               text("a plan for groups ", wanted.groups, " (of the layer)"));
    SMLA_CHECK(wanted.window == 0 || plan.window == wanted.window, field,
               text("a plan for window ", plan.window),
               text("a plan for window ", wanted.window, " (of the layer)"));
    const bool entries = wanted.groups & (SMLA_GROUP_COMPRESSED | SMLA_GROUP_INDEX);
    SMLA_CHECK(!entries || std::max(plan.ratio, 1) == std::max(wanted.ratio, 1), field,
               text("a plan for ratio ", plan.ratio),
               text("a plan for ratio ", wanted.ratio, " (of the layer)"));
    SMLA_CHECK(
        plan.list_entries >= wanted.list_entries, field, text("a plan with list_entries ", plan.list_entries),
        text("a plan with list_entries ", wanted.list_entries, ", because the layer attends to all entries"));
}

void check_forced_topk(const char* field, const Layer& layer, const Tensor& given, int64_t tokens,
                       const CheckContext& context) {
    const int64_t source = layer.config().sources(layer.layer_index()).selection;
    if (source >= 0 && source != layer.layer_index())
        return check_tensor(field, given, kInt32, {tokens, kAny}, context);
    if (!check_optional(field, given, kInt32, {tokens, kAny}, context)) return;
    SMLA_CHECK(
        source >= 0, field, describe(given),
        text("absent, because a layer of kind ", layer_kind_name(layer.kind()), " selects no entries"));
}

void check_candidates(const Layer& layer, const Tensor& candidates, const Tensor& best_blocks, bool selects,
                      int64_t tokens, const CheckContext& context) {
    const int64_t source = layer.config().sources(layer.layer_index()).candidates;
    const bool names = source == layer.layer_index(), reads = source >= 0 && !names;
    if (reads && selects) check_tensor("step.candidates", candidates, kInt32, {tokens, kAny}, context);
    else if (check_optional("step.candidates", candidates, kInt32, {tokens, kAny}, context))
        SMLA_CHECK(reads, "step.candidates", describe(candidates),
                   "absent, because the layer scores all entries");
    const int64_t blocks = names ? layer.config().hybrid->sharing->candidate_blocks : kAny;
    if (check_optional("step.best_blocks", best_blocks, kInt32, {tokens, blocks}, context))
        SMLA_CHECK(names, "step.best_blocks", describe(best_blocks),
                   "absent, because the layer selects no blocks");
}

size_t layer_workspace(const Layer& layer, const Env& env, const LayerStep& step, size_t stage_budget,
                       const Tap* tap) {
    Runner sizing(env, stage_budget, tap);
    check_caches(layer, step.caches, CheckContext{}.shapes_only());
    layer.forward(sizing, step);
    return sizing.total_bytes();
}

void run_layer(const Layer& layer, const Env& env, const LayerStep& step, Workspace workspace,
               size_t stage_budget, StageRecords* records, const Tap* tap) {
    PlanKey key(PlanUse::step, layer.id(), stage_budget, env);
    key.add_address(workspace.data);
    key.add(step, kStepPlaces);
    const bool keeps = key.add_numbers(step.batch.parts);
    run_step(env, keeps ? &key : nullptr, stage_budget, workspace, records, tap, [&](Runner& run) {
        if (run.sizing()) check_caches(layer, step.caches, env.checks());
        else check_own_memory(kOwnPlaces, &step, workspace, "step");
        layer.forward(run, step);
    });
}

}  // namespace smla
