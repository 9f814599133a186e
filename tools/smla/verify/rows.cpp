#include "verify/rows.h"

#include "common.h"
#include "engines/run.h"

#include <cmath>

namespace smla::cli {

Document row_json(const Row& row, int64_t floor) {
    Document out{{"stage", stage_name(row.stage)},
                 {"engine", engine_name(row.engine)},
                 {"kernel", row.kernel},
                 {"problems", row.ran},
                 {"drawn_for_it", row.drawn}};
    if (!row.lacks.empty()) {
        out["skipped"] = row.lacks;
        return out;
    }
    out["below_floor"] = row.below(floor);
    if (row.ran == 0) {
        out["refusal"] = row.refusal;
        return out;
    }
    out["worst_share_of_limit"] = std::isfinite(row.worst) ? Document(row.worst) : Document();
    out["worst_at"] = row.where;
    out["worst_problem"] = row.problem;
    out["missed"] = row.missed;
    out["pass"] = row.missed == 0 && !row.below(floor);
    if (row.missed) {
        out["first_miss"] = row.first_miss;
        out["reproduce"] = row.reproduce;
    }
    return out;
}

std::string rows_text(const std::vector<Row>& rows, int64_t floor) {
    Table table({{"stage", "stage"},
                 {"engine", "engine", {}, 1},
                 {"kernel", "kernel"},
                 {"problems", "problems", {}, 3},
                 {"worst", "worst/limit", show_fixed(2), 4},
                 {"result", "result"},
                 {"of", "problem of the worst, or why the kernel did not run", {}, 2}});
    for (const Row& row : rows) {
        const std::string result = !row.lacks.empty() ? paint(Colour::yellow, "SKIP")
                                   : row.missed       ? paint(Colour::red, "FAIL")
                                   : row.below(floor) ? paint(Colour::red, "FEW")
                                   : row.ran == 0     ? "-"
                                                      : paint(Colour::green, "PASS");
        const std::string& why = row.lacks.empty() ? row.refusal : row.lacks;
        table.row({stage_name(row.stage), engine_name(row.engine), row.kernel, row.ran,
                   row.ran ? Document(row.worst) : Document(), result, row.ran ? row.problem : why});
    }
    std::string out = table.text();
    for (const Row& row : rows)
        if (row.missed)
            out += text(paint(Colour::red, "MISS "), std::string(stage_name(row.stage)), " ", row.kernel,
                        ", ", row.missed, " of ", row.ran, " problems: ", row.first_miss, "\n     ",
                        row.reproduce, "\n");
    return out;
}

}  // namespace smla::cli
