#include "ops/map/map.h"
#include "ops/select/select.h"

namespace smla {

template <>
std::span<const StageField> fields_of<smla_select_args>() {
    return kSelectFields;
}

void check_select_rules(const char* prefix, const smla_select_args& args, bool f64) {
    const auto field = [&](const char* name) { return text(prefix, name); };
    SMLA_CHECK(args.relative == 0 || args.relative == 1, field(".relative"), args.relative, "0 or 1");
    const int64_t k = args.indices.shape[1];
    SMLA_CHECK(k <= INT32_MAX, field(".indices.shape[1]"), k, "at most 2^31 - 1");
    if (present(args.selected))
        check_dtype(field(".selected").c_str(), args.selected, f64 ? kFloat32Or64 : dtype_bit(SMLA_F32));
    if (!present(args.rows)) return;
    SMLA_CHECK(args.page_tokens >= 1, field(".page_tokens"), args.page_tokens, "1 or more, with rows");
    SMLA_CHECK(args.page_rows == 0 || args.page_rows >= args.page_tokens, field(".page_rows"), args.page_rows,
               text("0, or at least page_tokens (", args.page_tokens, ")"));
}

BlockTable row_table_of(const smla_select_args& args) {
    return present(args.rows) ? block_table_of(args.row_table, args.page_tokens, args.page_rows)
                              : BlockTable{};
}

void SelectOp::check(const Args& args, const CheckContext& context) {
    check_fields(args, context);
    const int64_t columns = args.scores.shape[1];
    SMLA_CHECK(columns <= INT32_MAX, "args.scores.shape[1]", columns, "columns that fit in int32");
    check_select_rules("args", args, args.scores.dtype == SMLA_F64);
    SMLA_CHECK(!present(args.ids) || !args.relative, "args.relative", 1,
               "0 with ids: an id does not count from a window");
    SMLA_CHECK(!present(args.ids) || !present(args.rows), "args.rows", "present",
               "absent with ids: an id is no position");
}

}  // namespace smla
