#include "cli/run_tool.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace smla::test {

namespace {

struct Channel {
    int read = -1, write = -1;
};

Channel make_channel(const RunOptions& options) {
    if (!options.terminal) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
        return {ends[0], ends[1]};
    }
    const int leader = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (leader < 0 || grantpt(leader) != 0 || unlockpt(leader) != 0) std::abort();
    winsize size{};
    size.ws_col = static_cast<unsigned short>(options.columns);
    const int follower = open(ptsname(leader), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (follower < 0 || ioctl(follower, TIOCSWINSZ, &size) != 0) std::abort();
    return {leader, follower};
}

// Between fork and exec, so that the test itself keeps its own.
void restrict_this_process(const RunOptions& options) {
    for (const auto& [resource, value] : options.limits) {
        const rlimit limit{value, value};
        if (setrlimit(__rlimit_resource_t(resource), &limit) != 0) _exit(126);
    }
    if (options.user &&
        (setgroups(0, nullptr) != 0 || setresuid(options.user, options.user, options.user) != 0))
        _exit(125);
    signal(SIGPIPE, options.ignores_sigpipe ? SIG_IGN : SIG_DFL);
    alarm(options.seconds);
}

std::string drain(int from) {
    std::string out;
    char buffer[4096];
    for (ssize_t n; (n = read(from, buffer, sizeof buffer)) > 0;) out.append(buffer, size_t(n));
    close(from);
    return out;
}

}  // namespace

Finished run_tool(const std::vector<std::string>& arguments, const RunOptions& options) {
    std::vector<std::string> words{SMLA_TOOL};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<std::string> environment{"TERM=xterm", "PATH=/usr/bin:/bin"};
    environment.insert(environment.end(), options.environment.begin(), options.environment.end());
    std::vector<char*> argv, envp;
    for (std::string& word : words) argv.push_back(word.data());
    for (std::string& word : environment) envp.push_back(word.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);

    const Channel out = make_channel(options), err = make_channel(options);
    if (options.closed_stdout) close(out.read);
    const pid_t child = fork();
    if (child == 0) {
        const int file =
            options.stdout_file.empty() ? out.write : open(options.stdout_file.c_str(), O_WRONLY | O_CLOEXEC);
        dup2(file, STDOUT_FILENO);
        dup2(err.write, STDERR_FILENO);
        restrict_this_process(options);
        execve(argv[0], argv.data(), envp.data());
        _exit(127);
    }
    close(out.write);
    close(err.write);
    Finished finished;
    if (options.kill_after_us) {
        usleep(options.kill_after_us);
        kill(child, SIGKILL);
    }
    std::thread errors([&] { finished.err = drain(err.read); });
    if (!options.closed_stdout) finished.out = drain(out.read);
    errors.join();
    int status = 0;
    rusage used{};
    wait4(child, &status, 0, &used);
    finished.peak_kib = used.ru_maxrss;
    if (WIFEXITED(status)) finished.code = WEXITSTATUS(status);
    else finished.signal = WTERMSIG(status);
    return finished;
}

nlohmann::json json_of(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const Finished run = run_tool(arguments);
    EXPECT_EQ(run.code, 0) << run.out << run.err;
    EXPECT_EQ(run.err, "");
    const auto document = nlohmann::json::parse(run.out, nullptr, false);
    EXPECT_FALSE(document.is_discarded()) << run.out;
    return document;
}

nlohmann::json json_of(const std::vector<std::string>& arguments, const char* member) {
    const nlohmann::json document = json_of(arguments);
    EXPECT_TRUE(document.contains(member)) << member << " in " << document;
    return document.value(member, nlohmann::json());
}

nlohmann::json error_of(std::vector<std::string> arguments, int code) {
    arguments.push_back("--json");
    const Finished run = run_tool(arguments);
    EXPECT_EQ(run.code, code) << run.out << run.err;
    EXPECT_EQ(run.err.rfind("smla: error: ", 0), 0u) << run.err;
    const auto document = nlohmann::json::parse(run.out, nullptr, false);
    EXPECT_TRUE(document.is_object() && document.contains("error")) << run.out;
    if (!document.is_object() || !document.contains("error")) return nlohmann::json::object();
    const nlohmann::json error = document["error"];
    EXPECT_EQ(error.value("exit_code", -1), code);
    for (const char* key : {"status", "field", "got", "message"})
        EXPECT_NE(error.value(key, ""), "") << key << " in " << run.out;
    EXPECT_TRUE(error.contains("wanted")) << run.out;  // empty if `got` is a sentence
    EXPECT_NE(run.err.find(error.value("message", "?")), std::string::npos);
    return error;
}

std::vector<std::string> subcommands() {
    std::istringstream help(run_tool({"--help"}).out);
    std::vector<std::string> names;
    bool inside = false;
    for (std::string line; std::getline(help, line);) {
        if (line.empty()) inside = false;
        if (inside && line.rfind("   ", 0) != 0) names.push_back(line.substr(2, line.find(' ', 2) - 2));
        if (line == "Subcommands:") inside = true;
    }
    return names;
}

std::vector<HelpOption> options_of(const std::string& subcommand) {
    std::istringstream help(run_tool({subcommand, "--help"}).out);
    std::vector<HelpOption> found;
    for (std::string line; std::getline(help, line) && line != "Examples:";) {
        if (line.starts_with("  --")) {
            const size_t end = line.find_first_of(" ", 2), type = line.find_first_not_of(' ', end);
            HelpOption option{line.substr(2, end - 2), "", ""};
            if (type == end + 1) option.type = line.substr(type, line.find_first_of(" =:", type) - type);
            const size_t about = line.find("  ", end);
            if (about != std::string::npos) option.about = line.substr(line.find_first_not_of(' ', about));
            found.push_back(option);
        } else if (!found.empty() && found.back().about.empty() && line.starts_with("   ")) {
            found.back().about = line.substr(line.find_first_not_of(' '));
        }
    }
    EXPECT_FALSE(found.empty()) << subcommand;
    return found;
}

TemporaryFile::TemporaryFile(const std::string& text) {
    path_ = testing::TempDir() + "smla_cli_XXXXXX";
    const int file = mkstemp(path_.data());
    if (file < 0) std::abort();
    close(file);
    std::ofstream(path_) << text;
}

TemporaryFile::~TemporaryFile() { unlink(path_.c_str()); }

TemporaryFolder::TemporaryFolder() {
    path_ = testing::TempDir() + "smla_cli_XXXXXX";
    if (!mkdtemp(path_.data())) std::abort();
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

}  // namespace smla::test
