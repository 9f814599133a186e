// smla verify: golden files on every engine and cache format; without files, every kernel on random problems.
#include "golden/verify.h"
#include "common.h"
#include "core/visible.h"
#include "subcommands.h"
#include "verify/stages.h"

#include <CLI/CLI.hpp>

namespace smla::cli {

namespace {

struct Options {
    std::vector<std::string> files;
    ContextOptions context;
    bool quiet = false;
    StageCheckOptions stages;
};

using golden::Combination;

std::string error_text(const Combination& combination) {
    const golden::Checked* worst = combination.worst();
    return worst ? fmt::format("{:.2g} of {:.2g} {}", worst->error, worst->tolerance, worst->measure) : "";
}

Document checked_json(const Combination& combination) {
    Document list = Document::array();
    for (const golden::Checked& check : combination.checked)
        list.push_back({{"tensor", check.tensor},
                        {"measure", check.measure},
                        {"error", check.error},
                        {"tolerance", check.tolerance},
                        {"pass", check.pass()}});
    return list;
}

Document combination_json(const Combination& c) {
    Document out{{"golden", c.golden},
                 {"engine", c.engine},
                 {"kv_format", c.kv_format},
                 {"index_format", c.index_format},
                 {"how", c.how},
                 {"kernel", c.kernel}};
    if (!c.ran()) {
        out["skipped"] = c.skipped;
    } else {
        out["pass"] = c.pass();
        out["checked"] = checked_json(c);
    }
    return out;
}

std::string line(const Combination& c) {
    const std::string name = without_controls(c.golden);
    if (!c.ran())
        return fmt::format("{} {:<12} {:<17} {:<9} {:<14} {}\n", paint(Colour::dim, "skip"), name, c.engine,
                           c.kv_format, c.index_format, c.skipped);
    const golden::Checked* worst = c.worst();
    return fmt::format("{} {:<12} {:<17} {:<9} {:<14} {:<26} {:<24} {} {}\n",
                       c.pass() ? paint(Colour::green, "ok  ") : paint(Colour::red, "FAIL"), name, c.engine,
                       c.kv_format, c.index_format, c.how, c.kernel, worst ? worst->tensor : "",
                       error_text(c));
}

int verify_files(const Tool& tool, const Options& options) {
    golden::VerifyOptions verify;
    const smla_context_args args = options.context.args();
    const Context checked(args);  // reports invalid options once, not for each file
    verify.engine = args.engine;
    verify.isa = args.isa;
    verify.threads = args.threads;
    verify.batch_invariant = args.batch_invariant;
    verify.device = args.device_index;
    verify.kernel = options.context.kernel;
    Document rows = Document::array();
    int64_t ran = 0, skipped = 0, failed = 0;
    std::vector<std::string> idle;  // files for which no requested combination ran
    std::vector<Error> refused;     // files that cannot be checked; all other files run
    Progress progress(int64_t(options.files.size()));
    for (const std::string& file : options.files) {
        progress.advance(0, file);
        bool as_demanded = false;
        const auto report = [&](const Combination& combination) {
            as_demanded |= combination.ran() && combination.as_demanded;
            (combination.ran() ? ran : skipped) += 1;
            failed += combination.ran() && !combination.pass();
            if (tool.json()) rows.push_back(combination_json(combination));
            else if (!options.quiet || (combination.ran() && !combination.pass()))
                tool.print(line(combination));
        };
        try {
            const golden::Golden golden = golden::load_golden(file);
            golden::verify_golden(golden, verify, report);
            if (!as_demanded) idle.push_back(golden.name);
        } catch (const Error& error) {
            if (options.files.size() == 1) throw;
            refused.push_back(error);
            tool.note(text("error: ", without_controls(file), ": ", error.what()));
        }
        progress.advance(1, file);
    }
    if (!refused.empty() && ran == 0) throw Error(refused.front());
    const bool pass = idle.empty() && refused.empty() && failed == 0;
    if (!idle.empty()) tool.note(text("no requested combination ran for ", without_controls(joined(idle))));
    if (tool.json())
        tool.print(Document{{"combinations", rows},
                            {"ran", ran},
                            {"skipped", skipped},
                            {"failed", failed},
                            {"nothing_ran", idle},
                            {"refused", refused.size()},
                            {"pass", pass}});
    else
        tool.print(
            fmt::format("{} files, {} of them rejected: {} combinations ran, {} failed, {} skipped: {}\n",
                        options.files.size(), refused.size(), ran, failed, skipped,
                        pass ? paint(Colour::green, "pass") : paint(Colour::red, "FAIL")));
    return !refused.empty() ? exit_code(refused.front().status) : pass ? kOk : kFailedCheck;
}

}  // namespace

void add_verify(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = tool.command(
        app, "verify", "Check engines against golden files, or every kernel against the reference",
        "  smla verify --golden tests/goldens/*.safetensors\n  smla verify --golden case.safetensors --isa "
        "avx2\n"
        "  smla verify --seconds 10");
    command->add_option(
        "--golden", options->files,
        "Golden files (case.safetensors with case.json beside it): each runs on every engine and cache\n"
        "format that fits; a miss, or nothing to run, is exit code 1");
    command->add_flag("--quiet", options->quiet, "Print only misses and the summary");
    add_stage_check_options(*command, options->stages);
    options->context.add(*command);
    tool.action(command, [&tool, options] {
        return options->files.empty() ? verify_stages(tool, options->context, options->stages)
                                      : verify_files(tool, *options);
    });
}

}  // namespace smla::cli
