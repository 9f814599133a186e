// smla bench: times of the stages and of a whole decode step, against this machine's measured peak.
#include "busy.h"
#include "common.h"
#include "engines/run.h"
#include "explain/stage.h"
#include "host.h"
#include "machine.h"
#include "measure.h"
#include "model/output_file.h"
#include "subcommands.h"
#include "suite.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace smla::cli {

namespace {

struct Options {
    std::string test = "all", suite, stage, format = "auto";
    bool list = false;
    StageShape shape;
    BenchOptions bench;
    ContextOptions context;
};

constexpr const char* kPeersMeasured = "on an H200, on 2026-11-21 and 2026-11-23";

Document figure(double value) { return value > 0 ? Document(value) : Document(); }

std::string milliseconds(const Document& cell) { return fmt::format("{:.4g}", cell.get<double>()); }
std::string small(const Document& cell) { return fmt::format("{:.1e}", cell.get<double>()); }

Table make_table() {
    return Table({{"stage", "stage"},
                  {"part", ""},
                  {"case", "case"},
                  {"kernel", "kernel", {}, 5},
                  {"ms", "median ms", milliseconds},
                  {"min_ms", "min", milliseconds, 6},
                  {"p10_ms", "p10", milliseconds, 2},
                  {"p90_ms", "p90", milliseconds, 3},
                  {"max_ms", "max", milliseconds, 6},
                  {"gflops", "GFLOP/s", show_fixed(1), 1},
                  {"percent_of_peak", "% of peak", show_fixed(1), 8},
                  {"peak_unit", "of unit", {}, 2},
                  {"peak_gflops", ""},
                  {"gbytes_per_second", "GB/s", show_fixed(1), 1},
                  {"error", "error", small, 3},
                  {"repeats", "repeats", {}, 0}});
}

Table make_suite_table() {
    const auto us = show_fixed(1);
    return Table({{"stage", "stage"},
                  {"case", "case"},
                  {"kernel", "kernel", {}, 4},
                  {"us", "median us", us},
                  {"min_us", "min", us, 5},
                  {"p90_us", "p90", us, 3},
                  {"max_us", "max", us, 5},
                  {"sustained_us", "sustained", us, 4},
                  {"peer", "peer", {}, 6},
                  {"peer_us", "peer us", us, 7},
                  {"times_as_fast", "times as fast", show_fixed(2), 7},
                  {"tflops", "TFLOP/s", show_fixed(0), 2},
                  {"percent_of_peak", "% of peak", show_fixed(1), 6},
                  {"peak_unit", "of unit", {}, 2},
                  {"peak_gflops", ""},
                  {"gbytes_per_second", "GB/s", show_fixed(0), 2},
                  {"error", "error", small, 3},
                  {"repeats", "repeats", {}, 1}});
}

// Returns a quantile of the repeats in a unit of time; null for a sum, which has no repeats.
Document quantile(const std::vector<double>& repeats, double q, double unit) {
    return repeats.empty() ? Document() : Document(quantile_of(repeats, q) * unit);
}

void add_row(Table& table, const Measured& m) {
    const double flops = m.flops / m.seconds;
    table.row({m.stage, m.part, m.name, m.kernel.empty() ? Document() : Document(m.kernel), m.seconds * 1e3,
               quantile(m.repeats, 0, 1e3), quantile(m.repeats, 0.1, 1e3), quantile(m.repeats, 0.9, 1e3),
               quantile(m.repeats, 1, 1e3), figure(flops * 1e-9),
               m.peak_flops > 0 ? figure(100 * flops / m.peak_flops) : Document(),
               m.unit.empty() ? Document() : Document(m.unit), figure(m.peak_flops * 1e-9),
               figure(m.bytes / m.seconds * 1e-9), std::isnan(m.error) ? Document() : Document(m.error),
               m.repeats.size()});
}

using Work = std::function<std::vector<Measured>(Bench&)>;

// Returns the call that --stage and its options describe.
Work stage_work(const Options& options) {
    if (options.format != "auto") parse_format("--format", options.format);
    StageShape shape = options.shape;
    shape.tokens = options.bench.tokens;
    const std::string tokens = text("T", shape.tokens);
    if (options.stage == "attend") {
        shape.kv_format = options.format;
        AttendShape call = attend_shape(shape);
        call.primary.pool_rows = std::max(kColdRows, call.primary.listed);
        const AttendCase test{text(tokens, " H", call.heads, " K", call.primary.listed, " ",
                                   find_format(call.primary.format)->name),
                              call};
        return [test](Bench& bench) { return std::vector{bench.attend(test)}; };
    }
    if (options.stage == "score") {
        shape.index_format = options.format;
        const ScoreShape call = score_shape(shape);
        const ScoreCase test{
            text(tokens, " H", call.heads, " N", call.columns, " ", find_format(call.format)->name), call};
        return [test](Bench& bench) { return std::vector{bench.score(test)}; };
    }
    const SelectCase test{text(tokens, " N", shape.columns, " k", shape.topk),
                          {shape.tokens, shape.columns, shape.topk}};
    return [test](Bench& bench) { return std::vector{bench.select(test)}; };
}

// Runs the cases of the requested stages. A quick run of all cases omits metadata, which takes microseconds.
std::vector<Work> plan(const Options& options, bool gpu) {
    if (!options.stage.empty()) return {stage_work(options)};
    std::vector<Work> out;
    const std::string& test = options.test;
    const bool all = test == "all", quick = options.bench.quick;
    if (all || test == "attend")
        for (const AttendCase& each : attend_cases(quick, gpu))
            out.push_back([each](Bench& bench) { return std::vector{bench.attend(each)}; });
    if (all || test == "score")
        for (const ScoreCase& each : score_cases(quick, gpu))
            out.push_back([each](Bench& bench) { return std::vector{bench.score(each)}; });
    if (all || test == "select")
        for (const SelectCase& each : select_cases(quick, gpu))
            out.push_back([each](Bench& bench) { return std::vector{bench.select(each)}; });
    if (all || test == "score_select")
        for (const FusedCase& each : fused_cases(quick))
            out.push_back([each](Bench& bench) { return std::vector{bench.score_select(each)}; });
    if (all || test == "project")
        for (const ProjectCase& each : project_cases(quick, gpu))
            out.push_back([each](Bench& bench) { return std::vector{bench.project(each)}; });
    if ((all && !quick) || test == "metadata")
        for (const MetadataCase& each : metadata_cases(quick))
            out.push_back([each](Bench& bench) { return std::vector{bench.metadata(each)}; });
    return out;
}

// Returns the facts that every result depends on. busy: the result of why_busy().
Document facts(const Bench& bench, const Context& context, const std::string& busy, bool quick) {
    const char* clock = bench.stopwatch().clock();
    const bool gpu = context.device().type() != SMLA_CPU;
    Document units = Document::object();
    for (const auto& [unit, peak] : bench.peaks().of_units) units[unit->name] = peak * 1e-9;
    return {{"machine", machine_facts()},
            {"cpu", cpu_model()},
            {"context", context.description()},
            {"check_indices", context.env({}).check_indices},
            {"clock", clock},
            {"method", text("median of one call, ", clock,
                            gpu ? ", after a write that empties L2"
                                : ", random rows of caches larger than the processor's")},
            {"load_average", load_average()},
            {"busy", busy.empty() ? Document() : Document(busy)},
            {"peak_gflops_of_units", units},
            {"peak_bf16_dot_gflops", figure(bench.peaks().bf16_dot * 1e-9)},
            {"peak_f32_fma_gflops", figure(bench.peaks().f32_fma * 1e-9)},
            {"peak_memory_gbytes_per_second", figure(bench.peaks().memory * 1e-9)},
            {"quick", quick}};
}

std::string headline(const Bench& bench, const Context& context, const std::string& busy) {
    std::string peaks;
    for (const auto& [unit, peak] : bench.peaks().of_units)
        peaks += fmt::format("{} {:.0f} GFLOP/s, ", unit->name, peak * 1e-9);
    return (busy.empty()
                ? ""
                : paint(Colour::yellow, "warning: this machine is busy, times may be too long: " + busy) +
                      "\n") +
           fmt::format("{}, {}; {}\npeaks measured now: {}memory {:.3g} GB/s\n\n", cpu_model(),
                       context.description(), bench.stopwatch().clock(), peaks, bench.peaks().memory * 1e-9);
}

// Returns the line below the tables that says what % of peak is relative to; empty if no row has a unit.
std::string peaks_line(const Document& rows) {
    std::map<std::string, std::vector<double>> peaks;
    for (const Document& row : rows)
        if (!row["peak_gflops"].is_null())
            peaks[row["peak_unit"].get<std::string>()].push_back(row["peak_gflops"].get<double>());
    std::string out;
    for (const auto& [unit, values] : peaks) {
        const double least = quantile_of(values, 0), most = quantile_of(values, 1);
        out += fmt::format("{}{} {:.0f}", out.empty() ? "" : "; ", unit, least);
        out += most > 1.01 * least ? fmt::format(" to {:.0f} GFLOP/s", most) : " GFLOP/s";
    }
    return out.empty() ? out : "100 % of peak, measured before and after each case: " + out + "\n";
}

// Returns the cases that --case selects.
std::vector<SuiteCase> suite_cases(const Options& options) {
    std::vector<SuiteCase> cases = hopper_suite(options.bench.quick);
    std::set<std::string> stages;
    for (const SuiteCase& each : cases) stages.insert(each.stage);
    std::erase_if(cases,
                  [&](const SuiteCase& each) { return options.test != "all" && options.test != each.stage; });
    if (!stages.count(options.test) && options.test != "all")
        fail(SMLA_INVALID_ARGUMENT, "--case",
             text(options.test, " with --suite ", options.suite, options.bench.quick ? " --quick" : ""),
             "all, or a stage of the suite: " + joined({stages.begin(), stages.end()}));
    return cases;
}

Document peer_of(const SuiteCase& test) { return test.peer.empty() ? Document() : Document(test.peer); }

int list_suite(const Tool& tool, const Options& options) {
    Table table({{"stage", "stage"},
                 {"case", "case"},
                 {"peer", "peer", {}, 3},
                 {"peer_us", "peer us", show_fixed(1)}});
    for (const SuiteCase& each : suite_cases(options))
        table.row({each.stage, each.name, peer_of(each), figure(each.peer_us)});
    tool.print({{"suite", options.suite}, {"peers_measured", kPeersMeasured}, {"results", table.json()}},
               text("peers: ", kPeersMeasured, "\n\n") + table.text(), options.bench.save);
    return kOk;
}

// us: of the first repeats, as many as the peers' own programs time. sustained: of the second half, after
// some 0.1 s of which a GPU at its power limit lowers its clock (H200: 1980 to 1700 MHz).
int bench_suite(const Tool& tool, const Options& options) {
    if (options.list) return list_suite(tool, options);
    const std::vector<SuiteCase> cases = suite_cases(options);
    Context context = options.context.create(tool);
    const std::string why_no_gpu = why_no_engine(SMLA_ENGINE_CUDA);
    if (context.device().type() == SMLA_CPU && !options.bench.quick)
        fail(SMLA_UNSUPPORTED, "--suite", text(options.suite, " on a CPU"),
             why_no_gpu.empty() ? "--engine cuda, or --quick"
                                : text("a GPU (", why_no_gpu, "), or --quick for cases that run on a CPU"));
    const std::string busy = why_busy(context);
    Progress progress(int64_t(cases.size()) + 1, "measuring the peaks");
    Bench bench(context, options.bench);
    progress.advance(1, "peak");
    Table table = make_suite_table();
    for (const SuiteCase& each : cases) {
        const Measured m = each.run(bench);
        const auto begin = m.repeats.begin();
        const std::vector<double> first(begin, begin + int64_t(std::min(kRepeatsOnGpu, m.repeats.size()))),
            last(begin + int64_t(m.repeats.size() / 2), m.repeats.end());
        const double seconds = median_of(first), us = seconds * 1e6, flops = m.flops / seconds;
        table.row({m.stage, each.name, m.kernel, us, quantile(first, 0, 1e6), quantile(first, 0.9, 1e6),
                   quantile(first, 1, 1e6), median_of(last) * 1e6, peer_of(each), figure(each.peer_us),
                   figure(each.peer_us / us), figure(flops * 1e-12),
                   m.peak_flops > 0 ? figure(100 * flops / m.peak_flops) : Document(),
                   m.unit.empty() ? Document() : Document(m.unit), figure(m.peak_flops * 1e-9),
                   figure(m.bytes / seconds * 1e-9), std::isnan(m.error) ? Document() : Document(m.error),
                   m.repeats.size()});
        progress.advance(1, m.stage + " " + each.name);
    }
    Document document = facts(bench, context, busy, options.bench.quick);
    document["suite"] = options.suite;
    document["method"] = text(document["method"].get<std::string>(), "; us of the first ", kRepeatsOnGpu,
                              " repeats, sustained_us of the second half");
    document["peers_measured"] = kPeersMeasured;
    document["results"] = table.json();
    tool.print(document,
               headline(bench, context, busy) + "peers: " + kPeersMeasured +
                   "; times of different boards differ by 10 %\n\n" + table.text() +
                   peaks_line(document["results"]),
               options.bench.save);
    return kOk;
}

// A decode step of a model: the sum over its attention layers, computed as one layer of each kind times their
// number.
class ModelSums {
public:
    void add(const DecodeCase& test, const Measured& layer) {
        auto& sum = sums_[test.model];
        sum.tokens = test.tokens;
        sum.context = test.context;
        sum.layers += test.layers.count;
        sum.seconds += layer.seconds * double(test.layers.count);
    }
    Table table() const {
        Table out({{"model", "model"},
                   {"layers", "layers"},
                   {"tokens", "tokens"},
                   {"context", "context"},
                   {"ms", "ms", milliseconds}});
        for (const auto& [model, sum] : sums_)
            out.row({model, sum.layers, sum.tokens, sum.context, sum.seconds * 1e3});
        return out;
    }

private:
    struct Sum {
        int64_t tokens = 0, context = 0, layers = 0;
        double seconds = 0;
    };
    std::map<std::string, Sum> sums_;
};

void check(const Options& options, const CLI::App& command) {
    if (!options.bench.save.empty()) OutputFile::check(options.bench.save);
    const auto require = [&](const char* option, bool there, const char* wanted) {
        if (command.count(option) && !there)
            fail(SMLA_INVALID_ARGUMENT, option, command.get_option(option)->as<std::string>(),
                 text("this option only together with ", wanted));
    };
    const bool stage = !options.stage.empty(), decode = options.test == "decode";
    require("--tokens", stage || decode, "--case decode or --stage");
    require("--context", decode, "--case decode");
    require("--list", !options.suite.empty(), "--suite hopper");
    require("--stage", options.suite.empty() && options.test == "all", "neither --case nor --suite");
    for (const char* option : {"--heads", "--format"})
        require(option, options.stage == "attend" || options.stage == "score", "--stage attend or score");
    require("--rows", options.stage == "attend", "--stage attend");
    require("--columns", options.stage == "score" || options.stage == "select", "--stage score or select");
    require("--topk", options.stage == "select", "--stage select");
}

int bench(const Tool& tool, const Options& options) {
    if (!options.suite.empty()) return bench_suite(tool, options);
    if (options.test == "host") return bench_host(tool, options.context, options.bench);
    Context context = options.context.create(tool);
    const bool gpu = context.device().type() != SMLA_CPU;
    const std::vector<Work> todo = plan(options, gpu);
    std::vector<DecodeCase> steps;
    if ((options.test == "all" && options.stage.empty()) || options.test == "decode")
        steps = decode_cases(options.bench.quick, options.bench.tokens, options.bench.context);
    const std::string busy = why_busy(context);
    Progress progress(int64_t(todo.size() + steps.size()) + 1, "measuring the peaks");
    Bench bench(context, options.bench);
    progress.advance(1, "peak");
    Table calls = make_table(), layers = make_table();
    for (const Work& each : todo)
        for (const Measured& measured : each(bench)) {
            add_row(calls, measured);
            progress.advance(1, measured.stage + " " + measured.name);
        }
    ModelSums models;
    for (const DecodeCase& each : steps) {
        const std::vector<Measured> rows = bench.decode(each);
        for (const Measured& measured : rows) add_row(layers, measured);
        models.add(each, rows.front());
        progress.advance(1, each.name);
    }
    Document document = facts(bench, context, busy, options.bench.quick);
    Document results = calls.json();
    for (const Document& each : layers.json()) results.push_back(each);
    document["results"] = results;
    std::string out = headline(bench, context, busy);
    if (!calls.empty()) out += "Calls of one stage\n" + calls.text();
    if (!steps.empty()) {
        document["models"] = models.table().json();
        out += text(calls.empty() ? "" : "\n",
                    "Decode steps of one layer: attention, in total and by stage\n", layers.text(),
                    "\nDecode steps of a model: attention of all layers, computed from one layer of each "
                    "kind\n",
                    models.table().text());
    }
    tool.print(document, out + peaks_line(results), options.bench.save);
    return kOk;
}

}  // namespace

