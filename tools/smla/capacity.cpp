// smla capacity: bytes and arithmetic per token and per request of a model, and how many requests fit.
#include "common.h"
#include "model_info.h"
#include "subcommands.h"

#include <CLI/CLI.hpp>

#include <cmath>

namespace smla::cli {

namespace {

constexpr double kMostGib = 1e9;  // in bytes below 2^63, so that a count of requests always fits

struct Options {
    std::string model, kv_format = "auto", index_format = "auto";
    int64_t context = 131072, batch = 1, step_tokens = 1, layers = 0;
    int32_t page_tokens = 64;
    double memory_gib = 0;
    bool mtp = false;
};

struct Totals {
    double bytes_per_token = 0, paged_bytes_per_token = 0;
    double fixed = 0;              // live rows of windows and states, per request
    double per_request = 0;        // bytes_per_token of `context` tokens and the fixed part
    double paged_per_request = 0;  // the same in whole pages, which is what an engine allocates
};

Table cache_table(const AttentionConfig& config, const std::vector<LayerClass>& classes,
                  const CacheChoice& choice, const Options& options, Totals& totals) {
    Table table({{"layer_kind", "layers of kind"},
                 {"layers", "layers"},
                 {"cache", "cache"},
                 {"format", "format", {}, 4},
                 {"width", "width", {}, 1},
                 {"page_rows", "rows/page", {}, 0},
                 {"tokens_per_row", "tokens/row", {}, 2},
                 {"bytes_per_token", "B/token", {}, 6},
                 {"paged_bytes_per_token", "in pages", {}, 2},
                 {"fixed_bytes_per_request", "fixed B/request", show_bytes, 5},
                 {"all_layers_bytes_per_token", "all layers B/token", {}, 3},
                 {"all_layers_fixed_bytes", "fixed", show_bytes, 3}});
    for (const LayerClass& each : classes)
        for (const CacheNeed& need : cache_needs(config, int(each.first), choice)) {
            const double record = double(find_format(need.format)->record_bytes(need.width)),
                         count = double(each.count);
            const double per_token = need.resident ? 0 : record / double(need.tokens_per_row);
            const double fixed = need.resident ? record * double(need.resident + 1) : 0;
            const double pages =
                double(need.pages(options.context, options.step_tokens)) * double(need.page_bytes());
            totals.bytes_per_token += per_token * count;
            totals.paged_bytes_per_token += need.bytes_per_token() * count;
            totals.fixed += fixed * count;
            totals.per_request +=
                count * (need.resident ? fixed : record * double(need.rows(options.context)));
            totals.paged_per_request += count * pages;
            table.row({each.name(), each.count, need.name, find_format(need.format)->name, need.width,
                       need.page_rows, need.tokens_per_row, per_token, need.bytes_per_token(), fixed,
                       per_token * count, fixed * count});
        }
    return table;
}

Table flops_table(const AttentionConfig& config, const std::vector<LayerClass>& classes, int64_t context,
                  double& all) {
    Table table({{"layer_kind", "layers of kind"},
                 {"layers", "layers"},
                 {"keys_scored", "keys scored", {}, 2},
                 {"keys_attended", "attended", {}, 2},
                 {"project", "project", show_count, 4},
                 {"absorb", "absorb", show_count, 1},
                 {"score", "score", show_count, 5},
                 {"attend", "attend", show_count, 6},
                 {"up_project", "up_project", show_count, 1},
                 {"out_project", "out_project", show_count, 3},
                 {"layer", "a layer", show_count, 7},
                 {"all_layers", "all", show_count}});
    all = 0;
    for (const LayerClass& each : classes) {
        const TokenKeys keys = token_keys(config, each, context);
        const TokenFlops flops = token_flops(config, each, context);
        const double sum = flops.total() * double(each.count);
        all += sum;
        table.row({each.name(), each.count, keys.scored, keys.attended, flops.project, flops.absorb,
                   flops.score, flops.attend, flops.up_project, flops.out_project, flops.total(), sum});
    }
    return table;
}

// Where the number of layers comes from, if that is not plain.
std::string layers_note(const AttentionConfig& config, int64_t layers, const Options& options) {
    const int64_t mtp = config.common.mtp_layers;
    std::string out;
    if (config.common.layers == 0 && options.layers == 0)
        out = "config.json has no num_hidden_layers: one layer is assumed (--layers sets their number)";
    if (mtp)
        out += text(out.empty() ? "" : "; ", mtp, " MTP ", mtp == 1 ? "layer" : "layers",
                    options.mtp ? " counted" : " not counted (--mtp counts)");
    int64_t linear = 0;
    for (int64_t layer = 0; layer < layers; ++layer) linear += config.layer_kind(layer) == LayerKind::linear;
    if (linear)
        out += text(out.empty() ? "" : "; ", linear, linear == 1 ? " layer" : " layers",
                    " of linear attention not counted, nor ", linear == 1 ? "its state" : "their states");
    return out;
}

std::string totals_text(const Document& totals, const Options& options) {
    const auto bytes = [&](const char* key) { return bytes_text(totals[key].get<double>()); };
    const auto line = [](const std::string& name, const std::string& value) {
        return fmt::format("{:<34}{}\n", name, value);
    };
    std::string out =
        line("bytes per token", number_text(totals["bytes_per_token"].get<double>()) + " (in pages " +
                                    number_text(totals["paged_bytes_per_token"].get<double>()) + ")");
    out += line("fixed bytes per request", bytes("fixed_bytes_per_request"));
    out += line(text("a request of ", options.context, " tokens"),
                bytes("bytes_per_request") + " (in pages " + bytes("paged_bytes_per_request") + ")");
    if (options.batch > 1) out += line(text(options.batch, " requests, in pages"), bytes("batch_bytes"));
    out += line("FLOPs of a token at that context", count_text(totals["flops_per_token"].get<double>()));
    if (!totals["requests_that_fit"].is_null())
        out += line(fmt::format("requests in {:g} GiB", options.memory_gib),
                    text(totals["requests_that_fit"].get<int64_t>()));
    return out;
}

int capacity(const Tool& tool, const Options& options) {
    const AttentionConfig config = load_config(options.model);
    // A checkpoint of one layer, as smla example makes them, does not say how many there are.
    const bool assumed = options.layers == 0 && config.common.layers == 0;
    const int64_t main = options.layers ? options.layers : assumed ? 1 : config.common.layers;
    const int64_t most = config.common.layers + config.common.mtp_layers;
    if (config.common.layers)
        SMLA_CHECK(options.layers <= most, "--layers", options.layers,
                   text("1 to ", most, ", the layers of the model"));
    const int64_t layers = main + (options.mtp && !options.layers ? config.common.mtp_layers : 0);
    CacheChoice choice = choose_caches(config, options.kv_format, options.index_format, options.page_tokens);
    choice.f64 = choice.kv == SMLA_ROW_F64;
    const std::vector<LayerClass> classes = layer_classes(config, layers);

    Totals totals;
    double flops = 0;
    const Table caches = cache_table(config, classes, choice, options, totals);
    const Table arithmetic = flops_table(config, classes, options.context, flops);
    SMLA_CHECK(options.memory_gib == 0 || totals.paged_per_request > 0, "--memory", options.memory_gib,
               text("layers with caches that are counted; these ", layers, " have none"));
    const double memory = options.memory_gib * 1024 * 1024 * 1024;
    const Document sum{
        {"layers", layers},
        {"bytes_per_token", totals.bytes_per_token},
        {"paged_bytes_per_token", totals.paged_bytes_per_token},
        {"fixed_bytes_per_request", totals.fixed},
        {"bytes_per_request", totals.per_request},
        {"paged_bytes_per_request", totals.paged_per_request},
        {"batch_bytes", totals.paged_per_request * double(options.batch)},
        {"requests_that_fit",
         memory > 0 ? Document(int64_t(std::floor(memory / totals.paged_per_request))) : Document()},
        {"flops_per_token", flops}};
    const std::string note = layers_note(config, layers, options);
    if (tool.json()) {
        tool.print(Document{{"model_type", config.common.model_type},
                            {"context", options.context},
                            {"batch", options.batch},
                            {"page_tokens", options.page_tokens},
                            {"layers_assumed", assumed},
                            {"note", note},
                            {"caches", caches.json()},
                            {"flops", arithmetic.json()},
                            {"totals", sum}});
        return kOk;
    }
    tool.print(text(config.common.model_type, ", ", layers, layers == 1 ? " layer" : " layers",
                    note.empty() ? "" : "; ", note, "\n\n", "Caches, for one layer and for all of the kind\n",
                    caches.text(), "\n", "FLOPs of one token at a context of ", options.context, "\n",
                    arithmetic.text(), "\n", totals_text(sum, options)));
    return kOk;
}

}  // namespace

void add_capacity(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = tool.command(
        app, "capacity", "Bytes and FLOPs per token and per request of a model; how many requests fit",
        "  smla capacity --model DeepSeek-V3.2/config.json --context 131072 --memory 80\n"
        "  smla capacity --model GLM-5.2/ --kv-format bf16 --index-format bf16 --json");
    command->add_option("--model", options->model, "A config.json, or its folder")->required();
    command->add_option("--context", options->context, "Tokens of a request")
        ->check(whole_number(1, int64_t(1) << 31))
        ->capture_default_str();
    command->add_option("--batch", options->batch, "Requests")
        ->check(whole_number(1, int64_t(1) << 31))
        ->capture_default_str();
    command->add_option("--kv-format", options->kv_format, "auto, or a KV format of smla list formats")
        ->capture_default_str();
    command->add_option("--index-format", options->index_format, "auto, or an index format")
        ->capture_default_str();
    command->add_option("--page-tokens", options->page_tokens, "Tokens per KV page")
        ->check(whole_number(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--step-tokens", options->step_tokens, "Tokens of a request in one step, at most")
        ->check(whole_number(1, 1 << 24))
        ->capture_default_str();
    command->add_option("--memory", options->memory_gib, "GiB for caches; prints how many requests fit")
        ->check(positive_number(kMostGib));
    command->add_option("--layers", options->layers, "Number of layers; default: the config's")
        ->check(whole_number(1, kMaxLayers));
    command->add_flag("--mtp", options->mtp, "Count the multi-token-prediction layers too");
    tool.action(command, [&tool, options] { return capacity(tool, *options); });
}

}  // namespace smla::cli
