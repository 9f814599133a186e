// Rows of prefill tokens in a gathered workspace: see smla/rows.h.
#pragma once

#include "core/host_device.h"
#include "core/tensor.h"

#include <smla/rows.h>

namespace smla {

// How many columns of each kind a token at `position` has.
struct PrefillColumns {
    int32_t entries, window;
};
SMLA_HOST_DEVICE inline PrefillColumns prefill_columns(int64_t position, int32_t ratio, int32_t topk,
                                                       int32_t window) {
    const int64_t visible = ratio > 0 ? (position + 1) / ratio : 0;
    return {int32_t(visible < topk ? visible : topk), int32_t(position + 1 < window ? position + 1 : window)};
}

struct GatheredRequest {
    int64_t first_row;     // of its part of the workspace
    int64_t window_begin;  // row of the first gathered token
    int64_t first_token;   // its position
};

// Column j; `selected`: what the token's list holds there.
SMLA_HOST_DEVICE inline int32_t combined_row(const GatheredRequest& request, const PrefillColumns& columns,
                                             int64_t position, int32_t j, int32_t selected) {
    if (j >= columns.entries + columns.window) return -1;
    int64_t row = request.first_row + selected;
    if (j >= columns.entries) {
        const int64_t token = position - columns.window + 1 + (j - columns.entries);
        if (token < request.first_token) return -1;
        row = request.window_begin + token - request.first_token;
    } else if (selected < 0 || row >= request.window_begin) {
        return -1;
    }
    return row > INT32_MAX ? -1 : int32_t(row);
}

void combined_rows(const smla_combined_rows_args& args);

}  // namespace smla
