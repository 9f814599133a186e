#include "plan/split.h"

#include "core/workspace.h"

#include <algorithm>
#include <bit>

namespace smla {

namespace {

int64_t balanced_parts(int64_t tokens, int64_t heads, int64_t width, int64_t workers) {
    const int64_t blocks = heads > 0 ? tokens * ceil_div(heads, std::min<int64_t>(16, heads)) : 0;
    if (blocks == 0 || blocks * 4 >= workers) return 1;
    const int64_t wanted = int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(1, width / 128))));
    const int64_t possible = int64_t(std::bit_floor(uint64_t(std::max<int64_t>(1, workers / blocks))));
    return std::min(wanted, possible);
}

}  // namespace

BatchSplit split_decodes_and_prefills(const int32_t* query_start_loc, int64_t requests, int64_t threshold,
                                      bool uniform) {
    const auto length = [&](int64_t r) { return int64_t(query_start_loc[r + 1]) - query_start_loc[r]; };
    const int64_t first = requests > 0 ? length(0) : 0;
    QueryLengths all;
    for (int64_t r = 0; r < requests; ++r) all.add(r, length(r), first, threshold, uniform);
    BatchSplit split;
    split.decodes = decode_requests(all, requests, first, threshold, uniform);
    split.prefills = requests - split.decodes;
    split.decode_tokens = query_start_loc[split.decodes];
    split.prefill_tokens = query_start_loc[requests] - split.decode_tokens;
    return split;
}

int64_t triton_split_count(int64_t tokens, int64_t heads, int64_t width, int64_t workers) {
    int64_t parts = balanced_parts(tokens, heads, width, workers);
    while (width % parts != 0) parts /= 2;
    return parts;
}

SplitSchedule split_schedule(int64_t tokens, int64_t heads, int64_t width, int64_t workers) {
    if (width <= 0) return {};
    const int64_t parts = balanced_parts(tokens, heads, width, workers);
    SplitSchedule schedule;
    schedule.rows = int64_t(round_up(size_t(ceil_div(width, parts)), size_t(kSplitRows)));
    schedule.splits = ceil_div(width, schedule.rows);
    return schedule;
}

}  // namespace smla
