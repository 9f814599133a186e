// smla doctor: what this machine has, which engines run on it, and a self-test.
#include "common.h"
#include "core/cpu_features.h"
#include "core/limits.h"
#include "engines/run.h"
#include "linear/cblas.h"
#include "machine.h"
#include "self_test.h"
#include "subcommands.h"

#include <CLI/CLI.hpp>

namespace smla::cli {

namespace {

struct Options {
    ContextOptions context;
    bool no_self_test = false;
};

// Numbers of kernels are counted in the candidate tables.
Document cuda_facts() {
    int64_t each = 0, hopper = 0;
    for (int stage = 0; stage < kStageCount; ++stage)
        for (const std::string& name : kernel_names(Stage(stage), SMLA_ENGINE_CUDA))
            ++(name.rfind("cuda_sm90_", 0) == 0 ? hopper : each);
    const std::vector<int> built = cuda_architectures();
    if (std::find(built.begin(), built.end(), 90) == built.end()) hopper = 0;
    return {{"architectures", built}, {"kernels_of_each", each}, {"kernels_of_sm90_alone", hopper}};
}

std::string cuda_text(const Document& cuda) {
    std::string out;
    for (const int architecture : cuda["architectures"])
        out += text(out.empty() ? "sm_" : ", sm_", architecture);
    if (out.empty()) return "not in this build";
    const int64_t hopper = cuda["kernels_of_sm90_alone"].get<int64_t>();
    return text("code for ", out, "; ", cuda["kernels_of_each"].get<int64_t>(), " kernels for each",
                hopper ? text(", ", hopper, " more for sm_90") : "");
}

std::string gpu_text(const Document& gpu) {
    if (gpu.contains("why_none")) return "none: " + gpu["why_none"].get<std::string>();
    std::string out;
    for (const Document& each : gpu["devices"])
        out += text(out.empty() ? "" : "; ", each["name"].get<std::string>(), ", sm_",
                    each["capability"].get<int>(), ", ", each["multiprocessors"].get<int>(),
                    " multiprocessors, ", bytes_text(each["memory_bytes"].get<double>()));
    if (gpu.contains("why_no_more")) out += "; then: " + gpu["why_no_more"].get<std::string>();
    return out;
}

// Whether the processor has AMX tiles and this process may use them.
std::string tiles() {
    if (best_isa() != SMLA_ISA_AMX) return "none";
    const std::string why = why_no_tiles();
    return why.empty() ? "usable" : why;
}

// OpenBLAS selects kernels of an older instruction set on processors that are newer than it: 0.3.21 selects
// those of AVX2 on Zen 5, at half the rate, and Prescott's on processors that it cannot identify.
std::string kernels_of_openblas(const std::string& core) {
    const auto is_one_of = [&](const std::initializer_list<const char*>& names) {
        return std::any_of(names.begin(), names.end(),
                           [&](const char* each) { return strcasecmp(core.c_str(), each) == 0; });
    };
    const bool avx512 = is_one_of({"SkylakeX", "Cooperlake", "SapphireRapids"}),
               avx2 = is_one_of({"Haswell", "Zen"});
    const char* better = nullptr;
    if (best_isa() > SMLA_ISA_AMX || avx512) better = nullptr;
    else if (best_isa() >= SMLA_ISA_AVX512) better = "SkylakeX";
    else if (best_isa() >= SMLA_ISA_AVX2 && !avx2) better = "Haswell";
    return text(
        core, " kernels",
        better ? text(": OPENBLAS_CORETYPE=", better, " selects newer ones, which may be faster") : "");
}

Document or_null(double limit) { return limit > 0 ? Document(limit) : Document(); }

Document nodes_facts() {
    Document nodes = Document::array();
    for (const MemoryNode& node : memory_nodes())
        nodes.push_back({{"number", node.number}, {"cores", node.cores}});
    return nodes;
}

std::string cores_text(const Document& facts) {
    const int usable = facts["cores"].get<int>();
    const std::string cores = text(usable, " that this process may use");
    if (facts["cpu_limit_cores"].is_null()) return cores;
    const double limit = facts["cpu_limit_cores"].get<double>();
    const int of_mask = facts["cores_of_affinity"].get<int>();
    if (limit >= of_mask) return cores;
    return text(cores, ": a CPU limit of ", fmt::format("{:g}", limit), " of ", of_mask,
                " cores (OPENBLAS_NUM_THREADS=", usable, " limits OpenBLAS accordingly)");
}

// Empty if all cores share the memory of one node.
std::string nodes_text(const Document& nodes) {
    if (nodes.size() < 2) return "";
    std::string cores;
    for (const Document& node : nodes)
        cores += text(cores.empty() ? "" : ", ", "node ", node["number"].get<int>(), " has ",
                      node["cores"].get<int>(), " cores");
    return text(nodes.size(), ": ", cores,
                "; the memory of another node is slower, so run a process on each: ",
                "numactl --cpunodebind=", nodes[0]["number"].get<int>(),
                " --membind=", nodes[0]["number"].get<int>(), " COMMAND");
}

Document facts(const Context& context) {
    const std::string blas = cblas().library;
    const auto core = cblas().core_name;
    return {{"version", version_text()},
            {"build", text(compiler(), ", ", build_type())},
            {"gpu", gpu_facts()},
            {"cuda", cuda_facts()},
            {"cpu", cpu_model()},
            {"cores", usable_cores()},
            {"cores_of_affinity", cores_of_affinity()},
            {"cpu_limit_cores", or_null(cpu_limit_cores())},
            {"memory_nodes", nodes_facts()},
            {"best_isa", isa_name(best_isa())},
            {"tiles", tiles()},
            {"context", context.description()},
            {"memory_bytes", memory_total()},
            {"memory_available_bytes", memory_available()},
            {"memory_limit_bytes", memory_limit_bytes() > 0 ? Document(memory_limit_bytes()) : Document()},
            {"huge_pages", huge_pages()},
            {"cblas", blas.empty() ? Document() : Document(blas)},
            {"cblas_core", core ? Document(core()) : Document()},
            {"why_no_cblas", blas.empty() ? Document(cblas().why_none) : Document()}};
}

std::string describe(const Document& facts) {
    const auto line = [](const char* name, const std::string& value) {
        return fmt::format("{:<14}{}\n", name, value);
    };
    const std::string blas =
        !facts["cblas"].is_null()
            ? facts["cblas"].get<std::string>()
            : text("none (", facts["why_no_cblas"].get<std::string>(),
                   "): projections run in smla's slower loops; SMLA_CBLAS can name a library");
    const std::string core = facts["cblas_core"].is_null()
                                 ? ""
                                 : ", " + kernels_of_openblas(facts["cblas_core"].get<std::string>());
    const std::string nodes = nodes_text(facts["memory_nodes"]);
    const std::string limit = facts["memory_limit_bytes"].is_null()
                                  ? ""
                                  : ", a limit of " + bytes_text(facts["memory_limit_bytes"].get<double>());
    const std::string pages = facts["huge_pages"].get<std::string>();
    return line("version", facts["version"].get<std::string>()) +
           line("build", facts["build"].get<std::string>()) + line("gpu", gpu_text(facts["gpu"])) +
           line("cuda", cuda_text(facts["cuda"])) + line("cpu", facts["cpu"].get<std::string>()) +
           line("cores", cores_text(facts)) + (nodes.empty() ? "" : line("memory nodes", nodes)) +
           line("isa", text("best supported: ", facts["best_isa"].get<std::string>())) +
           line("tiles", facts["tiles"].get<std::string>()) +
           line("context", facts["context"].get<std::string>()) +
           line("memory", bytes_text(facts["memory_bytes"].get<double>()) + ", " +
                              bytes_text(facts["memory_available_bytes"].get<double>()) + " free" + limit) +
           line("huge pages", pages == "never" ? "never: gathers from large caches are slower" : pages) +
           line("cblas", blas + core);
}

Table results_table(const std::vector<SelfTestResult>& results) {
    const auto small = [](const Document& cell) { return fmt::format("{:.1e}", cell.get<double>()); };
    Table table({{"stage", "stage"},
                 {"problem", "problem", {}, 2},
                 {"kernel", "kernel", {}, 3},
                 {"error", "error", small, 4},
                 {"limit", "limit", small, 1},
                 {"passed", ""},
                 {"skipped", ""},
                 {"failure", ""},
                 {"result", "result"}});
    for (const SelfTestResult& each : results) {
        const std::string result = each.skipped    ? paint(Colour::yellow, "SKIP")
                                   : each.passed() ? paint(Colour::green, "PASS")
                                                   : paint(Colour::red, "FAIL");
        table.row({each.stage, each.problem, each.kernel, each.error, each.limit, each.passed(), each.skipped,
                   each.failure, each.failure.empty() ? result : result + " " + each.failure});
    }
    return table;
}

int doctor(const Tool& tool, const Options& options) {
    Context context = options.context.create(tool);
    Document document = facts(context);
    std::string out = describe(document);
    bool passed = true;
    if (!options.no_self_test) {
        std::vector<SelfTestResult> results;
        {
            Progress progress(self_test_count());
            results = self_test(context, [&](const std::string& stage) { progress.advance(1, stage); });
        }
        for (const SelfTestResult& each : results) passed = passed && each.passed();
        const Table table = results_table(results);
        Document rows = table.json();
        for (Document& row : rows) row.erase("result");
        document["self_test"] = rows;
        document["passed"] = passed;
        out += "\nSelf-test: relative error against double precision (select: number of wrong indices)\n" +
               table.text();
    }
    if (tool.json()) tool.print(document);
    else tool.print(out);
    return passed ? kOk : kFailedCheck;
}

}  // namespace

void add_doctor(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command =
        tool.command(app, "doctor", "Show this machine's hardware and engines, and run a self-test",
                     "  smla doctor\n  smla doctor --isa avx2\n  smla doctor --json");
    command->add_flag("--no-self-test", options->no_self_test, "Show facts without running the self-test");
    options->context.add(*command);
    tool.action(command, [&tool, options] { return doctor(tool, *options); });
}

}  // namespace smla::cli
