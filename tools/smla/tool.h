// The frame around a subcommand: data on stdout as text or as one JSON document, the rest on stderr, the exit
// code.
#pragma once

#include "core/status.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <functional>
#include <map>
#include <string>

namespace smla::cli {

using Document = nlohmann::ordered_json;  // what --json prints; keys stay in the order of writing

enum ExitCode : int { kOk = 0, kFailedCheck = 1, kUsage = 2, kUnsupportedHere = 3, kDeviceError = 4 };
ExitCode exit_code(smla_status status);

class Tool {
public:
    // A subcommand that knows --json. `examples` are shown under its help.
    CLI::App* command(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& examples);
    // What the subcommand does, once the whole line is parsed; returns its exit code.
    void action(const CLI::App* command, std::function<int()> action);
    int run(const CLI::App* command) const;

    bool json() const { return json_; }
    void want_json() { json_ = true; }

    // stdout. With --json a subcommand prints exactly one document and no text.
    void print(const Document& document) const;
    void print(const std::string& text) const;
    // stderr; nothing is lost with --json.
    void note(const std::string& line) const;

    // One line on stderr and, with --json, {"error": ...} on stdout. Returns the exit code.
    int report(const Error& error) const;

private:
    bool json_ = false;
    std::map<const CLI::App*, std::function<int()>> actions_;
};

enum class Colour { green, red, yellow, bold, dim };
// Coloured if stdout is a terminal and NO_COLOR is not set.
std::string paint(Colour colour, const std::string& text);

}  // namespace smla::cli
