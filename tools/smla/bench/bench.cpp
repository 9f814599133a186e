// smla bench: times of the stages and of a whole decode step, against this machine's measured peak.
#include "common.h"
#include "engines/run.h"
#include "host.h"
#include "machine.h"
#include "measure.h"
#include "model/output_file.h"
#include "subcommands.h"
#include "suite.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <set>

namespace smla::cli {

namespace {

struct Options {
    std::string test = "all", suite;
    bool list = false;
    BenchOptions bench;
    ContextOptions context;
};

constexpr const char* kPeersMeasured = "on an H200, on 2026-11-21 and 2026-11-23";
constexpr double kProductTflops = 783;  // of bf16, 8192 x 8192 x 8192, by cuBLAS there

Document figure(double value) { return value > 0 ? Document(value) : Document(); }

Table make_table() {
    const auto small = [](const Document& cell) { return fmt::format("{:.1e}", cell.get<double>()); };
    const auto milliseconds = [](const Document& cell) { return fmt::format("{:.4g}", cell.get<double>()); };
    return Table({{"stage", ""},
                  {"part", ""},
                  {"case", ""},
                  {"shown_stage", "stage"},
                  {"shown_case", "case"},
                  {"kernel", "kernel", {}, 3},
                  {"ms", "ms", milliseconds},
                  {"gflops", "GFLOP/s", show_fixed(1), 2},
                  {"percent_of_peak", "% of peak", show_fixed(1), 5},
                  {"gbytes_per_second", "GB/s", show_fixed(1), 2},
                  {"error", "error", small, 4},
                  {"repeats", "repeats", {}, 1}});
}

Table make_suite_table() {
    const auto small = [](const Document& cell) { return fmt::format("{:.1e}", cell.get<double>()); };
    return Table({{"stage", "stage"},
                  {"case", "case"},
                  {"kernel", "kernel", {}, 3},
                  {"us", "us", show_fixed(1)},
                  {"sustained_us", "sustained", show_fixed(1), 5},
                  {"peer", "peer", {}, 6},
                  {"peer_us", "peer us", show_fixed(1), 7},
                  {"times_as_fast", "times as fast", show_fixed(2), 7},
                  {"target_us", "target us", show_fixed(0), 7},
                  {"reached", "reached", {}, 6},
                  {"tflops", "TFLOP/s", show_fixed(0), 2},
                  {"percent_of_peak", "% of peak", show_fixed(1), 4},
                  {"gbytes_per_second", "GB/s", show_fixed(0), 2},
                  {"error", "error", small, 3},
                  {"repeats", "repeats", {}, 1}});
}

void add_row(Table& table, const Measured& m) {
    const double flops = m.flops / m.seconds;
    table.row({m.stage, m.part, m.name, m.part ? "  " + m.stage : m.stage, m.part ? "" : m.name,
               m.kernel.empty() ? Document() : Document(m.kernel), m.seconds * 1e3, figure(flops * 1e-9),
               m.peak_flops > 0 ? figure(100 * flops / m.peak_flops) : Document(),
               figure(m.bytes / m.seconds * 1e-9), std::isnan(m.error) ? Document() : Document(m.error),
               m.repeats.size()});
}

// The cases of the wanted stages.
std::vector<std::function<std::vector<Measured>(Bench&)>> plan(const std::string& test,
                                                               const BenchOptions& options, bool gpu) {
    std::vector<std::function<std::vector<Measured>(Bench&)>> out;
    const bool all = test == "all", quick = options.quick;
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
    if (all || test == "metadata")
        for (const MetadataCase& each : metadata_cases(quick))
            out.push_back([each](Bench& bench) { return std::vector{bench.metadata(each)}; });
    if (all || test == "decode")
        for (const DecodeCase& each : decode_cases(quick, options.tokens, options.context))
            out.push_back([each](Bench& bench) { return bench.decode(each); });
    return out;
}

// What every figure depends on.
Document facts(const Bench& bench, const Context& context, bool quick) {
    const char* clock = bench.stopwatch().clock();
    const bool gpu = context.device().type() != SMLA_CPU;
    return {{"machine", machine_facts()},
            {"cpu", cpu_model()},
            {"context", context.description()},
            {"check_indices", context.env({}).check_indices},
            {"clock", clock},
            {"method", text("median of one call, ", clock,
                            gpu ? ", after a write that empties L2"
                                : ", random rows of caches larger than the processor's")},
            {"peak_bf16_dot_gflops", figure(bench.peaks().bf16_dot * 1e-9)},
            {"peak_f32_fma_gflops", figure(bench.peaks().f32_fma * 1e-9)},
            {"peak_memory_gbytes_per_second", figure(bench.peaks().memory * 1e-9)},
            {"quick", quick}};
}
std::string headline(const Bench& bench, const Context& context) {
    const Peaks& peaks = bench.peaks();
    const auto peak = [](double flops) {
        return flops > 0 ? fmt::format("{:.0f} GFLOP/s", flops * 1e-9) : "none";
    };
    return fmt::format(
        "{}, {}; medians of {}\npeak measured now: bf16 dot {}, f32 multiply-add {}, memory {}\n\n",
        cpu_model(), context.description(), bench.stopwatch().clock(), peak(peaks.bf16_dot),
        peak(peaks.f32_fma), peaks.memory > 0 ? fmt::format("{:.3g} GB/s", peaks.memory * 1e-9) : "none");
}

// Those that --case asks for.
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

int list_suite(const Tool& tool, const Options& options) {
    Table table({{"stage", "stage"},
                 {"case", "case"},
                 {"peer", "peer", {}, 3},
                 {"peer_us", "peer us", show_fixed(1)},
                 {"target_us", "target us", show_fixed(0)}});
    for (const SuiteCase& each : suite_cases(options))
        table.row({each.stage, each.name, each.peer, each.peer_us, each.target_us});
    tool.print({{"suite", options.suite}, {"peers_measured", kPeersMeasured}, {"results", table.json()}},
               text("peers: ", kPeersMeasured, "\n\n") + table.text(), options.bench.save);
    return kOk;
}

// What a large bf16 product reaches on this GPU now; targets are for a GPU that reached kProductTflops.
// Without cuBLAS a small product: our own kernel would take a second for the large one.
Measured measure_product(Bench& bench, bool quick) {
    const auto measure = [&](int64_t n) {
        return bench.project({.name = text("bf16 product of ", n, " x ", n, " x ", n),
                              .tokens = n,
                              .groups = 1,
                              .inner = n,
                              .outer = n,
                              .along_n = false,
                              .x = SMLA_BF16});
    };
    const Measured small = measure(256);
    return quick || small.kernel != "cuda_cublaslt_project" ? small : measure(8192);
}

// us: of the first repeats, as many as the peers' own programs time. sustained: of the second half, after
// some 0.1 s of which a GPU at its power limit lowers its clock (H200: 1980 to 1700 MHz).
int bench_suite(const Tool& tool, const Options& options) {
    if (options.list) return list_suite(tool, options);
    const std::vector<SuiteCase> cases = suite_cases(options);
    ContextOptions place = options.context;
    const std::string why_no_gpu = why_no_engine(SMLA_ENGINE_CUDA);
    if (place.engine == "auto" && place.kernel.empty() && why_no_gpu.empty()) place.engine = "cuda";
    Context context = place.create();
    if (context.device().type() == SMLA_CPU && !options.bench.quick)
        fail(SMLA_UNSUPPORTED, "--suite", text(options.suite, " on a CPU"),
             why_no_gpu.empty() ? "--engine cuda, or --quick"
                                : text("a GPU (", why_no_gpu, "), or --quick for cases that run on a CPU"));
    Progress progress(int64_t(cases.size()) + 1);
    Bench bench(context, options.bench);
    const Measured product = measure_product(bench, options.bench.quick);
    const double product_tflops = product.flops / product.seconds * 1e-12;
    progress.advance(1, "peak");
    Table table = make_suite_table();
    for (const SuiteCase& each : cases) {
        const Measured m = each.run(bench);
        const auto first = m.repeats.begin(), last = m.repeats.end();
        const double seconds = median_of({first, first + int64_t(std::min(kRepeatsOnGpu, m.repeats.size()))}),
                     sustained = median_of({first + int64_t(m.repeats.size() / 2), last});
        const double us = seconds * 1e6, flops = m.flops / seconds;
        table.row({m.stage, each.name, m.kernel, us, sustained * 1e6, each.peer, each.peer_us,
                   each.peer_us / us, each.target_us, us <= each.target_us, figure(flops * 1e-12),
                   m.peak_flops > 0 ? figure(100 * flops / m.peak_flops) : Document(),
                   figure(m.bytes / seconds * 1e-9), std::isnan(m.error) ? Document() : Document(m.error),
                   m.repeats.size()});
        progress.advance(1, m.stage + " " + each.name);
    }
    Document document = facts(bench, context, options.bench.quick);
    document["suite"] = options.suite;
    document["method"] = text(document["method"].get<std::string>(), "; us of the first ", kRepeatsOnGpu,
                              " repeats, sustained_us of the second half");
    document["product_tflops"] = product_tflops;
    document["product_kernel"] = product.kernel;
    document["product_error"] = product.error;
    document["product_tflops_of_targets"] = kProductTflops;
    document["peers_measured"] = kPeersMeasured;
    document["results"] = table.json();
    const std::string ceilings =
        fmt::format("{}, {}: {:.3g} TFLOPS; {} on the GPU that targets are for\npeers: {}\n\n", product.name,
                    product.kernel, product_tflops, kProductTflops, kPeersMeasured);
    tool.print(document, headline(bench, context) + ceilings + table.text(), options.bench.save);
    return kOk;
}

int bench(const Tool& tool, const Options& options) {
    if (!options.bench.save.empty()) OutputFile::check(options.bench.save);
    if ((options.bench.tokens != 1 || options.bench.context != 0) && options.test != "decode")
        fail(SMLA_INVALID_ARGUMENT, options.bench.tokens != 1 ? "--tokens" : "--context",
             "--case " + options.test, "--case decode beside it");
    if (options.list && options.suite.empty())
        fail(SMLA_INVALID_ARGUMENT, "--list", "no suite", "--suite hopper beside it");
    if (!options.suite.empty()) return bench_suite(tool, options);
    if (options.test == "host") return bench_host(tool, options.context, options.bench);
    Context context = options.context.create();
    const bool gpu = context.device().type() != SMLA_CPU;
    const auto todo = plan(options.test, options.bench, gpu);
    Progress progress(int64_t(todo.size()) + 1);
    Bench bench(context, options.bench);
    progress.advance(1, "peak");
    Table table = make_table();
    for (const auto& each : todo) {
        const std::vector<Measured> results = each(bench);
        for (const Measured& measured : results) add_row(table, measured);
        progress.advance(1, results.front().stage + " " + results.front().name);
    }
    Document results = table.json();
    for (Document& each : results) {
        each.erase("shown_stage");
        each.erase("shown_case");
    }
    Document document = facts(bench, context, options.bench.quick);
    document["results"] = results;
    tool.print(document, headline(bench, context) + table.text(), options.bench.save);
    return kOk;
}

}  // namespace

void add_bench(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = tool.command(
        app, "bench", "Times of the stages and of a decode step, against this machine's measured peak",
        "  smla bench --quick\n  smla bench --case attend --threads 1\n  smla bench --case decode --json\n"
        "  smla bench --case decode --tokens 16 --context 16384\n"
        "  smla bench --case host --threads 1\n  smla bench --suite hopper --json\n"
        "  smla bench --suite hopper --case score\n"
        "Lists are random rows of caches larger than the processor's; the error is against double, on a "
        "sample.\nA suite's us are of the first 30 repeats, as the peers' programs time; sustained is of the "
        "second half, by\nwhen a GPU at its power limit has lowered its clock.\nhost: how long the host is "
        "busy with a call that has next to nothing to compute.");
    command
        ->add_option("--case", options->test,
                     "all, attend, score, select, score_select, project, metadata, decode; or host, which "
                     "all leaves out")
        ->check(one_of(
            {"all", "attend", "score", "select", "score_select", "project", "metadata", "decode", "host"}))
        ->capture_default_str();
    command
        ->add_option("--suite", options->suite,
                     "hopper: cases of other libraries, with their times and this library's targets; runs on "
                     "a GPU, or with --quick on a CPU")
        ->check(one_of({"hopper"}));
    command->add_flag("--list", options->list, "Print the suite's cases and run none");
    command->add_flag("--quick", options->bench.quick, "Few cases, small caches: seconds");
    command->add_option("--seconds", options->bench.seconds, "Time spent repeating each case")
        ->check(positive_number(kMostSeconds))
        ->capture_default_str();
    command->add_option("--tokens", options->bench.tokens, "Of a decode step: one of each request")
        ->check(whole_number(1, 1 << 14))
        ->capture_default_str();
    command
        ->add_option("--context", options->bench.context,
                     "Tokens of each request of a decode step; default 131072, with --quick 16384")
        ->check(whole_number(1, 1 << 24));
    command->add_option("--save", options->bench.save, "Also write the JSON document to this file");
    options->context.add(*command);
    command
        ->add_flag("--check-indices", options->context.check_indices,
                   "Calls also note the first wrong index or length: what that costs")
        ->group(ContextOptions::kGroup);
    tool.action(command, [&tool, options] { return bench(tool, *options); });
}

}  // namespace smla::cli
