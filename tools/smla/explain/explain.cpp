// smla explain: which kernel runs each stage of a problem, which attention backend serves a model on a
// device, and why not the others.
#include "backend.h"
#include "backends/runner.h"
#include "common.h"
#include "devices.h"
#include "model_info.h"
#include "model_step.h"
#include "models.h"
#include "stage.h"
#include "subcommands.h"
#include "terminal.h"

#include <unistd.h>
#include <CLI/CLI.hpp>

namespace smla::cli {

namespace {

struct Options {
    std::string model, kv_format = "auto", index_format = "auto", stage, queries = "auto", device;
    int layer = -1, page_tokens = 64;
    bool all = false;
    int64_t tokens = 1, requests = 1, context = 131072;
    StageShape shape;
    BackendQuestion backend;
    ContextOptions context_options;
};

struct Call {
    std::string stage;
    std::vector<Verdict> kernels;
    std::string demanded;

    // Index of the kernel that would run; -1 if there is none.
    int chosen() const {
        for (size_t i = 0; i < kernels.size(); ++i)
            if (kernels[i].chosen) return int(i);
        return -1;
    }
    std::string reason(size_t i) const {
        if (!kernels[i].refusal.empty()) return kernels[i].refusal;
        if (!demanded.empty() && demanded != kernels[i].kernel)
            return text("SMLA_KERNEL or --kernel selects ", demanded);
        const std::string& why = kernels[i].lower_priority;
        return int(i) == chosen() ? "" : "supported, lower priority" + (why.empty() ? "" : ": " + why);
    }
    Document json() const {
        Document list = Document::array();
        const int best = chosen();
        for (size_t i = 0; i < kernels.size(); ++i)
            list.push_back({{"kernel", kernels[i].kernel},
                            {"chosen", int(i) == best},
                            {"can_run", kernels[i].refusal.empty()},
                            {"reason", reason(i)}});
        return {{"stage", stage},
                {"kernel", best < 0 ? Document() : Document(kernels[size_t(best)].kernel)},
                {"candidates", list}};
    }
    std::string line(bool all) const {
        const int best = chosen();
        const std::string name = best < 0 ? paint(Colour::red, "no kernel supports this call")
                                          : paint(Colour::green, kernels[size_t(best)].kernel);
        std::string out = fmt::format("{:<13} {}\n", stage, name), next;
        for (size_t i = 0; i < kernels.size(); ++i) {
            if (int(i) == best) continue;
            const bool able = kernels[i].refusal.empty();
            if (all || best < 0 || int(i) < best)
                out += fmt::format("{:<16}{}: {}\n", "", kernels[i].kernel, reason(i));
            else if (able) next += (next.empty() ? "" : ", ") + kernels[i].kernel;
        }
        if (!next.empty())
            out +=
                fmt::format("{:<16}{}\n", "", paint(Colour::dim, "also supported, lower priority: " + next));
        return out;
    }
};

std::vector<Call> model_calls(const AttentionConfig& config, int layer, const StepShape& shape,
                              const Env& env) {
    std::vector<Call> calls;
    Tap tap;
    tap.kernels = [&](Stage stage, const std::vector<Verdict>& kernels) {
        calls.push_back({std::string(stage_name(stage)), kernels, env.demanded[size_t(stage)]});
    };
    Runner sizing(env, 0, &tap);
    model_step(config, layer, shape).run(sizing);
    return calls;
}

std::string title(const AttentionConfig& config, int layer, const StepShape& shape, const Context& context) {
    const bool has_indexer = config.selects(layer);
    return text(config.common.model_type, " layer ", layer, " (", layer_kind_name(config.layer_kind(layer)),
                "), ", shape.requests, shape.requests == 1 ? " request, " : " requests, ", shape.tokens,
                " query ", shape.tokens == 1 ? "token" : "tokens", " each at ", shape.context, ", kv ",
                find_format(shape.caches.kv)->name,
                has_indexer ? text(", index ", find_format(shape.caches.index)->name) : "", ", queries ",
                dtype_name(shape.queries), "; ", context.description());
}

int explain_model(const Tool& tool, const Options& options) {
    const Context context = options.context_options.create(tool);
    const AttentionConfig config = load_model(options.model);
    StepShape shape;
    shape.requests = options.requests;
    shape.tokens = options.tokens;
    shape.context = std::max(options.context, options.tokens);
    shape.caches = choose_caches(config, options.kv_format, options.index_format, options.page_tokens);
    if (options.queries != "auto") shape.queries = parse_dtype("--queries", options.queries, kFloats);
    std::vector<int> layers;
    if (options.layer >= 0) layers.push_back(options.layer);
    else
        for (const LayerClass& each : layer_classes(config, std::max<int64_t>(config.common.layers, 1)))
            layers.push_back(int(each.first));
    Document documents = Document::array();
    int code = kOk;
    std::string out;
    for (const int layer : layers) {
        const std::vector<Call> calls = model_calls(config, layer, shape, context.env({}));
        Document stages = Document::array();
        std::string lines;
        for (const Call& call : calls) {
            stages.push_back(call.json());
            lines += call.line(options.all);
            if (call.chosen() < 0) code = kUnsupportedHere;
        }
        documents.push_back({{"layer", layer},
                             {"layer_kind", layer_kind_name(config.layer_kind(layer))},
                             {"title", title(config, layer, shape, context)},
                             {"stages", stages}});
        out += (out.empty() ? "" : "\n") + paint(Colour::bold, title(config, layer, shape, context)) + "\n" +
               lines;
    }
    if (tool.json()) tool.print(Document{{"context", context.description()}, {"layers", documents}});
    else tool.print(out);
    return code;
}

int explain_one(const Tool& tool, const Options& options) {
    const Context context = options.context_options.create(tool);
    const Stage stage = parse_stage("--stage", options.stage);
    StageShape shape = options.shape;
    shape.tokens = options.tokens;
    const Call call{options.stage, explain_stage_of(stage, shape, context.env({})),
                    context.env({}).demanded[size_t(stage)]};
    if (tool.json()) {
        Document document = call.json();
        document["context"] = context.description();
        tool.print(document);
    } else {
        tool.print(paint(Colour::bold, context.description()) + "\n" + call.line(options.all));
    }
    return call.chosen() < 0 ? kUnsupportedHere : kOk;
}

constexpr const char* kExamples =
    "  smla explain --model deepseek-v3.2\n"
    "  smla explain --model V4/config.json --layer 2 --kv-format bf16 --queries f32\n"
    "  smla explain --stage attend --heads 128 --width 576 --kv-format fp8_656\n"
    "  smla explain --stage score --columns 128K --index-format index_mxfp4_68 --queries e2m1\n"
    "  smla explain --model deepseek-v4-flash --device PRO-6000 --kv-dtype fp8";

// Rejects options that the requested explanation does not use.
void refuse_unread(const CLI::App& command, bool stage, bool named_device) {
    for (const CLI::Option* option : command.get_options()) {
        const std::string name = option->get_name();
        const bool of_model = name == "--layer" || name == "--requests" || name == "--context";
        const bool of_device = name == "--kv-dtype" || name == "--backend";
        const bool of_stage = option->get_group() == kStageGroup && !(named_device && name == "--heads");
        const char* const wanted = of_device && !named_device ? "--device NAME, for example H200"
                                   : of_model && stage        ? "--model"
                                   : of_stage && !stage       ? "--stage"
                                                              : nullptr;
        if (wanted && option->count())
            fail(SMLA_INVALID_ARGUMENT, name, option->as<std::string>(),
                 text("this option only together with ", wanted));
    }
}

// Shown if neither --model nor --stage is given.
constexpr const char* kGuide =
    "smla explain shows one of the following:\n"
    "  --model MODEL                the kernel that runs each stage of a decode step of the model's layers\n"
    "  --model MODEL --device H200  the attention backend that serves the model on that device\n"
    "  --stage NAME                 the kernel for one call, described by --heads, --width, --kv-format ...\n"
    "\nExamples:\n";

}  // namespace

void add_explain(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command =
        tool.command(app, "explain", "Show which kernel runs each stage, and why others do not", kExamples);
    command->add_option("--model", options->model, kModelHelp);
    command
        ->add_option("--stage", options->stage,
                     "Explain one call of this stage, described by the options below")
        ->transform(any_case());
    command->add_option("--layer", options->layer, "Number of the layer; default: one layer of each kind")
        ->check(whole_number(0, 100000));
    command->add_option("--kv-format", options->kv_format, "auto, or a KV format of smla list formats")
        ->transform(any_case())
        ->capture_default_str();
    command->add_option("--index-format", options->index_format, "auto, or an index format")
        ->transform(any_case())
        ->capture_default_str();
    command->add_option("--queries", options->queries, "dtype of the queries: auto, bf16, f32, ...")
        ->transform(any_case())
        ->capture_default_str();
    command->add_option("--tokens", options->tokens, "Query tokens of each request")
        ->transform(token_count(1, 1 << 24))
        ->capture_default_str();
    command->add_option("--requests", options->requests, "Requests")
        ->check(whole_number(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--context", options->context, "Tokens of each request")
        ->transform(token_count(1, int64_t(1) << 30))
        ->capture_default_str();
    command->add_option("--page-tokens", options->page_tokens, "Tokens per page")
        ->check(whole_number(1, 1 << 20))
        ->capture_default_str();
    command->add_flag("--all", options->all, "Show every kernel that does not run, with the reason");
    command
        ->add_option("--kv-dtype", options->backend.kv_dtype,
                     "With --device: kv_cache_dtype of the engine, such as auto, bfloat16, fp8 or fp8_ds_mla")
        ->transform(any_case())
        ->capture_default_str();
    command->add_option("--backend", options->backend.backend,
                        "With --device: the attention backend to use, by name");
    add_stage_options(*command, options->shape);
    options->context_options.add(*command);
    // replaced: explain also takes the name of an architecture
    command->remove_option(command->get_option("--device"));
    command->add_option(
        "--device", options->device,
        text("With --model: explain the attention backend on this device: cpu, ", joined(device_products()),
             " or a compute capability such as sm_90. A number selects a GPU of the cuda engine"));
    tool.action(command, [&tool, options, command] {
        const bool model = !options->model.empty(), stage = !options->stage.empty();
        if (!model && !stage && !tool.json())
            std::fputs(wrapped(text(kGuide, kExamples, "\n\n"), terminal_columns(STDERR_FILENO)).c_str(),
                       stderr);
        SMLA_CHECK(model != stage, "--model, --stage", model ? "both" : "neither",
                   "exactly one of them; smla explain --help lists all options");
        options->shape.kv_format = options->kv_format;
        options->shape.index_format = options->index_format;
        options->shape.queries = options->queries;
        options->shape.page_tokens = options->page_tokens;
        check_names(options->shape);
        const std::string& device = options->device;
        const bool named = device.find_first_not_of("0123456789") != std::string::npos || is_product(device);
        if (command->count("--device") && !named) {
            std::string value = device;
            SMLA_CHECK(whole_number(0, kMostDevice)(value).empty(), "--device", device,
                       text("a name, such as H200 or sm_90, or a whole number, 0 to ", kMostDevice));
            options->context_options.device = std::stoi(device);
        }
        refuse_unread(*command, stage, named);
        if (!named) return model ? explain_model(tool, *options) : explain_one(tool, *options);
        SMLA_CHECK(model, "--device", device,
                   "--model with the name of a device, or --stage with the number of a GPU");
        options->backend.device = device;
        options->backend.heads = options->shape.heads;
        return explain_backend(tool, options->model, options->backend);
    });
}

}  // namespace smla::cli
