// The subcommands, in the order of the help. A new one needs a file that defines add_NAME, and its name here.
#pragma once

#include "tool.h"

#define SMLA_SUBCOMMANDS(X) \
    X(doctor) X(list) X(explain) X(capacity) X(bench) X(run) X(demo) X(verify) X(example)

namespace smla::cli {

#define SMLA_DECLARE(name) void add_##name(CLI::App& app, Tool& tool);
SMLA_SUBCOMMANDS(SMLA_DECLARE)
#undef SMLA_DECLARE

}  // namespace smla::cli
