// smla run --serve: replays a trace of requests through attention backends. Compares every token's output
// with that of its request computed alone.
#pragma once

#include "check.h"
#include "context_options.h"
#include "tool.h"

#include <string>

namespace smla::cli {

struct ServeOptions {
    std::string trace, backend = "all";
    ServeSettings settings;
    uint64_t seed = 1;

    static constexpr const char* kGroup = "A serving run, instead of a checkpoint";
    void add(CLI::App& command);
};
int serve(const Tool& tool, const ServeOptions& options, const ContextOptions& context);

}  // namespace smla::cli
