#include "api/guard.h"
#include "core/log.h"

namespace smla::api {

namespace {
struct LastError {
    smla_status status = SMLA_OK;
    std::string field, got, wanted, message;
};
thread_local LastError last;
}  // namespace

void clear_error() {
    if (last.status != SMLA_OK) last = {};
}

smla_status record_error(smla_status status, const std::string& field, const std::string& got,
                         const std::string& wanted) {
    last = {status, field, got, wanted,
            text(smla_status_name(status), ": ", field, ": got ", got, ", wanted ", wanted)};
    return status;
}

}  // namespace smla::api

extern "C" {

int32_t smla_version(void) { return SMLA_VERSION; }

const char* smla_last_error(void) { return smla::api::last.message.c_str(); }

void smla_last_error_info(smla_error* out) {
    const auto& last = smla::api::last;
    if (out)
        *out = {last.status, last.field.c_str(), last.got.c_str(), last.wanted.c_str(), last.message.c_str()};
}

const char* smla_status_name(smla_status status) {
    static const char* const names[] = {
        "ok",           "invalid argument", "unsupported", "workspace too small", "out of memory",
        "device error", "data error",       "io error",    "internal error"};
    return status >= 0 && status <= SMLA_INTERNAL ? names[status] : "unknown status";
}

void smla_set_log(smla_log_function function, void* user) { smla::set_log(function, user); }

}  // extern "C"
