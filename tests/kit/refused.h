// Errors of calls with invalid arguments.
#pragma once

#include "core/status.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace smla::kit {

// Returns the field that a call rejects, and checks the parts of its message; "" if the call succeeds.
// `status`: expected status; by default, any status of an invalid call.
template <class Call>
std::string refused_field(const Call& call, std::optional<smla_status> status = {}) {
    try {
        call();
        return "";
    } catch (const Error& error) {
        const bool callers = error.status == SMLA_INVALID_ARGUMENT || error.status == SMLA_UNSUPPORTED ||
                             error.status == SMLA_WORKSPACE_TOO_SMALL;
        EXPECT_TRUE(status ? error.status == *status : callers) << error.field << ": " << error.status;
        EXPECT_FALSE(error.got.empty()) << error.field;
        EXPECT_FALSE(error.wanted.empty()) << error.field;
        return error.field;
    }
}

// Returns the message of a call, "FIELD: got X, wanted Y"; "" if the call succeeds.
template <class Call>
std::string refusal(const Call& call) {
    try {
        call();
        return "";
    } catch (const Error& error) {
        return error.field + ": got " + error.got + ", wanted " + error.wanted;
    }
}

}  // namespace smla::kit
