// Parses the command line, reports wrong options, and returns the subcommand's exit code.
#include "context_options.h"
#include "core/environment.h"
#include "names.h"
#include "subcommands.h"
#include "terminal.h"
#include "tool_main.h"

#include <smla/types.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <sstream>
#include <string_view>
#include <vector>

namespace smla::cli {

namespace {

constexpr const char* kDescription =
    "Sparse multi-head latent attention: DeepSeek-V3.2, V4 and V4.1, GLM-5.x.";
constexpr const char* kFooter =
    "smla report, one HTML page of all this, comes with the Python package: python -m smla report --help.\n"
    "Results go to stdout (with --json as one document), everything else to stderr. On a terminal, tables\n"
    "leave out their least important columns where it is too narrow; a pipe gets all of them.\n"
    "Exit codes: 0 ok, 1 a check failed, 2 wrong usage or input file, 3 not supported here, 4 device error,\n"
    "out of memory, or a bug in smla.\n"
    "Environment: SMLA_ENGINE, SMLA_ISA, SMLA_THREADS, SMLA_KERNEL and SMLA_BACKEND are option defaults;\n"
    "smla list environment lists all variables of smla. NO_COLOR turns colors off; COLUMNS is the width of\n"
    "the terminal.";

// The subcommand of the command line; the whole app if it names none.
const CLI::App& innermost(const CLI::App& app) {
    const auto chosen = app.get_subcommands();
    return chosen.empty() ? app : innermost(*chosen.front());
}

std::vector<std::string> known_words(const CLI::App& command) {
    std::vector<std::string> words;
    for (const CLI::Option* option : command.get_options())
        for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    for (const CLI::App* each : command.get_subcommands([](const CLI::App*) { return true; }))
        words.push_back(each->get_name());
    return words;
}

Error unexpected_argument(const CLI::App& app) {
    const CLI::App& command = innermost(app);
    const std::vector<std::string> extras = app.remaining(true);
    const std::string word = extras.empty() ? "" : extras.front().substr(0, extras.front().find('='));
    const std::string near = nearest(word, known_words(command));
    if (&command == &app && word == "report")
        return Error(SMLA_INVALID_ARGUMENT, "argument", word,
                     "python -m smla report, because reports are a feature of the Python package");
    const bool is_option = !word.empty() && word.front() == '-';
    const std::string name = &command == &app ? "smla" : "smla " + command.get_name();
    return Error(SMLA_INVALID_ARGUMENT, is_option ? "option" : "argument", word,
                 "one that " + name + " --help lists" + (near.empty() ? "" : "; did you mean " + near + "?"));
}

// Makes an Error of a parse failure. Messages of our validators ("--threads: got x, wanted y") and common
// messages of CLI11 are split into its fields; others are kept whole.
Error wrong_value(const CLI::App& app, const std::string& message) {
    const auto before = [&](const char* part) { return message.substr(0, message.find(part)); };
    const auto has = [&](const char* part) { return message.find(part) != std::string::npos; };
    const CLI::App& command = innermost(app);
    const std::string help = "smla " + (&command == &app ? "" : command.get_name() + " ") + "--help";
    const size_t got = message.find(": got "), wanted = message.rfind(", wanted ");
    if (got != std::string::npos && wanted != std::string::npos && got < wanted)
        return Error(SMLA_INVALID_ARGUMENT, message.substr(0, got), message.substr(got + 6, wanted - got - 6),
                     message.substr(wanted + 9));
    for (const char* part : {" is required", ": 1 required"})
        if (has(part))
            return Error(SMLA_INVALID_ARGUMENT, before(part), "nothing", "a value (see " + help + ")");
    constexpr const char *kTwice = ": At Most 1 required but received ", *kFlag = "Could not convert: ";
    if (has(kTwice))
        return Error(SMLA_INVALID_ARGUMENT, before(kTwice),
                     message.substr(before(kTwice).size() + std::strlen(kTwice)) + " values", "one");
    const size_t equals = message.find(" = ");
    if (message.starts_with(kFlag) && equals != std::string::npos)  // values of other options have validators
        return Error(SMLA_INVALID_ARGUMENT, message.substr(std::strlen(kFlag), equals - std::strlen(kFlag)),
                     message.substr(equals + 3), "no value, because it is a flag");
    return Error(SMLA_INVALID_ARGUMENT, "command line", message, "a command line as in " + help);
}

// Where an error names an option of a context or the field that it sets: what gave the value, the option or
// the variable of the environment.
Error as_given(const Error& error, const std::vector<std::string_view>& words) {
    for (const ContextField& each : kContextFields) {
        if (error.field != each.field && error.field != each.option) continue;
        const std::string option = each.option;
        const bool given = std::any_of(words.begin(), words.end(), [&](std::string_view word) {
            return word == option || word.starts_with(option + "=");
        });
        const bool variable = !given && each.variable && std::getenv(each.variable);
        return Error(error.status, variable ? each.variable : option, error.got, error.wanted);
    }
    return error;
}

// Rejects empty values, and values of options that begin with --, because CLI11 reads the next option as a
// missing value: `--save --json` would write a file.
void refuse_unlikely_values(CLI::App& app) {
    for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
        for (CLI::Option* option : command->get_options())
            if (option->get_expected_max() > 0)
                option->check(CLI::Validator(
                    [is_option = !option->get_lnames().empty()](std::string& value) {
                        if (value.empty())
                            return std::string("got nothing, wanted a value that is not empty");
                        if (!is_option || !value.starts_with("--")) return std::string();
                        return "got " + value + ", wanted a value that does not begin with --";
                    },
                    ""));
}

// Sets options of a context that are not given from the environment. (CLI11's envname() also checks the
// variables for subcommands that do not run.) --device chooses the engine, as --engine does.
void read_environment(CLI::App& command) {
    for (const ContextField& each : kContextFields) {
        CLI::Option* const option = each.is_default ? command.get_option_no_throw(each.option) : nullptr;
        if (!option || option->count()) continue;
        const char* const value = environment(each.variable);
        if (!value || (option->get_lnames()[0] == "engine" && command.count("--device"))) continue;
        option->add_result(value);
        option->run_callback();
    }
}

// Returns the help of the app or of its selected subcommand, wrapped to the width of a terminal.
std::string help_text(const CLI::App& app, int file) {
    const size_t columns = terminal_columns(file), left = columns < 80 ? 24 : 34;
    app.get_formatter()->column_width(left);
    std::istringstream lines(app.help());
    std::string out;
    for (std::string line; std::getline(lines, line);) {
        const size_t indent = std::min(line.find_first_not_of(' '), line.size());
        const bool described =
            line.size() > left && line.starts_with("  ") && line[left - 1] == ' ' && line[left] != ' ';
        const size_t hanging = std::min(described ? left : indent + 2, columns / 2);
        for (const std::string& piece : broken(line, columns, std::string(hanging, ' '))) out += piece + "\n";
    }
    return out;
}

int parse_and_run(CLI::App& app, Tool& tool, int argc, char** argv) {
    for (int i = 1; i < argc; ++i)  // before parsing, so that its errors are JSON too
        if (std::string_view(argv[i]) == "--json") tool.want_json();
    try {
        app.parse(argc, argv);
        for (CLI::App* command : app.get_subcommands()) read_environment(*command);
    } catch (const CLI::CallForVersion& done) {
        if (!tool.json()) return app.exit(done);
        tool.print(Document{{"version", version_text()}});
        return kOk;
    } catch (const CLI::Success&) {  // --help
        std::fputs(help_text(app, STDOUT_FILENO).c_str(), stdout);
        return kOk;
    } catch (const CLI::ParseError& error) {
        if (!app.remaining(true).empty()) throw unexpected_argument(app);  // even if an option is missing
        throw wrong_value(app, error.what());
    }
    const auto chosen = app.get_subcommands();
    if (chosen.empty()) {
        if (!tool.json()) std::fputs(help_text(app, STDERR_FILENO).c_str(), stderr);
        std::vector<std::string> names;
        for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; }))
            names.push_back(each->get_name());
        return tool.report(Error(SMLA_INVALID_ARGUMENT, "subcommand", "none", "one of " + joined(names)));
    }
    return tool.run(chosen.front());
}

