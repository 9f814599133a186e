// The specification of gather: each row of out gets a cached token of the request whose range contains it.
#include "core/interrupt.h"
#include "formats/layouts.h"
#include "ops/ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace smla {

template <>
std::span<const StageField> fields_of<smla_gather_args>() {
    using namespace fields;
    using Args = smla_gather_args;
    static constexpr StageField table[] = {
        cache(SMLA_FIELD(cache), kKvFormats | kIndexFormats, "D"),
        in(SMLA_FIELD(block_table), kInt32, "R MB"),
        in(SMLA_FIELD(starts), kInt32, "R").optional(),
        in(SMLA_FIELD(cu), kInt32, "R+1"),
        out(SMLA_FIELD(out), kFloats | dtype_bit(SMLA_E4M3), "N D"),
        out(SMLA_FIELD(scales), dtype_bit(SMLA_F32), "N").exactly_if(offsetof(Args, out), SMLA_E4M3),
    };
    return table;
}

void GatherOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.raw == 0 || args.raw == 1, "args.raw", args.raw, "0 or 1");
    if (args.raw) {
        check_format("args.cache", args.cache, formats(SMLA_INDEX_FP8_132));
        // Checked first, so that the error names this dimension and not an outer one.
        if (args.out.ndim == 2) check_rows("args.out", args.out);
    }
    if (present(args.out)) check_dtype("args.out", args.out, args.raw ? dtype_bit(SMLA_E4M3) : kFloats);
    check_fields(args, context);
}

namespace {

constexpr int64_t kHole = -1;

// Returns the cache row of a request's token; -1 if the block table is too short or names no page.
int64_t cached_row(const smla_gather_args& args, const CacheView& cache, int64_t request, int64_t token) {
    if (token < 0 || token / cache.page_tokens >= args.block_table.shape[1]) return kHole;
    const int64_t page = load_int(args.block_table, request, token / cache.page_tokens);
    if (page < 0 || page >= cache.pages) return kHole;
    return page * cache.page_rows + token % cache.page_tokens;
}

template <class Real>
struct DequantisedRow {
    std::vector<Real> values;

    explicit DequantisedRow(int64_t width) : values(size_t(width)) {}
    void copy(const smla_gather_args& args, const CacheView& cache, int64_t row, int64_t out_row) {
        if (row == kHole) std::fill(values.begin(), values.end(), Real(0));
        else cache.decode(row, values.data());
        store_row(args.out, address(args.out, out_row), int64_t(values.size()), values.data());
    }
};

struct RawRow {
    using Layout = layout::IndexFp8_132;

    explicit RawRow(int64_t) {}
    void copy(const smla_gather_args& args, const CacheView& cache, int64_t row, int64_t out_row) {
        char* codes = address(args.out, out_row);
        char* scale = address(args.scales, out_row);
        if (row == kHole) {
            std::memset(codes, 0, Layout::width);
            std::memset(scale, 0, sizeof(float));
            return;
        }
        const RecordAt at = cache.at(row);
        std::memcpy(codes, at.page + Layout::row_at(at.offset), Layout::width);
        std::memcpy(scale, at.page + Layout::scale_at(at.page_tokens, at.offset), sizeof(float));
    }
};

template <class Row>
void gather_rows(const smla_gather_args& args, int64_t begin, int64_t end) {
    const CacheView cache(args.cache);
    Row row(cache.width);
    for (int64_t r = 0; r < args.block_table.shape[0]; ++r) {
        const int64_t first = load_int(args.cu, r), last = load_int(args.cu, r + 1);
        const int64_t start = present(args.starts) ? load_int(args.starts, r) : 0;
        for (int64_t i = std::max(first, begin); i < std::min(last, end); ++i) {
            stop_point();
            row.copy(args, cache, cached_row(args, cache, r, start + i - first), i);
        }
    }
}

}  // namespace

void GatherOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.raw) gather_rows<RawRow>(args, begin, end);
    else if (args.out.dtype == SMLA_F64) gather_rows<DequantisedRow<double>>(args, begin, end);
    else gather_rows<DequantisedRow<float>>(args, begin, end);
}

}  // namespace smla
