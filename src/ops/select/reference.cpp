// The specification of select: a full sort of each row.
#include "core/interrupt.h"
#include "ops/map/map.h"
#include "ops/score/score.h"
#include "ops/select/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

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
    SMLA_CHECK(args.page_tokens >= 1, field(".page_tokens"), args.page_tokens,
               "1 or more, because args.rows is present");
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
    SMLA_CHECK(columns <= INT32_MAX, "args.scores.shape[1]", columns, "at most 2^31 - 1 columns");
    check_select_rules("args", args, args.scores.dtype == SMLA_F64);
    SMLA_CHECK(!present(args.ids) || !args.relative, "args.relative", 1, "0, because args.ids is present");
    SMLA_CHECK(!present(args.ids) || !present(args.rows), "args.rows", "present",
               "absent, because args.ids is present");
}

namespace {
template <class Stored>
void fill_lowest(char* row, int64_t begin, int64_t end) {
    Stored* values = reinterpret_cast<Stored*>(row);
    std::fill(values + begin, values + end, -std::numeric_limits<Stored>::infinity());
}
}  // namespace

// Writes the selected columns as rows of a cache.
static void store_rows(const smla_select_args& args, int64_t t, const int32_t* winners, int64_t count) {
    const BlockTable table = row_table_of(args);
    const int64_t request = load_int(args.request_of_token, t);
    auto* rows = reinterpret_cast<int32_t*>(address(args.rows, t));
    for (int64_t i = 0; i < count; ++i) rows[i] = row_of(table, request, winners[i]);
    std::fill(rows + count, rows + args.rows.shape[1], -1);
}

template <class Real>
void store_selection(const smla_select_args& args, int64_t t, const int32_t* winners, const Real* scores,
                     int64_t count, int64_t base) {
    const int64_t k = args.indices.shape[1];
    auto* indices = reinterpret_cast<int32_t*>(address(args.indices, t));
    for (int64_t i = 0; i < count; ++i) indices[i] = int32_t(winners[i] - base);
    std::fill(indices + count, indices + k, -1);
    if (present(args.counts)) *reinterpret_cast<int32_t*>(address(args.counts, t)) = int32_t(count);
    if (present(args.rows)) store_rows(args, t, winners, count);
    if (!present(args.selected)) return;
    char* selected = address(args.selected, t);
    store_row(args.selected, selected, count, scores);
    if (args.selected.dtype == SMLA_F64) fill_lowest<double>(selected, count, k);
    else fill_lowest<float>(selected, count, k);
}
template void store_selection<float>(const smla_select_args&, int64_t, const int32_t*, const float*, int64_t,
                                     int64_t);
template void store_selection<double>(const smla_select_args&, int64_t, const int32_t*, const double*,
                                      int64_t, int64_t);

namespace {

template <class Real>
struct Scored {
    Real score;
    int32_t id;
};

// Orders by score descending, NaN below -inf, -0 = +0; ties by the lowest id.
template <class Real>
bool ranks_before(const Scored<Real>& a, const Scored<Real>& b) {
    if (std::isnan(a.score) != std::isnan(b.score)) return std::isnan(b.score);
    if (!std::isnan(a.score) && a.score != b.score) return a.score > b.score;
    return a.id < b.id;
}

template <class Real>
void select_tokens(const smla_select_args& args, int64_t begin, int64_t end) {
    const int64_t columns = args.scores.shape[1], k = args.indices.shape[1];
    std::vector<Real> row(static_cast<size_t>(columns));
    std::vector<Scored<Real>> list;
    for (int64_t t = begin; t < end; ++t) {
        stop_point();
        const ColumnWindow window = clamp_window(args.starts, args.ends, t, columns);
        const int64_t length = window.end - window.begin;
        const char* first = address(args.scores, t) + window.begin * dtype_bits(args.scores.dtype) / 8;
        load_row(args.scores, first, length, row.data());
        list.clear();
        for (int64_t i = 0; i < length; ++i) {
            const int64_t j = window.begin + i;
            const int64_t id = present(args.ids) ? load_int(args.ids, t, j) : j;
            if (id >= 0) list.push_back({row[size_t(i)], int32_t(id)});
        }
        // The sort is stable, so that columns of equal id and score keep their order and the result depends
        // only on the row.
        std::stable_sort(list.begin(), list.end(), ranks_before<Real>);
        list.resize(std::min<size_t>(list.size(), size_t(k)));
        std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
        std::vector<int32_t> winners;
        std::vector<Real> scores;
        for (const Scored<Real>& each : list) {
            winners.push_back(each.id);
            scores.push_back(each.score);
        }
        store_selection(args, t, winners.data(), scores.data(), int64_t(list.size()),
                        args.relative ? window.begin : 0);
    }
}

}  // namespace

void SelectOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.scores.dtype == SMLA_F64) select_tokens<double>(args, begin, end);
    else select_tokens<float>(args, begin, end);
}

}  // namespace smla
