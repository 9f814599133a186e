// Runs the built tool as a process.
#pragma once

#include <source_dir.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace smla::test {

struct Finished {
    int code = -1;  // exit code; -1: killed by a signal
    int signal = 0;
    std::string out, err;
    int64_t peak_kib = 0;  // largest resident size
};

struct RunOptions {
    std::vector<std::string> environment;  // "NAME=value", added to a small fixed one
    bool terminal = false;                 // stdout and stderr are pseudo terminals
    int columns = 0;                       // width of the terminal; 0: it does not say
    std::string stdout_file;               // stdout goes there instead
    bool closed_stdout = false;            // stdout is a pipe that nobody reads
    bool ignores_sigpipe = false;          // as programs do that start others with signals ignored
    std::map<int, uint64_t> limits;        // RLIMIT_... of the process
    unsigned seconds = 0;                  // it is killed after these; 0: never
    unsigned kill_after_us = 0;            // kill -9 after these; 0: never
    uint32_t user = 0;                     // whose process it is, if the test may choose; 0: the test's own
};
Finished run_tool(const std::vector<std::string>& arguments, const RunOptions& options = {});

// stdout of a run that must succeed quietly, as the one JSON document that it must be.
nlohmann::json json_of(std::vector<std::string> arguments);
nlohmann::json json_of(const std::vector<std::string>& arguments, const char* member);
// The error object of a run that must fail with this exit code.
nlohmann::json error_of(std::vector<std::string> arguments, int code);

std::vector<std::string> subcommands();  // as the help lists them

// An option or a positional argument, as the help of a subcommand describes it.
struct HelpOption {
    std::string name;   // "--model"
    std::string type;   // "TEXT", "INT", ...; empty: a flag
    std::string about;  // the first line of its description
};
std::vector<HelpOption> options_of(const std::string& subcommand);

// A file that lives as long as the test.
class TemporaryFile {
public:
    explicit TemporaryFile(const std::string& text);
    ~TemporaryFile();
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// An empty folder, removed with what is in it after the test.
class TemporaryFolder {
public:
    TemporaryFolder();
    ~TemporaryFolder();
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

}  // namespace smla::test
