// One call of a stage, described by options.
#pragma once

#include "cli_forward.h"
#include "engines/candidate.h"
#include "problems.h"

#include <string>
#include <vector>

namespace smla::cli {

struct StageShape {
    int64_t tokens = 1, heads = 0, width = 0, value_width = 512, outer = 512, rows = 2048, extra_rows = 512;
    int64_t columns = 131072, topk = 2048, ratio = 4, partials = 2;
    int32_t page_tokens = 64;
    std::string kv_format = "auto", extra_format = "none", index_format = "auto", queries = "auto",
                weights = "bf16", out = "auto";
    bool sink = false;
};

constexpr const char* kStageGroup = "The call of --stage";
void add_stage_options(CLI::App& command, StageShape& shape);

// Rejects wrong names of formats and dtypes, also in options that the question does not read.
void check_names(const StageShape& shape);

AttendShape attend_shape(const StageShape& shape);
ScoreShape score_shape(const StageShape& shape);

// The stage's kernels for such a call, in order of preference, with their refusals. Throws if the stage
// itself refuses the call.
std::vector<Verdict> explain_stage_of(Stage stage, const StageShape& shape, const Env& env);

}  // namespace smla::cli
