// smla capacity: how many requests of a model fit in memory, and bytes and arithmetic per token and request.
#include "common.h"
#include "devices.h"
#include "model_info.h"
#include "models.h"
#include "subcommands.h"
#include "weights.h"

#include <CLI/CLI.hpp>

#include <cmath>
#include <optional>

namespace smla::cli {

namespace {

constexpr double kMostGib = 1e9;  // limit in bytes below 2^63, so that the number of requests fits
constexpr double kGib = 1 << 30;

struct Options {
    std::string model, device, kv_format = "auto", index_format = "auto";
    int64_t context = 131072, batch = 1, step_tokens = 1, layers = 0;
    int64_t tp = 1, dp = 1, dcp = 1;
    int32_t page_tokens = 64;
    double memory_gib = 0, weights_gib = 0;
    bool mtp = false;
};

// The number of requests that fit. Every GPU of a tensor-parallel group holds all keys of the group's
// requests, because latent caches have one head; decode-context parallelism divides the tokens of a request
// among `dcp` of these GPUs. Windows and compressor states are not divided. Data parallelism has `dp` groups
// with separate requests.
struct Fit {
    double memory = 0;  // bytes of each GPU; 0: not specified
    Weights weights;    // weights of the model
    double weights_per_gpu = 0;
    double per_request = 0;           // bytes of a request on a GPU, in whole pages
    std::optional<int64_t> requests;  // on all GPUs together
};

struct Totals {
    double bytes_per_token = 0, paged_bytes_per_token = 0;
    double fixed = 0;              // live rows of windows and states, per request
    double per_request = 0;        // bytes_per_token of `context` tokens and the fixed part
    double paged_per_request = 0;  // the same in whole pages, which is what an engine allocates
    double per_gpu = 0;            // bytes of these on each GPU
};

Table cache_table(const AttentionConfig& config, const std::vector<LayerClass>& classes,
                  const CacheChoice& choice, const Options& options, Totals& totals) {
    Table table({{"layer_kind", "layers of kind"},
                 {"layers", "layers", {}, 7},
                 {"cache", "cache"},
                 {"format", "format", {}, 4},
                 {"width", "width", {}, 1},
                 {"page_rows", "rows/page", {}, 0},
                 {"tokens_per_row", "tokens/row", {}, 2},
                 {"bytes_per_token", "B/token", {}, 6},
                 {"paged_bytes_per_token", "in pages", {}, 2},
                 {"fixed_bytes_per_request", "fixed B/request", show_bytes, 5},
                 {"all_layers_bytes_per_token", "all layers B/token", {}, 8},
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
            const int64_t share = ceil_div(options.context, need.resident ? 1 : options.dcp);
            totals.per_gpu +=
                count * double(need.pages(share, options.step_tokens)) * double(need.page_bytes());
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
                    options.mtp ? " included" : " not included (--mtp includes them)");
    int64_t linear = 0;
    for (int64_t layer = 0; layer < layers; ++layer) linear += config.layer_kind(layer) == LayerKind::linear;
    if (linear)
        out +=
            text(out.empty() ? "" : "; ", linear, linear == 1 ? " layer" : " layers",
                 " of linear attention and ", linear == 1 ? "its state" : "their states", " are not counted");
    return out;
}

std::string line(const std::string& name, const std::string& value) {
    return fmt::format("{:<34}{}\n", name, value);
}

std::string totals_text(const Document& totals, const Options& options) {
    const auto bytes = [&](const char* key) { return bytes_text(totals[key].get<double>()); };
    std::string out =
        line("bytes per token", number_text(totals["bytes_per_token"].get<double>()) + " (in pages " +
                                    number_text(totals["paged_bytes_per_token"].get<double>()) + ")");
    out += line("fixed bytes per request", bytes("fixed_bytes_per_request"));
    out += line(text("a request of ", options.context, " tokens"),
                bytes("bytes_per_request") + " (in pages " + bytes("paged_bytes_per_request") + ")");
    if (options.batch > 1) out += line(text(options.batch, " requests, in pages"), bytes("batch_bytes"));
    return out +
           line("FLOPs of a token at that context", count_text(totals["flops_per_token"].get<double>()));
}

Fit fit(const Options& options, const Totals& totals, int64_t layers) {
    Fit out;
    out.memory = options.memory_gib * kGib;
    if (!options.device.empty()) {
        const double of_device = double(parse_device("--device", options.device).memory_bytes);
        if (out.memory == 0 && !is_product(options.device))
            fail(SMLA_INVALID_ARGUMENT, "--device", options.device,
                 text("a GPU product of known memory (", joined(device_products()),
                      "), or --memory in addition"));
        if (out.memory == 0) out.memory = of_device;
    }
    out.per_request = totals.per_gpu;
    out.weights = options.weights_gib > 0
                      ? Weights{.total = options.weights_gib * kGib, .source = "--weights-gib"}
                      : read_weights(options.model);
    out.weights_per_gpu = out.weights.per_gpu(options.tp, options.dp);
    if (out.memory == 0) return out;
    SMLA_CHECK(out.per_request > 0, options.memory_gib > 0 ? "--memory" : "--device",
               options.memory_gib > 0 ? text(options.memory_gib) : options.device,
               text("a model with caches; these ", layers, " layers have none"));
    const double left = std::max(0.0, out.memory - out.weights_per_gpu);
    out.requests = options.dp * int64_t(std::floor(left / out.per_request));
    return out;
}

// Returns the answer in one sentence, and its assumptions.
std::string fit_text(const Fit& fit, const Options& options) {
    const int64_t gpus = options.tp * options.dp;
    const std::string where = gpus == 1 ? "" : text(gpus, " GPUs with ");
    const bool bounded = fit.weights.total > 0 && !fit.weights.split && options.dp > 1;
    std::string out;
    if (!fit.requests)
        out = text("One request of ", options.context, " tokens takes ", bytes_text(fit.per_request),
                   gpus == 1 ? "" : " on each GPU",
                   "; use --memory 80GiB or --device H200 to compute how many fit.\n");
    else
        out = paint(Colour::bold, fmt::format("{}{} {} of {} tokens {} in {}{}{}.", bounded ? "At most " : "",
                                              *fit.requests, *fit.requests == 1 ? "request" : "requests",
                                              options.context, *fit.requests == 1 ? "fits" : "fit", where,
                                              bytes_text(fit.memory), gpus == 1 ? "" : " each")) +
              "\n";
    out +=
        fit.weights.total == 0
            ? "Weights are not counted: --weights-gib specifies their size, or --model a checkpoint's folder "
              "with "
              "model.safetensors or its index.\n"
            : text("Weights: ", bytes_text(fit.weights.total), " (", fit.weights.source, "), ",
                   bytes_text(fit.weights_per_gpu), " on each GPU",
                   bounded ? " at least: the size of the experts is unknown; --dp copies all other weights.\n"
                           : ".\n");
    if (fit.requests && fit.weights_per_gpu > fit.memory) out += "The weights alone do not fit.\n";
    return out + "Activations, CUDA graphs and the CUDA context are not counted.\n\n";
}

int capacity(const Tool& tool, const Options& options) {
    const AttentionConfig config = load_model(options.model);
    SMLA_CHECK(options.tp % options.dcp == 0, "--dcp", options.dcp, text("a divisor of --tp ", options.tp));
    // A checkpoint of one layer, as smla example makes them, does not say how many there are.
    const bool assumed = options.layers == 0 && config.common.layers == 0;
    const int64_t main = options.layers ? options.layers : assumed ? 1 : config.common.layers;
    const int64_t most = config.common.layers + config.common.mtp_layers;
    if (config.common.layers)
        SMLA_CHECK(options.layers <= most, "--layers", options.layers,
                   text("1 to ", most, " (the layers of the model)"));
    const int64_t layers = main + (options.mtp && !options.layers ? config.common.mtp_layers : 0);
    CacheChoice choice = choose_caches(config, options.kv_format, options.index_format, options.page_tokens);
    choice.f64 = choice.kv == SMLA_ROW_F64;
    const std::vector<LayerClass> classes = layer_classes(config, layers);

    Totals totals;
    double flops = 0;
    const Table caches = cache_table(config, classes, choice, options, totals);
    const Table arithmetic = flops_table(config, classes, options.context, flops);
    const Fit fits = fit(options, totals, layers);
    const Document sum{{"layers", layers},
                       {"bytes_per_token", totals.bytes_per_token},
                       {"paged_bytes_per_token", totals.paged_bytes_per_token},
                       {"fixed_bytes_per_request", totals.fixed},
                       {"bytes_per_request", totals.per_request},
                       {"paged_bytes_per_request", totals.paged_per_request},
                       {"batch_bytes", totals.paged_per_request * double(options.batch)},
                       {"requests_that_fit", fits.requests ? Document(*fits.requests) : Document()},
                       {"flops_per_token", flops}};
    const std::string note = layers_note(config, layers, options);
    if (tool.json()) {
        tool.print(Document{{"model_type", config.common.model_type},
                            {"context", options.context},
                            {"batch", options.batch},
                            {"page_tokens", options.page_tokens},
                            {"memory_bytes", fits.memory},
                            {"tp", options.tp},
                            {"dp", options.dp},
                            {"dcp", options.dcp},
                            {"bytes_per_request_and_gpu", fits.per_request},
                            {"weights",
                             {{"bytes", fits.weights.total},
                              {"bytes_per_gpu", fits.weights_per_gpu},
                              {"experts_known", fits.weights.split},
                              {"source", fits.weights.source}}},
                            {"layers_assumed", assumed},
                            {"note", note},
                            {"caches", caches.json()},
                            {"flops", arithmetic.json()},
                            {"totals", sum}});
        return kOk;
    }
    tool.print(fit_text(fits, options) +
               text(config.common.model_type, ", ", layers, layers == 1 ? " layer" : " layers",
                    note.empty() ? "" : "; ", note, "\n\n", "Caches, for one layer and for all of the kind\n",
                    caches.text(), "\n", "FLOPs of one token at a context of ", options.context, "\n",
                    arithmetic.text(), "\n", totals_text(sum, options)));
    return kOk;
}

}  // namespace

void add_capacity(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = tool.command(
        app, "capacity", "Compute how many requests of a model fit in memory, and bytes and FLOPs per token",
        "  smla capacity --model deepseek-v3.2 --context 128K --memory 80GiB\n"
        "  smla capacity --model deepseek-v3.2 --device H200 --tp 8 --weights-gib 642 --context 128K\n"
        "  smla capacity --model GLM-5.2/ --kv-format bf16 --index-format bf16 --json");
    command->add_option("--model", options->model, kModelHelp)->required();
    command->add_option("--context", options->context, "Tokens of a request")
        ->transform(token_count(1, int64_t(1) << 31))
        ->capture_default_str();
    command
        ->add_option("--memory", options->memory_gib,
                     "Memory of each GPU, such as 80GiB or 80GB; a number without a unit is in GiB")
        ->transform(memory_size(kMostGib));
    command->add_option("--device", options->device,
                        "GPU that determines the memory if --memory is absent: " + joined(device_products()));
    command
        ->add_option("--weights-gib", options->weights_gib,
                     "Size of the model's weights in GiB; default: read from the checkpoint's folder")
        ->transform(memory_size(kMostGib));
    const auto parallel = [&](const char* name, int64_t& value, const char* about) {
        command->add_option(name, value, about)->check(whole_number(1, 1 << 16))->capture_default_str();
    };
    parallel("--tp", options->tp, "Tensor parallelism: divides weights; each GPU stores the whole cache");
    parallel("--dp", options->dp, "Data parallelism: number of groups of GPUs, each with separate requests");
    parallel("--dcp", options->dcp,
             "Decode-context parallelism: divides the tokens of a request; must be a divisor of --tp");
    command->add_option("--batch", options->batch, "Requests")
        ->transform(token_count(1, int64_t(1) << 31))
        ->capture_default_str();
    command->add_option("--kv-format", options->kv_format, "auto, or a KV format of smla list formats")
        ->transform(any_case())
        ->capture_default_str();
    command->add_option("--index-format", options->index_format, "auto, or an index format")
        ->transform(any_case())
        ->capture_default_str();
    command->add_option("--page-tokens", options->page_tokens, "Tokens per KV page")
        ->check(whole_number(1, 1 << 20))
        ->capture_default_str();
    command
        ->add_option("--step-tokens", options->step_tokens,
                     "Maximum number of tokens of a request in one step")
        ->transform(token_count(1, 1 << 24))
        ->capture_default_str();
    command->add_option("--layers", options->layers, "Number of layers; default: the config's")
        ->check(whole_number(1, kMaxLayers));
    command->add_flag("--mtp", options->mtp, "Include the multi-token-prediction layers");
    tool.action(command, [&tool, options] { return capacity(tool, *options); });
}

}  // namespace smla::cli
