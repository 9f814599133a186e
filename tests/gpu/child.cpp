#include "child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

extern char** environ;

namespace gpu {

namespace {

constexpr char kRole[] = "SMLA_GPU_CHILD";

std::string running_test() {
    const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
    return std::string(test->test_suite_name()) + "." + test->name();
}

std::vector<std::string> child_environment(const std::string& role) {
    std::vector<std::string> out{std::string(kRole) + "=" + role};
    for (char** each = environ; *each; ++each)
        if (std::strncmp(*each, "GTEST_", 6) != 0 && std::strncmp(*each, kRole, sizeof kRole - 1) != 0)
            out.push_back(*each);
    return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
}

// The child's status once it has ended, or nothing after so many seconds.
std::optional<int> status_within(pid_t child, int seconds) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point last = Clock::now() + std::chrono::seconds(seconds);
    for (;;) {
        int status = 0;
        if (waitpid(child, &status, WNOHANG) == child) return status;
        if (Clock::now() > last) return std::nullopt;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

}  // namespace

std::string child_role() {
    const char* const role = std::getenv(kRole);
    return role ? role : "";
}

Child::Child(const std::string& role) : log_(memfd_create("child", MFD_CLOEXEC)) {
    if (log_ < 0) throw std::runtime_error("no memory for the child's output");
    std::vector<std::string> arguments{"test_gpu", "--gtest_filter=" + running_test(), "--gtest_color=no"},
        environment = child_environment(role);
    const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork() failed");
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(log_, STDOUT_FILENO);
    dup2(log_, STDERR_FILENO);
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
}

Child::~Child() {
    if (pid_ > 0) complaint();
    close(log_);
}

std::string Child::complaint() {
    std::optional<int> status = status_within(pid_, kChildSeconds);
    const bool hung = !status;
    if (hung) {
        kill(pid_, SIGKILL);
        status = status_within(pid_, 5);
    }
    pid_ = -1;
    if (!status) return "hangs, and cannot be killed";
    if (hung) return "hangs: killed after " + std::to_string(kChildSeconds) + " s";
    if (WIFSIGNALED(*status)) return std::string("ended by a signal: ") + strsignal(WTERMSIG(*status));
    if (WEXITSTATUS(*status) != 0) return "ended with exit code " + std::to_string(WEXITSTATUS(*status));
    return output().find("[  PASSED  ] 1 test.") == std::string::npos ? "ran no test" : "";
}

std::string Child::output() const {
    std::string out;
    char part[4096];
    off_t at = 0;
    for (ssize_t bytes; (bytes = pread(log_, part, sizeof part, at)) > 0; at += bytes)
        out.append(part, size_t(bytes));
    return out;
}

std::string Child::said(const std::string& key) const {
    const std::string all = "\n" + output();
    const size_t at = all.find("\n" + key);
    if (at == std::string::npos) return "";
    const size_t from = at + 1 + key.size();
    return all.substr(from, all.find('\n', from) - from);
}

void expect_child_passes() {
    Child child("test");
    const std::string complaint = child.complaint(), output = child.output();
    if (!complaint.empty()) {
        ADD_FAILURE() << "the child " << complaint << "\n" << output;
        return;
    }
    std::printf("%s", output.c_str());
    std::fflush(stdout);
}

}  // namespace gpu
