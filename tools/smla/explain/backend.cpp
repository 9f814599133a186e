#include "backend.h"

#include "backends/gate.h"
#include "backends/registry.h"
#include "common.h"
#include "devices.h"
#include "model/backend_config.h"
#include "model_info.h"
#include "models.h"

namespace smla::cli {

namespace {

std::string joined(const std::vector<std::string>& reasons) {
    std::string out;
    for (const std::string& reason : reasons) out += (out.empty() ? "" : "; ") + reason;
    return out;
}

Document as_json(const BackendChoice& selection, const BackendConfig& config) {
    Document candidates = Document::array();
    for (const BackendVerdict& verdict : selection.verdicts) {
        const std::string records = record_names(*verdict.backend, config);
        candidates.push_back({{"backend", verdict.backend->name},
                              {"chosen", verdict.backend == selection.backend},
                              {"can_serve", verdict.refusals.empty()},
                              {"cache", records.empty() ? Document() : Document(records)},
                              {"refusals", verdict.refusals},
                              {"original", verdict.published}});
    }
    return {{"device", device_name(config.args.device)},
            {"kv_cache_dtype", config.cache_type},
            {"heads", config.args.heads},
            {"backend", selection.backend ? Document(selection.backend->name) : Document()},
            {"forced", !selection.forced.empty()},
            {"engine", selection.engine.name},
            {"engine_refusal", selection.engine.refusal},
            {"candidates", candidates}};
}

std::string as_text(const BackendChoice& selection) {
    std::string out = paint(selection.backend ? Colour::green : Colour::red, selection.line()) + "\n";
    if (!selection.engine.refusal.empty()) out += "  " + paint(Colour::dim, selection.engine.refusal) + "\n";
    for (const BackendVerdict& verdict : selection.verdicts) {
        const bool chosen = verdict.backend == selection.backend, able = verdict.refusals.empty();
        out += fmt::format("{} {}\n", chosen ? "*" : " ", verdict.backend->name);
        if (!chosen)
            out += fmt::format("    {}\n", !able ? "not supported: " + joined(verdict.refusals)
                                           : selection.forced.empty()
                                               ? "supported, lower priority"
                                               : "supported; SMLA_BACKEND or --backend names another");
        out += fmt::format("    original: {}\n", verdict.published.empty()
                                                     ? "would accept"
                                                     : "would refuse: " + joined(verdict.published));
    }
    return out;
}

}  // namespace

int explain_backend(const Tool& tool, const std::string& model, const BackendQuestion& question) {
    check_cache_type("--kv-dtype", question.kv_dtype);
    const AttentionConfig config = load_model(model);
    BackendArgs args = backend_args(config, telling_layer(config));
    args.device = parse_device("--device", question.device);
    args.kv_cache_dtype = question.kv_dtype.c_str();
    if (question.heads) args.heads = int32_t(question.heads);
    const BackendConfig resolved = resolve_config(args);
    const BackendChoice selection = select_backend(resolved, question.backend);
    if (tool.json()) {
        Document document = as_json(selection, resolved);
        document["model_type"] = config.common.model_type;
        tool.print(document);
    } else {
        tool.print(
            paint(Colour::bold, fmt::format("{} on {}, {} heads, kv_cache_dtype {}", config.common.model_type,
                                            question.device, resolved.args.heads, resolved.cache_type)) +
            "\n" + as_text(selection));
    }
    return selection.backend ? kOk : kUnsupportedHere;
}

}  // namespace smla::cli
