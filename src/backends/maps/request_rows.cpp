#include "backends/maps/rows.h"

#include "ops/map/map.h"
#include "ops/own_memory.h"

#include <algorithm>

namespace smla {

namespace {

// Context parallelism assigns `interleave` consecutive positions to each rank, round-robin.
struct RankShare {
    int32_t ranks = 1, rank = 0, interleave = 1;
};
bool owns(const RankShare& share, int32_t position) {
    return position >= 0 && position / share.interleave % share.ranks == share.rank;
}
// Returns a rank's local number for a position that the rank owns.
int32_t local_position(const RankShare& share, int32_t position) {
    const int64_t round = int64_t(share.ranks) * share.interleave;
    return int32_t(position / round * share.interleave + position % share.interleave);
}

// Returns the row of a position, in the cache if workspace_start < 0, else in the workspace; -1 if none.
int32_t request_row(const BlockTable& table, const RankShare& share, int64_t request, int32_t position,
                    int64_t workspace_start) {
    if (!owns(share, position)) return -1;
    const int32_t local = local_position(share, position);
    if (workspace_start < 0) return row_of(table, request, local);
    const int64_t row = workspace_start + local;
    return local / table.page_tokens >= table.columns || row > INT32_MAX ? -1 : int32_t(row);
}

void check(const smla_request_rows_args& args) {
    SMLA_CHECK(args.page_tokens >= 1, "args.page_tokens", args.page_tokens, "1 or more");
    SMLA_CHECK(args.page_rows == 0 || args.page_rows >= args.page_tokens, "args.page_rows", args.page_rows,
               text("0, or at least page_tokens (", args.page_tokens, ")"));
    SMLA_CHECK(args.compact == 0 || args.compact == 1, "args.compact", args.compact, "0 or 1");
    SMLA_CHECK(args.ranks >= 0, "args.ranks", args.ranks, "0 or more");
    SMLA_CHECK(args.rank >= 0 && args.rank < std::max(args.ranks, 1), "args.rank", args.rank,
               text("0 to ", std::max(args.ranks, 1) - 1));
    SMLA_CHECK(args.interleave >= 0, "args.interleave", args.interleave, "0 or more");
    check_tensor("args.positions", args.positions, kInt32, {kAny, kAny}, kOnHost);
    const int64_t tokens = args.positions.shape[0];
    check_tensor("args.request_of_token", args.request_of_token, kInt32, {tokens}, kOnHost);
    check_tensor("args.block_table", args.block_table, kInt32, {kAny, kAny}, kOnHost);
    check_optional("args.is_valid", args.is_valid, dtypes(SMLA_U8), {tokens}, kOnHost);
    Tensor starts{};  // only used with workspace_of_token
    if (check_optional("args.workspace_of_token", args.workspace_of_token, kInt32, {tokens}, kOnHost)) {
        check_tensor("args.workspace_starts", args.workspace_starts, kInt32, {kAny}, kOnHost);
        starts = args.workspace_starts;
        const int64_t workspaces = starts.shape[0];
        for (int64_t t = 0; t < tokens; ++t)
            SMLA_CHECK(load_int(args.workspace_of_token, t) < workspaces,
                       text("args.workspace_of_token[", t, "]"), load_int(args.workspace_of_token, t),
                       text("below ", workspaces, " (the number of workspaces)"));
    }
    check_tensor("args.rows", args.rows, kInt32, {tokens, args.positions.shape[1]}, kOnHost);
    check_optional("args.counts", args.counts, kInt32, {tokens}, kOnHost);
    check_own_memory({{"args.rows", args.rows}, {"args.counts", args.counts}},
                     {{"args.positions", args.positions},
                      {"args.request_of_token", args.request_of_token},
                      {"args.block_table", args.block_table},
                      {"args.is_valid", args.is_valid},
                      {"args.workspace_of_token", args.workspace_of_token},
                      {"args.workspace_starts", starts}});
}

// Returns the start of the token's rows in a gathered workspace; -1 if the token reads the cache.
int64_t workspace_start(const smla_request_rows_args& args, int64_t token) {
    if (!present(args.workspace_of_token)) return -1;
    const int64_t workspace = load_int(args.workspace_of_token, token);
    return workspace < 0 ? -1 : std::max<int64_t>(load_int(args.workspace_starts, workspace), 0);
}

}  // namespace

void request_rows(const smla_request_rows_args& args) {
    check(args);
    const BlockTable table = block_table_of(args.block_table, args.page_tokens, args.page_rows);
    const RankShare share{std::max(args.ranks, 1), args.rank, std::max(args.interleave, 1)};
    const int64_t columns = args.positions.shape[1];
    for (int64_t t = 0; t < args.positions.shape[0]; ++t) {
        const int64_t request = load_int(args.request_of_token, t), start = workspace_start(args, t);
        const auto out = [&](int64_t j) -> int32_t& {
            return *reinterpret_cast<int32_t*>(address(args.rows, t, j));
        };
        int64_t found = 0;
        for (int64_t j = 0; j < columns; ++j) {
            const int32_t row =
                request_row(table, share, request, int32_t(load_int(args.positions, t, j)), start);
            if (!args.compact) out(j) = row;
            else if (row >= 0) out(found) = row;
            found += row >= 0;
        }
        if (args.compact)
            for (int64_t j = found; j < columns; ++j) out(j) = -1;
        if (!present(args.counts)) continue;
        const bool valid =
            !present(args.is_valid) || *reinterpret_cast<const uint8_t*>(address(args.is_valid, t));
        *reinterpret_cast<int32_t*>(address(args.counts, t)) = valid ? int32_t(found) : 0;
    }
}

}  // namespace smla
