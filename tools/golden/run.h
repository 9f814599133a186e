// Runs the layers of a golden file through sessions, whole or in chunks, and keeps their intermediates.
#pragma once

#include "golden/golden.h"
#include "layers/session.h"

#include <functional>
#include <map>

namespace smla::golden {

struct RunOptions {
    CacheChoice caches;
    LayerPrecision precision;
    std::vector<int32_t> chunks;  // tokens of each step; empty: all at once
    bool force_topk = false;      // attend to the selection of the file
    bool intermediates = true;
    uint64_t page_seed = 1;
    size_t stage_budget = 0;
    std::function<void(const smla_attend_args&)> on_attend;  // called after each attend
};

// Values of every token of the batch, one row each.
struct Rows {
    std::vector<int64_t> shape;  // of a row
    std::vector<double> values;  // [B*S,row]
    int64_t width() const;
};

struct LayerResult {
    std::vector<double> y;             // [B*S,hidden]
    std::map<std::string, Rows> seen;  // intermediates by name
    StageRecords records{};
    size_t cache_bytes = 0;
    double seconds = 0;
};

std::vector<LayerResult> run_golden(Context& context, const Golden& golden, const RunOptions& options);

}  // namespace smla::golden