int run(int argc, char** argv) {
    std::signal(SIGXFSZ, SIG_IGN);  // so that write() fails instead where a file grows too large
    Tool tool;
    CLI::App app(kDescription, "smla");
    app.footer(kFooter);
    app.set_version_flag("--version", version_text());
    bool json = false;
    app.add_flag("--json", json, "Print one JSON document");
    app.require_subcommand(0, 1);  // at most one: a folder may have a subcommand's name
#define SMLA_ADD(name) add_##name(app, tool);
    SMLA_SUBCOMMANDS(SMLA_ADD)
#undef SMLA_ADD
    refuse_unlikely_values(app);
    int code;
    try {
        code = parse_and_run(app, tool, argc, argv);
    } catch (const Error& error) {
        code = tool.report(as_given(error, {argv, argv + argc}));
    } catch (const std::bad_alloc&) {
        code = tool.report(
            Error(SMLA_OUT_OF_MEMORY, "memory", "no free memory", "more memory, or a smaller problem"));
    } catch (const std::exception& error) {
        code =
            tool.report(Error(SMLA_INTERNAL, "smla", error.what(), "no exception; please report this bug"));
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
        std::fputs("smla: error: stdout cannot be written\n", stderr);
        return code == kOk ? kDeviceError : code;
    }
    return code;
}

}  // namespace

}  // namespace smla::cli

int smla_tool_main(int argc, char** argv) { return smla::cli::run(argc, argv); }
