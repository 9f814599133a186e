#include "core/interrupt.h"
#include "ops/map/map.h"

#include <algorithm>

namespace smla {

template <>
std::span<const StageField> fields_of<smla_map_args>() {
    using namespace fields;
    using Args = smla_map_args;
    static constexpr StageField table[] = {
        in(SMLA_FIELD(positions), kInt32, "T P"),
        in(SMLA_FIELD(request_of_token), kInt32, "T"),
        in(SMLA_FIELD(block_table), kInt32, "R MB"),
        out(SMLA_FIELD(rows), kInt32, "T K").or_in_place_of(offsetof(Args, positions)),
        out(SMLA_FIELD(counts), kInt32, "T").optional(),
        out(SMLA_FIELD(lengths), kInt32, "T").optional(),
        in(SMLA_FIELD(limits), kInt32, "T").optional(),
        in(SMLA_FIELD(visible_tokens), kInt32, "T").optional(),
    };
    return table;
}

void MapOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.pool_tokens >= 0, "args.pool_tokens", args.pool_tokens, "0 or more");
    SMLA_CHECK(args.page_tokens >= 1, "args.page_tokens", args.page_tokens, "1 or more");
    SMLA_CHECK(args.page_rows == 0 || args.page_rows >= args.page_tokens, "args.page_rows", args.page_rows,
               text("0, or at least page_tokens (", args.page_tokens, ")"));
    check_fields(args, context);
    const int64_t columns = args.positions.shape[1], wanted = pool_of(args).columns(columns);
    SMLA_CHECK(args.rows.shape[1] == wanted, "args.rows.shape[1]", args.rows.shape[1],
               text(wanted, " (for ", columns, args.pool_tokens > 1 ? " pools)" : " positions)"));
}

Pool pool_of(const smla_map_args& args) {
    return {std::max(args.pool_tokens, 1), present(args.visible_tokens)};
}

BlockTable block_table_of(const Tensor& table, int64_t page_tokens, int64_t page_rows) {
    return {static_cast<const int32_t*>(table.data),
            table.shape[0],
            table.shape[1],
            table.stride_elems[0],
            table.stride_elems[1],
            page_tokens,
            page_rows ? page_rows : page_tokens};
}

int32_t map_position(const Tensor& block_table, int64_t request, int64_t position, int64_t page_tokens,
                     int64_t page_rows) {
    return row_of(block_table_of(block_table, page_tokens, page_rows), request, position);
}

void MapOp::reference(const Args& args, int64_t begin, int64_t end) {
    const BlockTable table = block_table_of(args.block_table, args.page_tokens, args.page_rows);
    const Pool pool = pool_of(args);
    const int64_t columns = args.positions.shape[1];
    for (int64_t t = begin; t < end; ++t) {
        stop_point();
        const int64_t request = load_int(args.request_of_token, t);
        const int64_t limit = present(args.limits) ? load_int(args.limits, t) : INT64_MAX;
        const auto listed = [&](int64_t j) {
            return j < limit ? int32_t(load_int(args.positions, t, j)) : -1;
        };
        int64_t pools = columns;
        while (pool.tail && pools > 0 && listed(pools - 1) < 0) --pools;
        const int32_t visible = pool.tail ? int32_t(load_int(args.visible_tokens, t)) : 0;
        int32_t count = 0, length = 0;
        for (int64_t j = 0; j < args.rows.shape[1]; ++j) {
            const int64_t behind = j - pools * pool.tokens;
            const int64_t position =
                behind < 0 ? pool.token(listed(j / pool.tokens), j) : pool.tail_token(visible, behind);
            const int32_t row = row_of(table, request, position);
            *reinterpret_cast<int32_t*>(address(args.rows, t, j)) = row;
            count += row >= 0;
            if (row >= 0) length = int32_t(j) + 1;
        }
        if (present(args.counts)) *reinterpret_cast<int32_t*>(address(args.counts, t)) = count;
        if (present(args.lengths)) *reinterpret_cast<int32_t*>(address(args.lengths, t)) = length;
    }
}

}  // namespace smla
