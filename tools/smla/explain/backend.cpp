#include "backend.h"

#include "backends/gate.h"
#include "backends/registry.h"
#include "common.h"
#include "core/visible.h"
#include "devices.h"
#include "engines/candidate.h"
#include "engines/run.h"
#include "model/backend_config.h"
#include "model_info.h"
#include "models.h"

namespace smla::cli {

namespace {

// Stages whose kernel depends on the architecture.
constexpr Stage kTold[] = {Stage::project, Stage::score, Stage::select, Stage::attend};

// Returns the kernels of this build for a GPU by stage; which of them runs a call also depends on its shapes.
// Returns null for a CPU or if the build has no code for the GPU.
Document gpu_kernels(const DeviceInfo& device) {
    if (device.type == SMLA_CPU || !has_code_for(device.capability)) return {};
    Document out = Document::object();
    for (const Stage stage : kTold) {
        std::vector<std::string> names = kernel_names(stage, SMLA_ENGINE_CUDA);
        std::erase_if(names, [&](const std::string& name) {
            return name.starts_with("cuda_sm90_") && device.capability != 90;
        });
        out[std::string(stage_name(stage))] = names;
    }
    return out;
}

std::string kernels_text(const DeviceInfo& device, const Document& kernels, const std::string& model) {
    if (device.type == SMLA_CPU) return "";
    if (cuda_architectures().empty())
        return "kernels: none, because this build has no CUDA kernels; cmake --preset cuda builds them\n";
    if (kernels.is_null())
        return text("kernels: none, because this build has no code for ", device_name(device),
                    "; cmake --preset cuda builds code for every architecture\n");
    std::string out = "kernels of this build for it, best first:\n";
    for (const auto& [stage, names] : kernels.items())
        out += fmt::format("  {:<8} {}\n", stage, joined(names.get<std::vector<std::string>>(), ", "));
    return out + text("On a machine with this GPU, smla explain --model ", model,
                      " --device 0 shows the kernel of each stage.\n");
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
            {"kernels", gpu_kernels(config.args.device)},
            {"candidates", candidates}};
}

std::string as_text(const BackendChoice& selection) {
    std::string out = paint(selection.backend ? Colour::green : Colour::red, selection.line()) + "\n";
    if (!selection.engine.refusal.empty()) out += "  " + paint(Colour::dim, selection.engine.refusal) + "\n";
    for (const BackendVerdict& verdict : selection.verdicts) {
        const bool chosen = verdict.backend == selection.backend, able = verdict.refusals.empty();
        out += fmt::format("{} {}\n", chosen ? "*" : " ", verdict.backend->name);
        if (!chosen)
            out += fmt::format("    {}\n", !able ? "not supported: " + joined(verdict.refusals, "; ")
                                           : selection.forced.empty()
                                               ? "supported, lower priority"
                                               : "supported; SMLA_BACKEND or --backend selects another");
        out += fmt::format("    original: {}\n", verdict.published.empty()
                                                     ? "would accept"
                                                     : "would reject: " + joined(verdict.published, "; "));
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
            "\n" + as_text(selection) +
            kernels_text(args.device, gpu_kernels(args.device), without_controls(model)));
    }
    return selection.backend ? kOk : kUnsupportedHere;
}

}  // namespace smla::cli
