#include "tool.h"

#include "model/output_file.h"
#include "progress.h"
#include "terminal.h"

#include <smla/types.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace smla::cli {

ExitCode exit_code(smla_status status) {
    switch (status) {
        case SMLA_OK: return kOk;
        case SMLA_INVALID_ARGUMENT:
        case SMLA_DATA_ERROR:
        case SMLA_IO_ERROR: return kUsage;
        case SMLA_UNSUPPORTED: return kUnsupportedHere;
        default: return kDeviceError;  // also out of memory, and bugs in smla
    }
}

std::string dump(const Document& document) {
    return document.dump(2, ' ', false, Document::error_handler_t::replace) + "\n";
}

Document error_document(const Error& error) {
    return Document{{"error",
                     {{"status", smla_status_name(error.status)},
                      {"field", error.field},
                      {"got", error.got},
                      {"wanted", error.wanted},
                      {"message", error.what()},
                      {"exit_code", exit_code(error.status)}}}};
}

namespace {

// Returns at most `most` bytes of a text, which may be as long as memory allows.
std::string shortened(const std::string& text, size_t most) {
    if (text.size() <= most) return text;
    while ((text[most] & 0xc0) == 0x80) --most;  // not within a character
    return text.substr(0, most) + "...";
}

void write(const std::string& text) {
    Progress::erase();
    std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

CLI::App* Tool::command(CLI::App& app, const std::string& name, const std::string& description,
                        const std::string& examples) {
    CLI::App* command = app.add_subcommand(name, description);
    command->add_flag("--json", json_, "Print one JSON document");
    command->footer(examples.empty() ? "" : "Examples:\n" + examples);
    return command;
}

void Tool::action(const CLI::App* command, std::function<int()> action) {
    actions_[command] = std::move(action);
}

int Tool::run(const CLI::App* command) const { return actions_.at(command)(); }

Document Tool::complete(Document document) const {
    if (!runs_on_.empty()) document.emplace("runs_on", runs_on_);
    return document;
}

void Tool::print(const Document& document) const { write(dump(complete(document))); }

void Tool::print(const Document& document, const std::string& text, const std::string& save) const {
    if (!save.empty()) {
        const std::string content = dump(complete(document));
        OutputFile file(save);
        file.write(content.data(), content.size());
        file.commit();
    }
    if (json_) print(document);
    else print(text);
}

void Tool::print(const std::string& text) const { write(wrapped(text, terminal_columns(STDOUT_FILENO))); }

void Tool::runs_on(const std::string& description, bool note_it) const {
    runs_on_ = description;
    if (note_it && !json_) note(text("runs on the GPU (", description, "); --engine cpu selects the CPU"));
}

void Tool::note(const std::string& line) const {
    Progress::erase();
    std::fprintf(stderr, "smla: %s\n", line.c_str());
}

int Tool::report(const Error& given) const {
    constexpr size_t kMessage = 280, kPath = 4096, kLeast = 16, kMost = 190;
    const size_t others = given.field.size() + given.wanted.size();
    const size_t value = std::clamp(kMessage - std::min(kMessage, others), kLeast, kMost);
    const Error error(given.status, shortened(given.field, kPath),
                      given.got.empty() ? "nothing" : shortened(given.got, value), given.wanted);
    note(text("error: ", error.what()));
    if (json_) print(error_document(error));
    return exit_code(error.status);
}

std::string paint(Colour colour, const std::string& text) {
    static const bool wanted = [] {
        const char* none = std::getenv("NO_COLOR");  // https://no-color.org: any value but the empty one
        const char* terminal = std::getenv("TERM");
        return isatty(STDOUT_FILENO) && !(none && *none) && terminal && std::string(terminal) != "dumb";
    }();
    static constexpr const char* codes[] = {"32", "31", "33", "1", "2"};
    if (!wanted) return text;
    return std::string("\033[") + codes[int(colour)] + "m" + text + "\033[0m";
}

}  // namespace smla::cli
