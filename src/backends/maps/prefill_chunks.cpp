#include "backends/maps/rows.h"

#include "ops/own_memory.h"

#include <algorithm>
#include <limits>

namespace smla {

namespace {

struct Prefill {
    const smla_prefill_chunks_args& args;
    int64_t ratio, max_rows, max_logits, max_requests;

    explicit Prefill(const smla_prefill_chunks_args& given) : args(given) {
        constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();
        ratio = std::max(args.ratio, 1);
        constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();  // chunks store int32 rows
        max_rows = args.max_rows ? std::min<int64_t>(args.max_rows, kMostRows) : kMostRows;
        max_logits = args.max_logits_bytes ? args.max_logits_bytes / int64_t(sizeof(float)) : kNoBound;
        max_requests = args.max_requests ? args.max_requests : kNoBound;
    }
    int64_t requests() const { return args.seq_lens.shape[0]; }
    int64_t begin(int64_t request) const { return load_int(args.query_start_loc, request); }
    int64_t rows(int64_t request) const { return load_int(args.seq_lens, request) / ratio; }
};

void check(const smla_prefill_chunks_args& args) {
    SMLA_CHECK(args.ratio >= 0, "args.ratio", args.ratio, "0 or more");
    SMLA_CHECK(args.max_rows >= 0, "args.max_rows", args.max_rows, "0 or more");
    SMLA_CHECK(args.max_logits_bytes >= 0, "args.max_logits_bytes", args.max_logits_bytes, "0 or more");
    SMLA_CHECK(args.max_requests >= 0, "args.max_requests", args.max_requests, "0 or more");
    check_tensor("args.seq_lens", args.seq_lens, kInt32, {kAny}, kOnHost);
    const int64_t requests = args.seq_lens.shape[0];
    check_tensor("args.query_start_loc", args.query_start_loc, kInt32, {requests + 1}, kOnHost);
    SMLA_CHECK(args.first_request >= 0 && args.first_request <= requests, "args.first_request",
               args.first_request, text("0 to ", requests));
    check_tensor("args.chunks", args.chunks, kInt32, {kAny, kChunkColumns}, kOnHost);
    check_own_memory({{"args.chunks", args.chunks}},
                     {{"args.query_start_loc", args.query_start_loc}, {"args.seq_lens", args.seq_lens}});
    const Prefill prefill(args);
    for (int64_t r = args.first_request; r < requests; ++r) {
        SMLA_CHECK(prefill.begin(r + 1) >= prefill.begin(r), text("args.query_start_loc[", r + 1, "]"),
                   prefill.begin(r + 1), "at least the previous value");
        SMLA_CHECK(load_int(args.seq_lens, r) >= 0, text("args.seq_lens[", r, "]"),
                   load_int(args.seq_lens, r), "0 or more");
        SMLA_CHECK(prefill.rows(r) <= prefill.max_rows, text("args.seq_lens[", r, "]"),
                   text(prefill.rows(r), " rows"), text("at most max_rows (", prefill.max_rows, ")"));
    }
}

struct Chunk {
    int64_t first, end, begin, stop, rows;
    bool again;
};

// Calls emit(chunk) for each chunk in order.
template <class Emit>
void each_chunk(const Prefill& prefill, const Emit& emit) {
    const auto fits = [&](int64_t tokens, int64_t rows) {
        return rows <= prefill.max_rows && (rows == 0 || tokens <= prefill.max_logits / rows);
    };
    for (int64_t first = prefill.args.first_request; first < prefill.requests();) {
        int64_t end = first + 1, rows = prefill.rows(first);
        const int64_t begin = prefill.begin(first);
        while (end < prefill.requests() && end - first < prefill.max_requests &&
               fits(prefill.begin(end + 1) - begin, rows + prefill.rows(end)))
            rows += prefill.rows(end++);
        // a single request may still be too large
        const int64_t stop = prefill.begin(end), tokens = stop - begin;
        const int64_t piece = rows ? std::max<int64_t>(1, prefill.max_logits / rows) : tokens;
        for (int64_t at = begin; at < stop; at += std::min(piece, stop - at))
            emit(Chunk{first, end, at, std::min(stop, at + std::min(piece, tokens)), rows, at > begin});
        first = end;
    }
}

}  // namespace

void prefill_chunks(smla_prefill_chunks_args& args) {
    check(args);
    const Prefill prefill(args);
    int64_t count = 0;
    each_chunk(prefill, [&](const Chunk&) { ++count; });
    SMLA_CHECK(count <= args.chunks.shape[0], "args.chunks.shape[0]", args.chunks.shape[0],
               text("at least ", count, " (the sum of query tokens and requests always suffices)"));
    args.count = 0;
    each_chunk(prefill, [&](const Chunk& chunk) {
        const int64_t values[kChunkColumns] = {chunk.first, chunk.end,  chunk.begin,
                                               chunk.stop,  chunk.rows, chunk.again};
        for (int c = 0; c < kChunkColumns; ++c)
            *reinterpret_cast<int32_t*>(address(args.chunks, args.count, c)) = int32_t(values[c]);
        ++args.count;
    });
}

}  // namespace smla
