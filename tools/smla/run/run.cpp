// smla run: one attention layer of a checkpoint on hidden states from a file, or a serving run of a trace.
#include "common.h"
#include "core/visible.h"
#include "expected.h"
#include "layer_files.h"
#include "outputs.h"
#include "sequences.h"
#include "serve/serve.h"
#include "subcommands.h"

#include <CLI/CLI.hpp>

#include <limits>

namespace smla::cli {

namespace {

struct Options {
    std::string checkpoint, hidden, hidden_name, out, expected, topk, save_topk;
    int layer = -1;
    std::string kv_writer = "vllm", kv_format = "row_f32", index_format = "auto", queries = "auto";
    std::string chunks = "512";
    int decode = 0, page_tokens = 64;
    double kv_scale = 0, tolerance = 0, scratch_mib = 0;
    bool f64 = false;
    ServeOptions serving;
    ContextOptions context;
};

struct Job {
    AttentionConfig config;
    LayerInput input;
    std::vector<HostTensor> read;  // hidden states of the layers that this layer reads
    HostTensor topk, expected;
    int layer = 0;
    SessionOptions session;
    LayerPrecision precision;
    Schedule schedule;
};

// By default, index keys have the row format of the KV cache, or are quantized if the KV cache is.
smla_format index_format(const Options& options, const Job& job, smla_format kv) {
    if (options.index_format != "auto") return parse_format("--index-format", options.index_format);
    if (format_bit(kv) & kRowFormats) return kv;
    return job.config.indexer ? index_formats_for(job.config)[0] : SMLA_ROW_BF16;
}

void choose_precision(const Options& options, Job& job) {
    CacheChoice& caches = job.session.caches;
    caches.kv = parse_format("--kv-format", options.kv_format);
    if (options.f64) caches.kv = SMLA_ROW_F64;
    caches.kv_scale = float(options.kv_scale);
    const std::string scale = why_not_scale(*find_format(caches.kv), caches.kv_scale);
    SMLA_CHECK(scale.empty(), "--kv-scale", options.kv_scale, scale);
    caches.index = index_format(options, job, caches.kv);
    if (options.kv_writer == "sglang") {
        caches.kv_writer = find_format(caches.kv)->writers;
        SMLA_CHECK(caches.kv_writer, "--kv-writer", options.kv_writer,
                   text("vllm, because ", find_format(caches.kv)->name, " has no writer variants"));
    }
    caches.page_tokens = options.page_tokens;
    if (options.f64) {
        SMLA_CHECK(options.context.engine == "reference", "--f64", options.context.engine,
                   "the reference engine (--engine reference)");
        job.precision.activations = job.precision.queries = SMLA_F64;
        return;
    }
    if (options.queries == "auto") job.precision.queries = caches.kv == SMLA_ROW_F32 ? SMLA_F32 : SMLA_BF16;
    else job.precision.queries = parse_dtype("--queries", options.queries, dtypes(SMLA_F32, SMLA_BF16));
}

std::vector<int32_t> parse_chunks(const std::string& list) {
    std::vector<int32_t> chunks;
    std::istringstream pieces(list + ',');
    for (std::string piece; std::getline(pieces, piece, ',');) {
        const std::string error = whole_number(1, 1 << 20)(piece);
        SMLA_CHECK(error.empty(), "--chunk", list.empty() ? "nothing" : list,
                   "whole numbers from 1 to 1048576, separated by commas");
        chunks.push_back(std::stoi(piece));
    }
    return chunks;
}

// Reads the optional inputs and checks all outputs before any work.
void check_files(const Options& options, Job& job) {
    const LayerInput& input = job.input;
    if (!options.topk.empty()) job.topk = read_topk(options.topk, input.batch, input.tokens);
    if (!options.expected.empty()) {
        job.expected = read_rows(options.expected, "y", input.batch, input.tokens);
        SMLA_CHECK(job.expected.view.shape[2] == job.config.common.hidden_size,
                   options.expected + ": tensor y", describe(job.expected.view),
                   text("rows of width ", job.config.common.hidden_size));
    }
    if (!options.save_topk.empty())
        SMLA_CHECK(job.config.index_source_layer(job.layer) == job.layer, "--save-topk",
                   layer_kind_name(job.config.layer_kind(job.layer)), "a layer that has an indexer");
    check_outputs({{"--out", options.out}, {"--save-topk", options.save_topk}},
                  {{"--hidden", options.hidden}, {"--topk", options.topk}, {"--expected", options.expected}},
                  options.checkpoint);
}

Job prepare(const Options& options) {
    Job job;
    job.config = load_config(options.checkpoint);
    job.input = read_input(options.hidden, options.hidden_name, job.config.common.hidden_size);
    job.layer = options.layer >= 0 ? options.layer : job.input.layer.value_or(0);
    choose_precision(options, job);
    check_files(options, job);
    job.read = read_others(options.hidden, layers_read(job.config, job.layer, !options.topk.empty()),
                           job.input, job.layer);
    job.schedule.chunks = parse_chunks(options.chunks);
    for (int32_t& chunk : job.schedule.chunks) chunk = int32_t(std::min<int64_t>(chunk, job.input.tokens));
    job.schedule.decode_tokens = options.decode;
    job.schedule.keep_selected = !options.save_topk.empty();
    job.session.max_requests = int32_t(job.input.batch);
    job.session.max_tokens = int32_t(job.input.tokens);
    job.session.max_step_tokens = largest_step(job.schedule, size_t(job.input.batch));
    job.session.stage_budget = size_t(options.scratch_mib * (1 << 20));
    return job;
}

Tensor row_of(const Tensor& tensor, int64_t b) {  // [B,S,...] -> [S,...] of sequence b
    Tensor out = tensor;
    out.data = address(tensor, b);
    for (int i = 1; i < tensor.ndim; ++i) {
        out.shape[i - 1] = tensor.shape[i];
        out.stride_elems[i - 1] = tensor.stride_elems[i];
    }
    out.ndim = tensor.ndim - 1;
    return out;
}

Document stages_json(const StageRecords& records) {
    Document out = Document::array();
    for (int i = 0; i < kStageCount; ++i)
        if (records[size_t(i)].calls)
            out.push_back({{"stage", kStageNames[i]},
                           {"kernel", records[size_t(i)].kernel},
                           {"calls", records[size_t(i)].calls},
                           {"seconds", records[size_t(i)].seconds}});
    return out;
}

void save_selection(const Options& options, const Job& job, const std::vector<Sequence>& sequences) {
    std::vector<int32_t> all;
    for (const Sequence& sequence : sequences)
        all.insert(all.end(), sequence.selected.begin(), sequence.selected.end());
    const int64_t k = int64_t(all.size()) / (job.input.batch * job.input.tokens);
    write_safetensors(options.save_topk,
                      {{"topk", make_tensor(all.data(), SMLA_I32, {job.input.batch, job.input.tokens, k})}});
}

bool is_f32(const Job& job) {
    return job.precision.queries != SMLA_BF16 && job.session.caches.kv == SMLA_ROW_F32;
}

// The golden files' tolerances: of max/rms in f32, of the L2 ratio with bf16 or fp8. Rounding to e4m3 leaves
// an error of 3e-2 to 4.4e-2, to e2m1 four times that; fp8 index keys may also select other rows of nearly
// equal score.
constexpr double kRoundedToE4m3 = 6e-2;
double tolerance(const Options& options, const Job& job) {
    if (options.f64) return 1e-10;
    if (is_f32(job)) return 5e-5;
    if (format_bit(job.session.caches.kv) & kRowFormats) return 1.5e-2;
    const double rounding = format_bit(job.session.caches.kv) & kE2m1Formats ||
                                    job.session.caches.kv_writer & SMLA_WRITER_FP4_VALUES
                                ? 4 * kRoundedToE4m3
                                : kRoundedToE4m3;
    return job.config.indexer && options.topk.empty() ? std::max(rounding, 1.5e-1) : rounding;
}

int report(const Tool& tool, const Options& options, const Job& job, const Session& session,
           const Context& context, const Tensor& y, double seconds) {
    const int64_t tokens = job.input.batch * job.input.tokens, not_finite = count_not_finite(y);
    if (not_finite > 0)
        tool.note(fmt::format("warning: {} of {} values of y are not finite, {} of those of {}", not_finite,
                              element_count(y), count_not_finite(job.input.hidden.view),
                              "the hidden states"));
    Document out{{"layer", job.layer},
                 {"kind", layer_kind_name(job.config.layer_kind(job.layer))},
                 {"runs_on", context.description()},
                 {"kv_format", find_format(job.session.caches.kv)->name},
                 {"index_format",
                  job.config.indexer ? Document(find_format(job.session.caches.index)->name) : Document()},
                 {"tokens", tokens},
                 {"seconds", seconds},
                 {"tokens_per_second", double(tokens) / seconds},
                 {"not_finite", not_finite},
                 {"cache_bytes", session.cache_bytes()},
                 {"workspace_bytes", session.workspace_bytes()},
                 {"stages", stages_json(session.records)},
                 {"out", options.out}};
    std::string summary = fmt::format("layer {} ({}), {}: {} tokens in {}, {} tokens/s, written to {}\n",
                                      job.layer, layer_kind_name(job.config.layer_kind(job.layer)),
                                      context.description(), tokens, seconds_text(seconds),
                                      number_text(double(tokens) / seconds), without_controls(options.out));
    bool pass = true;
    if (!options.expected.empty()) {
        const Deviation d = deviation(y, job.expected.view);
        const double limit = options.tolerance > 0 ? options.tolerance : tolerance(options, job);
        const double error = options.f64 || is_f32(job) ? d.max : d.l2;
        pass = error <= limit;
        out["expected"] = {{"max_over_rms", d.max}, {"l2", d.l2}, {"tolerance", limit}, {"pass", pass}};
        summary += fmt::format("against {}: max/rms {:.2g}, L2 {:.2g}, tolerance {:.2g}: {}\n",
                               without_controls(options.expected), d.max, d.l2, limit,
                               pass ? paint(Colour::green, "agrees") : paint(Colour::red, "DIFFERS"));
    }
    if (tool.json()) tool.print(out);
    else tool.print(summary);
    return pass ? kOk : kFailedCheck;
}

int run(const Tool& tool, const Options& options) {
    Context context = options.context.create(tool);
    Job job = prepare(options);
    LayerChain chain(context, options.checkpoint, job.config, job.layer, job.precision, job.session,
                     !options.topk.empty());
    const smla_dtype dtype = options.f64 ? SMLA_F64 : SMLA_F32;
    const int64_t width = job.config.common.hidden_size;
    std::vector<char> memory(size_t(job.input.batch * job.input.tokens * width) * size_t(dtype_bits(dtype)) /
                             8);
    const Tensor y = make_tensor(memory.data(), dtype, {job.input.batch, job.input.tokens, width});
    std::vector<Sequence> sequences;
    for (int64_t b = 0; b < job.input.batch; ++b) {
        Sequence sequence{.hidden = row_of(job.input.hidden.view, b)};
        sequence.out = row_of(y, b);
        for (const HostTensor& each : job.read) sequence.read.push_back(row_of(each.view, b));
        if (present(job.input.positions.view)) sequence.positions = row_of(job.input.positions.view, b);
        if (present(job.topk.view)) sequence.topk = row_of(job.topk.view, b);
        sequences.push_back(std::move(sequence));
    }
    Progress progress(job.input.batch * job.input.tokens);
    const double seconds =
        run_sequences(chain, sequences, job.schedule, [&](int64_t n) { progress.advance(n, "tokens"); });
    write_safetensors(options.out, {{"y", y}}, {{"layer", std::to_string(job.layer)}});
    if (!options.save_topk.empty()) save_selection(options, job, sequences);
    return report(tool, options, job, chain.session(), context, y, seconds);
}

void add_options(CLI::App& command, Options& o) {
    command.add_option("checkpoint", o.checkpoint, "Folder with config.json and model.safetensors");
    command.add_option(
        "--hidden", o.hidden,
        "Input: safetensors file with hidden, [S,X] or [B,S,X]; optional position_ids; hidden.layer3 if "
        "the layer reads layer 3");
    command.add_option("--hidden-name", o.hidden_name,
                       "Name of the input tensor; default: hidden or hidden_states");
    command.add_option("--out", o.out, "Output: safetensors file with y, f32");
    command.add_option("--layer", o.layer, "Layer number (default: the input file's metadata, else 0)")
        ->check(whole_number(0, kMostLayers));
    command.add_option("--kv-format", o.kv_format, "Record format of the KV cache (smla list formats)")
        ->transform(any_case())
        ->capture_default_str();
    command
        .add_option("--kv-scale", o.kv_scale,
                    "Scale of the KV cache; required by fp8_576 and fp8_512, where value = e4m3 code * scale")
        ->check(number_from_0(std::numeric_limits<float>::max()));
    command.add_option("--kv-writer", o.kv_writer, "Rules by which records are written: vllm or sglang")
        ->transform(one_of({"vllm", "sglang"}))
        ->capture_default_str();
    command.add_option("--index-format", o.index_format, "Record format of index keys")
        ->transform(any_case())
        ->capture_default_str();
    command
        .add_option("--queries", o.queries,
                    "dtype of the queries, f32 or bf16; auto: f32 with row_f32, else bf16")
        ->transform(any_case())
        ->capture_default_str();
    command
        .add_option(
            "--chunk", o.chunks,
            "Tokens of each prefill step: a number, or a list such as 33,1,64 whose last number repeats")
        ->capture_default_str();
    command.add_option("--decode", o.decode, "Decode the last N tokens one by one")
        ->check(whole_number(0, 1 << 30))
        ->capture_default_str();
    command.add_option("--page-tokens", o.page_tokens, "Tokens in a page of the cache")
        ->check(whole_number(1, 1 << 20))
        ->capture_default_str();
    command
        .add_option("--scratch-mib", o.scratch_mib,
                    "Maximum scratch memory of a stage in MiB; 0: as much as improves speed")
        ->check(number_from_0(1 << 30, "MiB"))
        ->capture_default_str();
    command.add_option(
        "--topk", o.topk,
        "Selection to attend to: safetensors with topk, [S,k] or [B,S,k]; shared layers need it, or "
        "hidden states of the layer that selects");
    command.add_option("--save-topk", o.save_topk,
                       "Output: selection of this layer, for layers that share it");
    command.add_option("--expected", o.expected,
                       "Compare the output with tensor y of this file; exit code 1 if it differs");
    command
        .add_option("--tolerance", o.tolerance,
                    "Tolerance of --expected; 0: derived from precision and format")
        ->check(number_from_0(1e300))
        ->capture_default_str();
    command.add_flag("--f64", o.f64, "Compute in f64; requires --engine reference");
    o.serving.add(command);
    o.context.add(command);
}

// Rejects options that only the other use of this subcommand reads.
void check_use(const CLI::App& command, bool serving) {
    for (const CLI::Option* option : command.get_options()) {
        const std::string group = option->get_group(), value = joined(option->results());
        if (!option->count() || group == ContextOptions::kGroup || option->get_name() == "--json") continue;
        SMLA_CHECK((group == ServeOptions::kGroup) == serving, option->get_name(),
                   value.empty() ? "nothing" : value,
                   serving ? "no such option, because --serve runs a trace, not a checkpoint"
                           : "this option only together with --serve TRACE");
    }
}

}  // namespace

void add_run(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = tool.command(
        app, "run", "Run an attention layer of a checkpoint on hidden states",
        "  smla run v32 --hidden v32/hidden.safetensors --out y.safetensors\n"
        "  smla run v32 --layer 0 --hidden v32/hidden.safetensors --out y.safetensors --kv-format "
        "fp8_656 --chunk 256\n"
        "  smla run v32 --layer 0 --hidden v32/hidden.safetensors --out y.safetensors --kv-format "
        "fp8_576 --kv-scale 0.05\n"
        "  smla run --serve examples/traces/mixed.csv --backend FLASHMLA_SPARSE --kv-dtype fp8\n"
        "smla example writes the checkpoint v32.");
    add_options(*command, *options);
    tool.action(command, [&tool, options, command] {
        const bool serving = !options->serving.trace.empty();
        check_use(*command, serving);
        if (serving) return serve(tool, options->serving, options->context);
        for (const auto& [name, value] :
             {std::pair{"checkpoint", &options->checkpoint}, std::pair{"--hidden", &options->hidden},
              std::pair{"--out", &options->out}})
            SMLA_CHECK(!value->empty(), name, "nothing", "a path");
        return run(tool, *options);
    });
}

}  // namespace smla::cli
