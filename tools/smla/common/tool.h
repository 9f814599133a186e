// What a subcommand prints and returns: results on stdout as text or one JSON document, notes on stderr, the
// exit code.
#pragma once

#include "cli_forward.h"
#include "core/status.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <map>
#include <string>

namespace smla::cli {

using Document = nlohmann::ordered_json;     // for --json; keys keep the order in which they were added
std::string dump(const Document& document);  // as --json prints it: what is no UTF-8 becomes U+FFFD
Document error_document(const Error& error);

enum ExitCode : int { kOk = 0, kFailedCheck = 1, kUsage = 2, kUnsupportedHere = 3, kDeviceError = 4 };
ExitCode exit_code(smla_status status);

class Tool {
public:
    // Adds a subcommand with --json. `examples` stand below its help.
    CLI::App* command(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& examples);
    // Sets what the subcommand does after parsing; `action` returns the exit code.
    void action(const CLI::App* command, std::function<int()> action);
    int run(const CLI::App* command) const;

    bool json() const { return json_; }
    void want_json() { json_ = true; }

    // stdout. With --json a subcommand prints exactly one document and no text. On a terminal, lines of text
    // that are wider than it are broken.
    void print(const Document& document) const;
    void print(const std::string& text) const;
    // One or the other on stdout, as --json says; the document also into the file `save`, if one is named.
    void print(const Document& document, const std::string& text, const std::string& save) const;
    // Sets the member "runs_on" of the document. note_it: also print a line on stderr, unless --json is
    // given.
    void runs_on(const std::string& description, bool note_it) const;
    // A line on stderr, with --json too.
    void note(const std::string& line) const;

    // Writes one line to stderr and, with --json, {"error": ...} to stdout. Returns the exit code. Shortens a
    // long field or value.
    int report(const Error& error) const;

private:
    Document complete(Document document) const;  // with "runs_on"
    bool json_ = false;
    mutable std::string runs_on_;
    std::map<const CLI::App*, std::function<int()>> actions_;
};

enum class Colour { green, red, yellow, bold, dim };
// Coloured if stdout is a terminal and NO_COLOR is not set.
std::string paint(Colour colour, const std::string& text);

}  // namespace smla::cli
