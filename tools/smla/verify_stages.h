// smla verify without files: every stage of an engine against the reference on random and hostile problems.
#pragma once

#include "context_options.h"
#include "tool.h"

namespace smla::cli {

struct StageCheckOptions {
    double seconds = 5;    // stop after this long; every stage runs at least once
    uint64_t seed = 0;     // 0: from the clock, and printed
    std::string stage;     // only this one; empty: all
    int64_t problem = -1;  // only this one; -1: all
};

void add_stage_check_options(CLI::App& command, StageCheckOptions& options);
int verify_stages(const Tool& tool, const ContextOptions& context, const StageCheckOptions& options);

}  // namespace smla::cli
