// One row per kernel of `smla verify`: what it ran, and how it came out.
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
    std::string lacks;         // why this machine or the options rule the kernel out; empty: it must run
    std::string refusal;       // the last one that the kernel gave
    int64_t drawn = 0;         // problems drawn for this kernel
    bool unreachable = false;  // no problem was found that the kernel takes
    int64_t ran = 0, missed = 0;
    double worst = 0;  // share of what is allowed
    std::string where, problem, first_miss, reproduce;

    bool below(int64_t floor) const { return lacks.empty() && ran < floor; }
};

Document row_json(const Row& row, int64_t floor);
std::string rows_text(const std::vector<Row>& rows, int64_t floor);  // the table, then every miss

}  // namespace smla::cli
