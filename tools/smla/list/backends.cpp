#include "backends.h"

#include "backends/gate.h"
#include "backends/registry.h"
#include "devices.h"
#include "model/backend_config.h"
#include "model_info.h"
#include "models.h"

#include <algorithm>

namespace smla::cli {

namespace {

// Display name of a model family, and the published model whose configuration represents it.
constexpr std::pair<const char*, const char*> kModels[] = {{"DeepSeek-V3.2", "deepseek-v3.2"},
                                                           {"GLM-5.x", "glm-5"},
                                                           {"GLM-5.3-Flash", "glm-5.3-flash"},
                                                           {"DeepSeek-V4", "deepseek-v4-flash"},
                                                           {"DeepSeek-V4.1", "deepseek-v4.1-flash"}};

BackendArgs args_of(const char* model) {
    const AttentionConfig config = published_model(model);
    return backend_args(config, telling_layer(config));
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
                 {"cache", "record"},
                 {"engine", "engine"},
                 {"original", "the original's gate"}});
    for (const auto& [name, published] : kModels) {
        BackendArgs args = args_of(published);
        for (const char* type : kCacheTypes)
            for (const char* device : kDevices) {
                if (!has_cache_type(args.family, type)) continue;
                args.device = describe_device(device);
                args.kv_cache_dtype = type;
                const BackendConfig config = resolve_config(args);
                const BackendChoice selection = select_backend(config, "");
                const Backend* const backend = selection.backend;
                table.row(
                    {name, type, device, backend ? Document(backend->name) : Document(),
                     backend ? Document(record_names(*backend, config)) : Document(), selection.engine.name,
                     backend ? Document(joined(published_refusals(*backend, config), "; ")) : Document()});
            }
    }
    return table;
}

Table support_matrix() {
    std::vector<Column> columns{{"device", "device"}};
    for (const auto& [name, published] : kModels) {
        std::string_view heading = name;
        for (const std::string_view part : {"DeepSeek-", "-Flash"}) {  // omitted, so that five columns fit
            if (heading.starts_with(part)) heading.remove_prefix(part.size());
            if (heading.ends_with(part)) heading.remove_suffix(part.size());
        }
        columns.push_back({published, std::string(heading)});
    }
    Table table(columns);
    for (const char* device : kDevices) {
        const std::string products = products_of(device);
        std::vector<Document> row{products.empty() ? device : text(device, " (", products, ")")};
        for (const auto& [name, published] : kModels) {
            BackendArgs args = args_of(published);
            args.device = describe_device(device);
            args.kv_cache_dtype = "auto";
            const BackendChoice selection = select_backend(resolve_config(args), "");
            row.push_back(selection.backend ? Document(selection.backend->name) : Document());
        }
        table.row(std::move(row));
    }
    return table;
}

}  // namespace smla::cli
