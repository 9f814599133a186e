// What a call refuses.
#pragma once

#include "core/status.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace smla::kit {

// The field that a call refuses, with words about what it got and wanted; "" if it returns. `status`: that of
// the refusal; by default any of those by which the caller is to blame.
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

// What such a call says: "FIELD: got X, wanted Y"; "" if it returns.
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
