// Faults are tried in children: a crash or a hang ends the child, and the test says how.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

namespace faults {

constexpr unsigned kSeconds = 20;  // a child that takes longer hangs

// Fails the child.
inline void expect(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "child: not so: %s\n", what);
    _exit(1);
}

inline std::string how_it_ended(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, 0) != child) return "lost";
    if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGALRM ? "hangs" : strsignal(WTERMSIG(status));
    return WEXITSTATUS(status) == 0 ? "ok" : "exit code " + std::to_string(WEXITSTATUS(status));
}

// body() in a child that ends without the destructors of this process; "ok" if it returned.
template <class Body>
pid_t start_child(Body&& body) {
    const pid_t child = fork();
    if (child != 0) return child;
    alarm(kSeconds);
    try {
        body();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        _exit(2);
    }
    _exit(0);
}
template <class Body>
std::string in_child(Body&& body) {
    return how_it_ended(start_child(body));
}

}  // namespace faults
