#include "api/guard.h"
#include "core/log.h"
#include "core/message.h"
#include "core/visible.h"

#include <new>
#include <utility>

namespace smla::api {

namespace {
struct LastError {
    smla_status status = SMLA_OK;
    std::string field, got, wanted, message;
    bool without_text = false;  // whether memory for the text was missing

    const char* shown(const std::string& part) const {
        return without_text ? "unknown, because there was no memory for the error text" : part.c_str();
    }
};
thread_local LastError last;
}  // namespace

void clear_error() noexcept {
    if (last.status == SMLA_OK) return;
    LastError gone;
    std::swap(last, gone);  // frees the old text's memory, unlike an assignment
}

smla_status record_error(smla_status status, std::string_view field, std::string_view got,
                         std::string_view wanted) noexcept {
    try {
        // Field and value may come from a file or a caller's string, and terminals show them.
        LastError found{status, without_controls(field), without_controls(got), without_controls(wanted), {}};
        found.message =
            text(smla_status_name(status), ": ", found.field, ": ", got_and_wanted(found.got, found.wanted));
        last = std::move(found);
    } catch (const std::bad_alloc&) {
        last = {};
        last.status = status;
        last.without_text = true;
    }
    return status;
}

}  // namespace smla::api

extern "C" {

int32_t smla_version(void) { return SMLA_VERSION; }

const char* smla_last_error(void) {
    const auto& last = smla::api::last;
    return last.shown(last.message);
}

void smla_last_error_info(smla_error* out) {
    const auto& last = smla::api::last;
    if (out)
        *out = {last.status, last.shown(last.field), last.shown(last.got), last.shown(last.wanted),
                last.shown(last.message)};
}

const char* smla_status_name(smla_status status) {
    static const char* const names[] = {
        "ok",           "invalid argument", "unsupported", "workspace too small", "out of memory",
        "device error", "data error",       "io error",    "internal error",      "cancelled"};
    return status >= 0 && status <= SMLA_CANCELLED ? names[status] : "unknown status";
}

void smla_set_log(smla_log_function function, void* user) { smla::set_log(function, user); }

void smla_set_interrupt(smla_interrupt_function function, void* user) { smla::set_interrupt(function, user); }

}  // extern "C"
