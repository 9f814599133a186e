// Division of a step into decode and prefill requests, and of a decode token's list among workers.
#pragma once

#include "core/host_device.h"

#include <cstdint>

namespace smla {

// Summary of the query lengths for decode_requests(); requests may be added in any order.
struct QueryLengths {
    int64_t longest = 0;
    int64_t first_prefill = INT64_MAX;  // first request too long for a decode, or unlike request 0
    bool alike = true;                  // whether all have request 0's length, or 0

    SMLA_HOST_DEVICE void add(int64_t request, int64_t length, int64_t first, int64_t threshold,
                              bool uniform) {
        if (length > longest) longest = length;
        if (length != first && length != 0) alike = false;
        if ((uniform ? length != first : length > threshold) && request < first_prefill)
            first_prefill = request;
    }
};

// Returns the number of decodes; `first` is the query length of request 0.
SMLA_HOST_DEVICE inline int64_t decode_requests(const QueryLengths& all, int64_t requests, int64_t first,
                                                int64_t threshold, bool uniform) {
    if (all.longest <= threshold && (!uniform || threshold <= 1)) return requests;
    if (first > threshold) return 0;
    if (uniform && all.alike) return requests;
    return all.first_prefill < requests ? all.first_prefill : requests;
}

// Decodes come first in a batch; all requests from the first prefill on are prefills.
struct BatchSplit {
    int64_t decodes = 0, prefills = 0;  // requests
    int64_t decode_tokens = 0, prefill_tokens = 0;
};

// A request is a decode if it has at most `threshold` query tokens. With `uniform`, a decode must also have
// as many query tokens as the first request; a batch within the threshold is all decodes if every request has
// that many or none (padded graphs).
BatchSplit split_decodes_and_prefills(const int32_t* query_start_loc, int64_t requests, int64_t threshold,
                                      bool uniform);

// Division of one token's list into `splits` parts of `rows` rows (the last is shorter). Split s has the list
// columns [s * rows, (s + 1) * rows) below the token's length, so there is no per-token table, and boundaries
// never depend on lengths.
struct SplitSchedule {
    int64_t splits = 1, rows = 0;
};

constexpr int64_t kSplitRows = 64;  // unit of parts: the key block of the kernels

// Returns how many parts keep `workers` busy with `tokens` tokens of `heads` heads and `width` listed rows,
// as in vLLM's Triton backend: a block has 16 heads, a part at least 128 rows. One part is enough if its
// blocks occupy a quarter of the workers; else the count is a power of two that divides the width.
int64_t triton_split_count(int64_t tokens, int64_t heads, int64_t width, int64_t workers);
// Like triton_split_count(), except that parts are whole key blocks and the count need not divide the width.
SplitSchedule split_schedule(int64_t tokens, int64_t heads, int64_t width, int64_t workers);

}  // namespace smla
