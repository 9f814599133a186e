// smla list: engines, instruction sets, record formats, stages and their kernels, attention backends.
#include "backends.h"
#include "common.h"
#include "core/cpu_features.h"
#include "core/environment.h"
#include "core/limits.h"
#include "engines/run.h"
#include "formats/format.h"
#include "machine.h"
#include "models.h"
#include "subcommands.h"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace smla::cli {

namespace {

struct Options {
    std::string what = "all";
};

Table engines() {
    Table table({{"name", "engine"}, {"available", "here"}, {"note", "note"}});
    table.row({"reference", true, "plain loops on one thread: the specification; has f64 too"});
    table.row(
        {"cpu", true, text("instruction set ", isa_name(best_isa()), ", ", usable_cores(), " threads")});
    const std::string why = why_no_gpu();
    table.row({"cuda", why.empty(), why.empty() ? "any NVIDIA GPU since Ampere" : why});
    return table;
}

Table instruction_sets() {
    Table table({{"name", "isa"}, {"available", "here"}, {"chosen", "taken by auto"}});
    const std::vector<smla_isa> here = isas_here();
    for (smla_isa isa = SMLA_ISA_SCALAR; isa <= kLastIsa; ++isa)
        table.row({isa_name(isa), std::find(here.begin(), here.end(), isa) != here.end(), isa == best_isa()});
    return table;
}

const char* scale_text(ScaleKind kind) {
    switch (kind) {
        case ScaleKind::none: return "none";
        case ScaleKind::per_tensor: return "one per cache";
        case ScaleKind::f32_tile: return "f32 per tile";
        case ScaleKind::e8m0_tile: return "e8m0 per tile";
        case ScaleKind::e4m3_tile: return "e4m3 per tile";
    }
    return "";
}

const char* use_text(smla_format id) {
    const uint32_t bit = format_bit(id);
    if (bit & kStateFormats) return "compressor state";
    if ((bit & kKvFormats) && (bit & kIndexFormats)) return "kv, index keys";
    return bit & kKvFormats ? "kv" : "index keys";
}

Table formats_table() {
    Table table({{"name", "format"},
                 {"width", "width", {}, 3},
                 {"bytes_per_token", "B/token", {}, 5},
                 {"page_64_bytes", "page of 64", {}, 2},
                 {"packing", "packed by", {}, 1},
                 {"scale", "scales", {}, 3},
                 {"alignment", "align", {}, 0},
                 {"use", "for", {}, 4}});
    for (const Format* format : all_formats()) {
        const int32_t width = format->width;
        table.row({format->name, width ? Document(width) : Document(text("1 to ", format->max_width)),
                   width ? Document(format->record_bytes(width))
                         : Document(text(
                               format->record_bytes(format->width_multiple) / size_t(format->width_multiple),
                               " x width")),
                   width ? Document(format->page_bytes(width, 64)) : Document(),
                   format->packing == Packing::row ? "row" : "page", scale_text(format->scale),
                   format->alignment, use_text(format->id)});
    }
    return table;
}

Table kernels() {
    Table table({{"stage", "stage"},
                 {"cpu", "cpu, best first"},
                 {"cuda", "cuda, best first", {}, 3},
                 {"reference", "reference", {}, 0}});
    for (int stage = 0; stage < kStageCount; ++stage)
        table.row({kStageNames[stage], Document(kernel_names(Stage(stage), SMLA_ENGINE_CPU)),
                   Document(kernel_names(Stage(stage), SMLA_ENGINE_CUDA)),
                   Document(kernel_names(Stage(stage), SMLA_ENGINE_REFERENCE))});
    return table;
}

// Returns the reasons why kernels are not in the list or cannot run on this machine.
std::string missing_kernels() {
    std::string out;
    if (const std::string why = why_no_gpu(); !why.empty()) out += "cuda: " + why + "\n";
    const std::vector<std::string> attend = kernel_names(Stage::attend, SMLA_ENGINE_CPU);
    for (smla_isa isa = SMLA_ISA_SCALAR; isa <= kLastIsa; ++isa) {
        const std::string why = why_no_isa(isa, best_isa()), prefix = text("cpu_", isa_name(isa), "_");
        const bool listed = std::any_of(attend.begin(), attend.end(),
                                        [&](const std::string& name) { return name.starts_with(prefix); });
        if (listed && !why.empty()) out += prefix + "*: " + why + "\n";
    }
    return out.empty() ? out : "Missing or not usable here:\n" + out;
}

Table models() {
    Table table({{"name", "model"}, {"model_type", "model_type"}, {"layers", "layers"}, {"heads", "heads"}});
    for (const std::string& name : published_models()) {
        const AttentionConfig config = published_model(name);
        table.row({name, config.common.model_type, config.common.layers, config.common.heads});
    }
    return table;
}

Table environment_table() {
    Table table({{"name", "variable"},
                 {"values", "values"},
                 {"meaning", "meaning", {}, 2},
                 {"checked", "checked", {}, 1}});
    for (const EnvironmentVariable& each : environment_variables())
        table.row({each.name, each.values, each.meaning, each.checked});
    return table;
}

std::string support_note() {
    return "The table shows backends for kv_cache_dtype auto; - means none. For other types, use\n"
           "smla list support --json. For the reasons, use\n"
           "smla explain --model MODEL --device DEVICE --kv-dtype TYPE.\n";
}

int list(const Tool& tool, const Options& options) {
    struct Part {
        const char* name;
        Table (*make)();
        bool is_long = false;       // omitted from "all"
        Table (*text)() = nullptr;  // table for text output, if it differs from JSON
        std::string (*below)() = nullptr;
    };
    static constexpr Part parts[] = {{"engines", engines},
                                     {"isas", instruction_sets},
                                     {"formats", formats_table},
                                     {"kernels", kernels, false, nullptr, missing_kernels},
                                     {"models", models},
                                     {"backends", backends_table},
                                     {"support", support_table, true, support_matrix, support_note},
                                     {"environment", environment_table, true}};
    std::vector<std::string> names{"all"};
    for (const Part& part : parts) names.emplace_back(part.name);
    const std::string& what = names[size_t(parse_choice("what", options.what, names))];
    Document document = Document::object();
    document["version"] = version_text();
    std::string out;
    for (const Part& part : parts) {
        if (what != part.name && (what != "all" || part.is_long)) continue;
        const Table table = part.make();
        document[part.name] = table.json();
        out += (out.empty() ? "" : "\n") + (part.text ? part.text() : table).text();
        if (part.below) out += part.below();
    }
    if (tool.json()) tool.print(document);
    else tool.print(out);
    return kOk;
}

}  // namespace

void add_list(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = tool.command(
        app, "list", "List engines, formats, kernels, models and attention backends of this build",
        "  smla list\n  smla list kernels\n  smla list support\n  smla list formats --json");
    command
        ->add_option("what", options->what,
                     "all, engines, isas, formats, kernels, models, backends, support or environment")
        ->capture_default_str();
    tool.action(command, [&tool, options] { return list(tool, *options); });
}

}  // namespace smla::cli
