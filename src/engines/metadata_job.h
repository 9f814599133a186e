// Metadata of a step whose batch is on a GPU, as plain pointers, and the rules of one request and one token.
// The kernel cuda/common/metadata.cu applies the rules. The host's builds (backends/metadata) produce the
// same bits, which tests check.
#pragma once

#include "core/host_device.h"
#include "plan/job.h"

#include <cstdint>

namespace smla {

struct MetadataJob {
    int64_t tokens = 0, requests = 0, max_tokens = 0, max_requests = 0;
    int64_t decodes = 0, decode_tokens = 0;
    int32_t max_seq_len = 0, window = 0;
    int64_t entry_columns = 0;
    bool valid_alone = false;          // invalid tokens attend to nothing
    bool limits_prefill_rows = false;  // a prefill token has as many columns as it sees entries

    // The step in the plan on the GPU.
    const int32_t* starts = nullptr;   // [R+1], ascending and within the step
    const int32_t* lengths = nullptr;  // [R] of the caller
    const uint8_t* is_valid = nullptr;
    const int32_t *window_rows = nullptr, *window_len = nullptr;
    const int32_t *visible_entries = nullptr, *entry_len = nullptr;

    // Fields with room for the largest step; null if the backend does not have the field.
    int32_t *query_start_loc = nullptr, *seq_lens = nullptr;
    int32_t *context_lens = nullptr, *new_starts = nullptr;  // of prefill requests
    int32_t *prefill_seq_lens = nullptr, *prefill_gather_lens = nullptr, *prefill_cu = nullptr;
    int32_t *row_limit = nullptr, *token_context = nullptr;
    int32_t *window_decode_lens = nullptr, *window_prefill_lens = nullptr, *window_prefill_rows = nullptr;
    int32_t *entry_decode_lens = nullptr, *entry_prefill_rows = nullptr;
    int32_t *schedule = nullptr, *schedule_splits = nullptr;  // FlashMLA's schedule of one request
    int64_t schedule_parts = 0, schedule_blocks = 0;          // schedule_blocks: blocks of 64 listed rows
};

SMLA_HOST_DEVICE inline int32_t query_tokens_of(const MetadataJob& job, int64_t request) {
    return job.starts[request + 1] - job.starts[request];
}

// Returns false for a request with an impossible length, whose tokens the plan has made padding.
SMLA_HOST_DEVICE inline bool has_tokens(const MetadataJob& job, int64_t request) {
    return job.lengths[request] >= query_tokens_of(job, request) && job.lengths[request] <= job.max_seq_len;
}

// Writes request r of [0, max_requests]; requests after the batch become 0. r = requests ends the prefix
// sums.
SMLA_HOST_DEVICE inline void place_request(const MetadataJob& job, int64_t r) {
    const bool real = r < job.requests && has_tokens(job, r), ends = r <= job.requests;
    job.query_start_loc[r] = ends ? job.starts[r] : 0;
    const int64_t prefill = r - job.decodes;
    if (prefill >= 0) {
        const int32_t first = job.starts[job.decodes < job.requests ? job.decodes : job.requests];
        if (job.new_starts) job.new_starts[prefill] = ends ? job.starts[r] - first : 0;
        if (job.prefill_cu) job.prefill_cu[prefill] = ends ? job.starts[r] - first : 0;
    }
    if (r == job.max_requests) return;
    const int32_t length = real ? job.lengths[r] : 0, query = real ? query_tokens_of(job, r) : 0;
    job.seq_lens[r] = length;
    if (prefill < 0) return;
    if (job.context_lens) job.context_lens[prefill] = length - query;
    if (!job.prefill_seq_lens) return;
    const int32_t prefix = length - query, most = job.window - 1;
    job.prefill_seq_lens[prefill] = length;
    job.prefill_gather_lens[prefill] = real ? query + (prefix < most ? prefix : most) : 0;
}

// Writes part p of the schedule of one request. All parts except the last have equally many blocks.
SMLA_HOST_DEVICE inline void place_schedule_part(const MetadataJob& job, int64_t p) {
    constexpr int64_t kOverhead = 5;  // cost of a request on a part, in blocks
    const int64_t blocks = job.schedule_blocks, parts = job.schedule_parts,
                  taken = (blocks + kOverhead + parts - 1) / parts, begin = p * taken;
    const bool idle = p > 0 && begin >= blocks, last = begin + taken >= blocks;
    int32_t* const row = job.schedule + p * 8;
    row[0] = idle ? -1 : 0;
    row[1] = idle ? 0 : int32_t(begin);
    row[2] = 0;
    row[3] = idle ? 0 : int32_t(last ? blocks : begin + taken);
    row[4] = idle ? 0 : int32_t(p);
    row[5] = row[6] = row[7] = 0;
    if (idle || !last) return;
    job.schedule_splits[0] = 0;
    job.schedule_splits[1] = int32_t(p) + 1;
}

// Returns how many of a token's listed rows are used.
SMLA_HOST_DEVICE inline int32_t row_limit_of(const MetadataJob& job, int64_t t) {
    if (t >= job.starts[job.requests] || !has_tokens(job, request_of(job.starts, job.requests, t))) return 0;
    if (job.limits_prefill_rows && t >= job.decode_tokens) return job.visible_entries[t];
    return job.valid_alone && !job.is_valid[t] ? 0 : INT32_MAX;
}

// Writes token t of [0, max_tokens), except its rows. Tokens after the step become padding.
SMLA_HOST_DEVICE inline void place_numbers(const MetadataJob& job, int64_t t) {
    const bool in_step = t < job.tokens, decode = t < job.decode_tokens;
    job.row_limit[t] = in_step ? row_limit_of(job, t) : 0;
    const auto lens = [&](const int32_t* from, int32_t* decodes, int32_t* prefills) {
        if (decodes) decodes[t] = in_step && decode ? from[t] : 0;
        if (prefills && t + job.decode_tokens < job.max_tokens)
            prefills[t] = t + job.decode_tokens < job.tokens ? from[t + job.decode_tokens] : 0;
    };
    lens(job.window_len, job.window_decode_lens, job.window_prefill_lens);
    lens(job.entry_len, job.entry_decode_lens, nullptr);
    if (!job.token_context) return;
    const int64_t prefill = t + job.decode_tokens;  // token of the field's t-th context
    int32_t context = 0;
    if (prefill < job.starts[job.requests]) {
        const int64_t r = request_of(job.starts, job.requests, prefill);
        context = has_tokens(job, r) ? job.lengths[r] - query_tokens_of(job, r) : 0;
    }
    job.token_context[t] = context;
}

// Returns column c of the rows of the t-th prefill token.
SMLA_HOST_DEVICE inline int32_t window_prefill_row(const MetadataJob& job, int64_t t, int64_t c) {
    const int64_t prefill = t + job.decode_tokens;
    return prefill < job.tokens ? job.window_rows[prefill * job.window + c] : -1;
}
SMLA_HOST_DEVICE inline int32_t entry_prefill_row(const MetadataJob& job, int64_t t, int64_t c) {
    const int64_t prefill = t + job.decode_tokens;
    return prefill < job.tokens && c < job.entry_len[prefill] ? int32_t(c) : -1;
}

}  // namespace smla
