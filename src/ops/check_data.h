// Scan of smla_check_stage and contexts with check_indices. The scan reports values that hot calls treat as
// masked, except the mask value -1. A stage without indices has no overload.
#pragma once

#include "core/status.h"
#include "ops/index_scan.h"

#include <optional>

namespace smla {

// Returns the lists of a checked call. Reads only shapes and numbers, so it also supports a GPU's call.
IndexScan index_scan(const smla_attend_args& args);
IndexScan index_scan(const smla_score_args& args);
IndexScan index_scan(const smla_select_args& args);
IndexScan index_scan(const smla_score_select_args& args);
IndexScan index_scan(const smla_score_select_blocks_args& args);
IndexScan index_scan(const smla_write_args& args);
IndexScan index_scan(const smla_save_state_args& args);
IndexScan index_scan(const smla_compress_args& args);
IndexScan index_scan(const smla_gather_args& args);
IndexScan index_scan(const smla_copy_pages_args& args);
IndexScan index_scan(const smla_map_args& args);

template <class Args>
concept HasIndices = requires(const Args& args) {
    index_scan(args);
};

struct BadValue {
    smla_bad_kind kind;
    int64_t token, column, value;  // as in smla_error_word
    std::string field, wanted;     // texts for the error message
};
using FoundValue = std::optional<BadValue>;        // first bad value of a call, if any
FoundValue find_bad_value(const IndexScan& scan);  // scans host memory

// Throws the first bad value as SMLA_DATA_ERROR.
template <class Args>
void check_data(const Args& args) {
    if constexpr (HasIndices<Args>)
        if (const FoundValue bad = find_bad_value(index_scan(args)))
            fail(SMLA_DATA_ERROR, bad->field, text(bad->value), bad->wanted);
}

}  // namespace smla
