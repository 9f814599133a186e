// One row per kernel of `smla verify`: its problems and results.
#pragma once

#include "core/stage.h"
#include "tool.h"

#include <smla/context.h>

#include <string>
#include <vector>

namespace smla::cli {

struct Row {
    Stage stage;
    smla_engine engine;
    std::string kernel;
    std::string lacks;         // why this machine or the options exclude the kernel; empty if it must run
    std::string refusal;       // last reason of the kernel for rejecting a problem
    int64_t drawn = 0;         // problems drawn for this kernel
    bool unreachable = false;  // no problem was found that the kernel supports
    int64_t ran = 0, missed = 0;
    double worst = 0;  // error as a fraction of the tolerance
    std::string where, problem, first_miss, reproduce;

    bool below(int64_t floor) const { return lacks.empty() && ran < floor; }
};

Document row_json(const Row& row, int64_t floor);
std::string rows_text(const std::vector<Row>& rows, int64_t floor);  // the table, followed by every miss

}  // namespace smla::cli
