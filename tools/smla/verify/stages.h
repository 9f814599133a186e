// smla verify without files: every kernel against the reference on random and hostile problems.
#pragma once

#include "context_options.h"
#include "tool.h"

namespace smla::cli {

struct StageCheckOptions {
    double seconds = 5;
    int64_t floor = 0;    // fewest problems per kernel; 0: 200 for a minute, in proportion for less
    uint64_t seed = 0;    // 0: derived from the clock and printed
    std::string stage;    // only this one; empty: all
    std::string problem;  // only this one, KERNEL/NUMBER; empty: all
};

void add_stage_check_options(CLI::App& command, StageCheckOptions& options);
int verify_stages(const Tool& tool, const ContextOptions& context, const StageCheckOptions& options);

}  // namespace smla::cli
