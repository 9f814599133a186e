#include "core/log.h"

#include "core/environment.h"
#include "core/fork.h"

#include <cstdio>
#include <mutex>

namespace smla {

namespace {
GlobalMutex mutex;
smla_log_function callback = nullptr;
void* callback_user = nullptr;
}  // namespace

void log_line(LogLevel level, const std::string& line) {
    std::lock_guard lock(mutex);
    if (callback) {
        try {
            callback(callback_user, int(level), line.c_str());
        } catch (...) {  // logging must not end a call
        }
    } else if (environment_number("SMLA_LOG").value_or(-1) >= int(level)) {
        std::fprintf(stderr, "smla: %s\n", line.c_str());
    }
}

void set_log(smla_log_function function, void* user) {
    std::lock_guard lock(mutex);
    callback = function;
    callback_user = user;
}

}  // namespace smla
