// smla demo: serves attention layers of example checkpoints as an engine would and checks their output.
#include "case.h"
#include "common.h"
#include "subcommands.h"

#include <CLI/CLI.hpp>

namespace smla::cli {

namespace {

struct Options {
    std::vector<std::string> folders;
    ContextOptions context;
};

std::string show_error(const Document& cell) {
    return cell.is_null() ? "-" : fmt::format("{:.1e}", cell.get<double>());
}

Table make_table() {
    return Table({{"model", "model"},
                  {"layer", "layer", {}, 3},
                  {"kv_format", "KV cache"},
                  {"index_format", "index keys", {}, 1},
                  {"engine", "engine", {}, 0},
                  {"kernel", "attention kernel", {}, 3},
                  {"tokens_per_second", "tokens/s", show_fixed(0), 6},
                  {"gflops", "GFLOP/s", show_fixed(1), 2},
                  {"share_of_peak", "% of peak", show_fixed(1), 3},
                  {"cache_bytes_per_token", "B/token", show_fixed(0), 2},
                  {"cache_bytes_per_request", "+ fixed", show_bytes, 1},
                  {"error", "error", show_error, 7},
                  {"tolerance", "allowed", show_error, 5},
                  {"same_selection", "same top-k", show_fixed(3), 2},
                  {"verdict", "result"}});
}

int demo(const Tool& tool, const Options& options) {
    Context context = options.context.create(tool);
    std::vector<DemoModel> models;
    int64_t tokens = 0;
    for (const std::string& folder : options.folders) {
        models.push_back(open_demo_model(folder));
        tokens += int64_t(demo_formats(models.back()).size()) * demo_tokens(models.back());
    }
    tool.note(fmt::format(
        "{}; {}, {} requests at once, prefill in chunks of {}, then decode", context.description(),
        models.size() == 1 ? "1 layer" : fmt::format("{} layers", models.size()), kDemoRequests, kDemoChunk));
    const MachinePeak peak = machine_peak(context);
    Table table = make_table();
    bool pass = !models.empty();
    {
        Progress progress(tokens);
        for (const DemoModel& model : models)
            for (const DemoFormat& format : demo_formats(model)) {
                const std::string doing = text(model.name, " ", find_format(format.kv)->name);
                const DemoResult result =
                    run_demo(context, model, format, [&](int64_t n) { progress.advance(n, doing); });
                pass = pass && result.pass();
                const double best = result.bf16 ? peak.bf16_gflops : peak.f32_gflops;
                const Document share = best > 0 ? Document(100 * result.gflops / best) : Document();
                table.row({model.name, layer_kind_name(model.kind), find_format(format.kv)->name,
                           model.has_index ? Document(find_format(format.index)->name) : Document(),
                           result.engine, result.kernel, result.tokens_per_second, result.gflops, share,
                           result.bytes_per_token, result.bytes_per_request, result.error, result.tolerance,
                           model.has_topk ? Document(result.same_selection) : Document(),
                           result.pass() ? "agrees" : "DIFFERS"});
            }
    }
    const std::string legend = fmt::format(
        "error: max |y - expected| / rms for f32, else ||y - expected|| / ||expected||, over tokens whose "
        "top-k is the same\n"
        "B/token, + fixed: cache bytes that grow with the context, and those of the window and the "
        "compressor's state\n"
        "% of peak: of {}, measured in this run\n",
        peak.text);
    if (tool.json())
        tool.print(Document{{"runs_on", context.description()},
                            {"peak", {{"bf16_gflops", peak.bf16_gflops}, {"f32_gflops", peak.f32_gflops}}},
                            {"layers", table.json()},
                            {"pass", pass}});
    else
        tool.print(
            table.text() + legend +
            (pass ? paint(Colour::green, "all layers agree\n") : paint(Colour::red, "some layers DIFFER\n")));
    return pass ? kOk : kFailedCheck;
}

}  // namespace

void add_demo(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command =
        tool.command(app, "demo", "Serve attention layers of example checkpoints and check their output",
                     "  smla demo v32 glm5\n"
                     "  smla example --golden tests/goldens/D6.safetensors --out v32\n"
                     "  smla example --golden tests/goldens/G1.safetensors --out glm5");
    command->add_option("folders", options->folders, "Checkpoint folders written by smla example")
        ->required();
    options->context.add(*command);
    tool.action(command, [&tool, options] { return demo(tool, *options); });
}

}  // namespace smla::cli
