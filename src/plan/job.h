// A build as plain pointers, and the rule that computes the fields of one token. The host's loops and GPU
// kernels share the rule, so both give the same bits. The host rejects a wrong batch; on a GPU, a wrong token
// becomes padding instead, and nothing is read or written out of bounds.
#pragma once

#include "core/host_device.h"
#include "ops/map/row_of.h"
#include "plan/field_list.h"

namespace smla {

template <smla_dtype>
struct Stored {
    using type = int32_t;
};
template <>
struct Stored<SMLA_I64> {
    using type = int64_t;
};
template <>
struct Stored<SMLA_U8> {
    using type = uint8_t;
};

// Address of each field; null if the plan does not have it.
struct PlanPointers {
#define SMLA_PLAN_POINTER(name, dtype, shape, padding, feature) Stored<dtype>::type* name = nullptr;
    SMLA_PLAN_FIELDS(SMLA_PLAN_POINTER)
#undef SMLA_PLAN_POINTER
};

// The caller's i32 or i64 numbers, one per token.
struct TokenNumbers {
    const void* data = nullptr;
    int64_t count = 0, stride = 1;
    bool given = false, wide = false;

    SMLA_HOST_DEVICE int64_t at(int64_t t) const {
        return wide ? static_cast<const int64_t*>(data)[t * stride]
                    : static_cast<const int32_t*>(data)[t * stride];
    }
};

// Row of a cache group that each token writes, from the caller or from a table.
struct TokenSlots {
    TokenNumbers given;
    BlockTable table;
    int64_t* out = nullptr;
};
constexpr int kTokenGroups = 5;  // all except the compressed entries

struct PlanJob {
    int64_t tokens = 0, requests = 0;  // in the step, including padding
    int64_t max_tokens = 0, max_requests = 0, threshold = 1, entry_columns = 0;
    int32_t max_seq_len = 0, window = 0, ratio = 0;
    bool uniform = false, index_entries = false;
    const int32_t *starts = nullptr, *lengths = nullptr;  // of the caller
    TokenNumbers rope;
    TokenSlots slots[kTokenGroups];
    int slot_groups = 0;
    BlockTable window_table, entry_table, index_table;  // index_table: of entries
    PlanPointers out;
    // The plan's own memory, for the next build and for kernels.
    int32_t* listed = nullptr;          // [max_tokens] number of entries in each row of entry_rows
    int32_t* starts_in_step = nullptr;  // [max_requests + 1] results of start_in_step()
    int32_t* reach = nullptr;           // [2] tokens that the last build wrote and this build writes
};

// A query token of a request, or padding.
struct PlanToken {
    int32_t request = 0, position = 0;
    bool real = false;
};
// Number of tokens and entries of its request that a token sees.
struct Visible {
    int32_t tokens = 0, entries = 0;
};

// Returns the start of a request, clamped to its predecessor's start and to the step.
SMLA_HOST_DEVICE inline int32_t start_in_step(const PlanJob& job, int64_t request, int32_t before) {
    const int32_t given = job.starts[request];
    const int32_t most = given < job.tokens ? given : int32_t(job.tokens);
    return most > before ? most : before;
}

// Returns the length of a request after the step; -1 if it is impossible.
SMLA_HOST_DEVICE inline int32_t request_length(const PlanJob& job, int64_t request, int32_t query) {
    const int32_t length = job.lengths[request];
    return length < query || length > job.max_seq_len ? -1 : length;
}

// Returns the number of a request's keys in the gathered order of the indexer's prefill.
SMLA_HOST_DEVICE inline int32_t gathered_keys(const PlanJob& job, int64_t request, int32_t query) {
    const int32_t length = request_length(job, request, query);
    return length < 0 ? 0 : job.index_entries ? length / job.ratio : length;
}

SMLA_HOST_DEVICE inline int32_t within_int32(int64_t value) {
    return value > INT32_MAX ? INT32_MAX : int32_t(value);
}

SMLA_HOST_DEVICE inline bool fits_int32(int64_t value) { return value == int32_t(value); }

// Returns token t of `request`, whose tokens are [starts[request], starts[request + 1]).
SMLA_HOST_DEVICE inline PlanToken token_of(const PlanJob& job, const int32_t* starts, int64_t request,
                                           int64_t t) {
    const int32_t length = request_length(job, request, starts[request + 1] - starts[request]);
    if (length < 0) return {};
    if (job.rope.given && t < job.rope.count && !fits_int32(job.rope.at(t))) return {};
    return {int32_t(request), length - int32_t(starts[request + 1] - t), true};
}

// Returns the request of token t < starts[requests], where starts are ascending.
SMLA_HOST_DEVICE inline int64_t request_of(const int32_t* starts, int64_t requests, int64_t t) {
    int64_t low = 0, high = requests;  // starts[low] <= t < starts[high]
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (starts[middle] <= t) low = middle;
        else high = middle;
    }
    return low;
}

SMLA_HOST_DEVICE inline int64_t slot_of(const TokenSlots& group, int64_t t, const PlanToken& token) {
    if (!token.real) return -1;
    if (!group.given.given) return row_of(group.table, token.request, token.position);
    const int64_t slot = t < group.given.count ? group.given.at(t) : -1;
    return slot < -1 ? -1 : slot;
}

// Writes all fields of a token except its rows. batch_split and ragged_cu must be complete.
SMLA_HOST_DEVICE inline Visible place_token(const PlanJob& job, int64_t t, const PlanToken& token) {
    const PlanPointers& out = job.out;
    bool valid = token.real;
    for (int g = 0; g < job.slot_groups; ++g) {
        const int64_t slot = slot_of(job.slots[g], t, token);
        job.slots[g].out[t] = slot;
        valid = valid && slot >= 0;
    }
    const bool rope = token.real && job.rope.given && t < job.rope.count;
    const int32_t visible = valid ? token.position + 1 : 0;
    Visible sees{visible, 0};
    out.request_of_token[t] = token.request;
    out.position[t] = token.position;
    out.rope_position[t] = rope ? int32_t(job.rope.at(t)) : token.position;
    out.is_valid[t] = valid;
    out.visible_tokens[t] = visible;
    if (out.window_len) out.window_len[t] = visible < job.window ? visible : job.window;
    if (out.visible_entries) {
        const int32_t closed = closed_entry(visible, job.ratio);
        sees.entries = visible / job.ratio;
        out.visible_entries[t] = sees.entries;
        if (out.compressed_slot) out.compressed_slot[t] = row_of(job.entry_table, token.request, closed);
        if (job.index_entries) out.index_slot[t] = row_of(job.index_table, token.request, closed);
        if (out.entry_len) out.entry_len[t] = sees.entries;
    }
    if (!out.score_end) return sees;
    const int32_t columns = job.index_entries ? sees.entries : visible;
    const int32_t start = out.ragged_cu[token.request];
    const bool gathered = t >= out.batch_split[2];  // decodes are not
    out.score_end[t] = columns;
    out.ragged_start[t] = start;
    out.ragged_end[t] = within_int32(int64_t(start) + (gathered ? columns : 0));
    return sees;
}

}  // namespace smla
