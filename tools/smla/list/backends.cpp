#include "backends.h"

#include "backends/gate.h"
#include "backends/registry.h"

#include <algorithm>

namespace smla::cli {

namespace {

struct Model {
    const char* name;
    BackendArgs args;
};

// Dimensions of the published config.json files.
std::vector<Model> models() {
    BackendArgs base{};
    base.struct_size = sizeof base;
    base.softmax_scale = base.max_tokens = base.max_requests = base.max_seq_len = 1;
    BackendArgs v32 = base, glm = base, v4 = base, v41 = base;
    v32.heads = 128;
    v32.topk = glm.topk = 2048;
    glm.heads = 64;
    glm.nope_dim = 192;
    glm.v_head_dim = 256;
    v4.family = SMLA_FAMILY_HYBRID;
    v4.heads = 64;
    v4.topk = 512;
    v4.ratio = 4;
    BackendArgs flash = glm;
    flash.rope_dim = -1;
    flash.nope_dim = 256;
    flash.ratio = 16;
    v41.family = SMLA_FAMILY_HYBRID_SHARED;
    v41.heads = 64;
    v41.topk = 512;
    v41.ratio = 1;
    return {{"DeepSeek-V3.2", v32},
            {"GLM-5.x", glm},
            {"GLM-5.3-Flash", flash},
            {"DeepSeek-V4", v4},
            {"DeepSeek-V4.1", v41}};
}

constexpr const char* kDevices[] = {"cpu", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121"};
constexpr const char* kCacheTypes[] = {"auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla"};

template <class List>
std::string joined(const List& list, const char* between = ", ") {
    std::string out;
    for (const auto& each : list) out += (out.empty() ? "" : between) + text(each);
    return out;
}

const char* graph_text(smla_graph_support level) {
    switch (level) {
        case SMLA_GRAPH_UNIFORM_DECODE: return "uniform decode";
        case SMLA_GRAPH_UNIFORM_BATCH: return "uniform batch";
        case SMLA_GRAPH_ALWAYS: return "always";
        default: return "never";
    }
}

bool has_cache_type(smla_family family, std::string_view name) {
    const auto has = [&](const Backend* backend) {
        const auto& types = backend->cache_types;
        return backend->family == family &&
               std::any_of(types.begin(), types.end(),
                           [&](const CacheType& type) { return type.name == name; });
    };
    return std::any_of(all_backends().begin(), all_backends().end(), has);
}

}  // namespace

Table backends_table() {
    Table table({{"name", "backend"},
                 {"family", "for", {}, 4},
                 {"cache_types", "kv_cache_dtype"},
                 {"page_tokens", "page", {}, 3},
                 {"graphs", "graphs", {}, 2},
                 {"aliases", "also", {}, 1}});
    for (const Backend* backend : all_backends()) {
        std::vector<std::string> types;
        for (const CacheType& type : backend->cache_types) types.emplace_back(type.name);
        table.row({backend->name, find_family(backend->family)->models, joined(types), backend->page_tokens,
                   graph_text(backend->graph_support), joined(backend->aliases)});
    }
    return table;
}

Table support_table() {
    Table table({{"model", "model"},
                 {"kv_cache_dtype", "kv_cache_dtype"},
                 {"device", "device"},
                 {"backend", "backend"},
                 {"cache", "record", {}, 3},
                 {"engine", "engine", {}, 1},
                 {"original", "the original's gate", {}, 2}});
    for (Model& model : models())
        for (const char* type : kCacheTypes)
            for (const char* device : kDevices) {
                if (!has_cache_type(model.args.family, type)) continue;
                model.args.device = describe_device(device);
                model.args.kv_cache_dtype = type;
                const BackendConfig config = resolve_config(model.args);
                const BackendChoice selection = select_backend(config, "");
                std::vector<Document> row{model.name, type, device};
                if (selection.backend) {
                    row.insert(row.end(),
                               {selection.backend->name, record_names(*selection.backend, config)});
                    row.emplace_back(selection.engine.name);
                    row.emplace_back(joined(published_refusals(*selection.backend, config), "; "));
                } else {
                    row.insert(row.end(), {Document(), Document(), selection.engine.name, Document()});
                }
                table.row(std::move(row));
            }
    return table;
}

}  // namespace smla::cli
