// Reads the arguments of stages from the structs of the C ABI.
#pragma once

#include "api/guard.h"
#include "engines/candidate.h"
#include "ops/ops.h"

namespace smla::api {

// Returns the result of body.operator()<S>() for a stage that the caller names.
template <class Body>
decltype(auto) with_stage(smla_stage stage, const Body& body) {
    SMLA_CHECK(stage >= 0 && stage < SMLA_STAGE_COUNT, "stage", stage, text("0 to ", SMLA_STAGE_COUNT - 1));
    return smla::with_stage(Stage(stage), body);
}

// Returns the caller's arguments for engines, with explicit strides and the direction of the stage.
template <Stage S>
ArgsOf<S> read_call(const void* args) {
    ArgsOf<S> call = read_args(static_cast<const ArgsOf<S>*>(args));
    resolve_strides(call);
    if constexpr (S == Stage::inverse_rope) {
        SMLA_CHECK(call.inverse == 0 || call.inverse == 1, "args.inverse", call.inverse, "0 or 1");
        call.inverse = 1;
    }
    return call;
}

}  // namespace smla::api