void add_bench(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = tool.command(
        app, "bench", "Measure the stages and a decode step, relative to this machine's measured peak",
        "  smla bench --quick\n  smla bench --case attend --threads 1\n  smla bench --case decode --json\n"
        "  smla bench --case decode --tokens 16 --context 16K\n"
        "  smla bench --stage attend --heads 16 --tokens 4 --rows 2048 --format fp8_656\n"
        "  smla bench --stage score --tokens 4 --columns 128K\n"
        "  smla bench --case host --threads 1\n  smla bench --suite hopper --list\n"
        "With a GPU:\n  smla bench --suite hopper --json\n  smla bench --suite hopper --case score\n"
        "Row lists are random, and their caches are larger than the processor's caches. The error is that of "
        "a sample,\nrelative to double precision. % of peak refers to the arithmetic unit that the kernel "
        "uses, measured in the\nsame run. With --suite, us is measured in the first 30 repeats, like the "
        "times of the peers; sustained is\nmeasured in the second half, when a GPU at its power limit has "
        "lowered its clock. --case host measures the\nhost time of a call that computes almost nothing.");
    command
        ->add_option("--case", options->test,
                     "all, attend, score, select, score_select, project, metadata, decode or host; all does "
                     "not include host")
        ->transform(one_of(
            {"all", "attend", "score", "select", "score_select", "project", "metadata", "decode", "host"}))
        ->capture_default_str();
    command
        ->add_option("--suite", options->suite,
                     "hopper: cases of other libraries (peers) with their times; requires a GPU, or --quick "
                     "on a CPU")
        ->transform(one_of({"hopper"}));
    command
        ->add_option("--stage", options->stage,
                     "Measure one call of attend, score or select, described by the options under Shape")
        ->transform(one_of({"attend", "score", "select"}));
    command->add_flag("--list", options->list, "Print the cases of the suite without running them");
    command->add_flag("--quick", options->bench.quick, "Run few cases with small caches, in seconds");
    command->add_option("--seconds", options->bench.seconds, "Seconds to repeat each case")
        ->check(positive_number(kMostSeconds, "seconds"))
        ->capture_default_str();
    const auto count = [&](const char* name, int64_t& value, const char* about, int64_t most) {
        return command->add_option(name, value, about)->transform(token_count(1, most))->group("Shape");
    };
    count("--tokens", options->bench.tokens, "Query tokens; a decode step has one per request", 1 << 14)
        ->capture_default_str();
    count("--context", options->bench.context,
          "Tokens of each request of a decode step; default 131072, with --quick 16384", 1 << 24);
    count("--heads", options->shape.heads, "Query heads (default 128) or index heads (default 64)", 256);
    count("--rows", options->shape.rows, "Listed rows of attend", 1 << 20)->capture_default_str();
    count("--columns", options->shape.columns, "Keys of score and select", 1 << 24)->capture_default_str();
    count("--topk", options->shape.topk, "Columns that select selects", 1 << 14)->capture_default_str();
    command
        ->add_option("--format", options->format,
                     "Record format of the keys (smla list formats); default fp8_656 or index_fp8_132")
        ->transform(any_case())
        ->group("Shape");
    command->add_option("--save", options->bench.save, "Also write the JSON document to this file");
    options->context.add(*command);
    command
        ->add_flag("--check-indices", options->context.check_indices,
                   "Measure calls that also check their indices and lengths")
        ->group(ContextOptions::kGroup);
    tool.action(command, [&tool, options, command] {
        check(*options, *command);
        return bench(tool, *options);
    });
}

}  // namespace smla::cli
