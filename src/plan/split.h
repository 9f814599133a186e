// How a step is divided: decode and prefill requests, and the lists of a decode token over several workers.
#pragma once

#include <cstdint>

namespace smla {

// Decodes come first in a batch; everything from the first prefill on counts as prefill.
struct BatchSplit {
    int64_t decodes = 0, prefills = 0;  // requests
    int64_t decode_tokens = 0, prefill_tokens = 0;
};

// A request is a decode if it has at most `threshold` query tokens. `uniform` also wants the query length of
// the first request; where all are that long or empty, a batch within the threshold is all decode (padded
// graphs).
BatchSplit split_decodes_and_prefills(const int32_t* query_start_loc, int64_t requests, int64_t threshold,
                                      bool uniform);

// Attention over one token's list in `splits` parts of `rows` each (the last shorter): split s takes list
// columns [s * rows, (s + 1) * rows) below the token's length, so no per-token table is needed and boundaries
// never depend on lengths.
struct SplitSchedule {
    int64_t splits = 1, rows = 0;
};

constexpr int64_t kSplitRows = 64;  // parts are multiples of this: the key block of the kernels

// How many parts keep `workers` busy with `tokens` tokens of `heads` heads and `width` listed rows, by the
// rule of vLLM's Triton backend: blocks of 16 heads, parts of 128 rows or more, one part where that alone
// gives a quarter of the workers something to do, a power of two that divides the width.
int64_t triton_split_count(int64_t tokens, int64_t heads, int64_t width, int64_t workers);
// The same rule without the divisor: parts are whole key blocks instead.
SplitSchedule split_schedule(int64_t tokens, int64_t heads, int64_t width, int64_t workers);

}  // namespace smla
