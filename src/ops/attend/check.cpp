#include "core/f32_range.h"
#include "ops/attend/attend.h"

#include <limits>

namespace smla {

namespace {

// Checks rules that the table cannot express: rows are as wide as q, and f64 only if q is.
void check_source(const char* name, const smla_attend_source& source, int64_t width, bool f64) {
    if (source.cache.format == SMLA_FORMAT_NONE) return;
    const CacheView view(source.cache);
    SMLA_CHECK(view.width == width, text("args.", name, ".cache.width"), view.width,
               text(width, " (the width of q)"));
    SMLA_CHECK(source.cache.format != SMLA_ROW_F64 || f64, text("args.", name, ".cache.format"), "row_f64",
               "another format, because row_f64 requires f64 q");
}

// Checks the dimensions that determine the shapes of other fields, so it runs first.
void check_limits(const smla_attend_args& args) {
    if (args.q.ndim != 3 || args.out.ndim != 3) return;
    const int64_t heads = args.q.shape[1], width = args.q.shape[2];
    SMLA_CHECK(heads >= 1 && heads <= kMaxHeads, "args.q.shape[1]", heads,
               text("1 to ", kMaxHeads, " heads"));
    SMLA_CHECK(width >= 1 && width <= 1024, "args.q.shape[2]", width, "1 to 1024");
    SMLA_CHECK(args.out.shape[2] >= 1 && args.out.shape[2] <= width, "args.out.shape[2]", args.out.shape[2],
               text("1 to ", width, " (V is a prefix of each K row)"));
}

// Throws unless the scale is also valid as f32, in which kernels multiply.
void check_scale(const char* field, double scale, const float* override_scale) {
    SMLA_CHECK(override_scale || is_positive_f32(scale), field, scale,
               "a number that is finite and positive in f32");
}

// Kernels multiply by both scales and log2 e in one f32. Callers must limit scales behind pointers.
void check_factor(const smla_attend_args& args) {
    const double softmax = args.softmax_scale_device ? 1 : args.softmax_scale;
    const double q = args.q.dtype == SMLA_E4M3 && !args.q_scale_device ? args.q_scale : 1;
    SMLA_CHECK(softmax_fits_f32(softmax, q), "args.softmax_scale", args.softmax_scale,
               "a number whose product with q_scale and log2(e) is finite in f32");
}

}  // namespace

template <>
std::span<const StageField> fields_of<smla_attend_args>() {
    using namespace fields;
    using Args = smla_attend_args;
    static constexpr StageField table[] = {
        scalar(SMLA_FIELD(softmax_scale_device)),
        scalar(SMLA_FIELD(q_scale_device)),
        in(SMLA_FIELD(q), kFloats | dtype_bit(SMLA_E4M3), "T H Dqk").rows(),
        cache(SMLA_FIELD(primary.cache), kKvFormats).optional(),
        in(SMLA_FIELD(primary.rows), kInt32, "T K").with(offsetof(Args, primary.cache)),
        in(SMLA_FIELD(primary.lengths), kInt32, "T").optional().with(offsetof(Args, primary.cache)),
        cache(SMLA_FIELD(extra.cache), kKvFormats).optional(),
        in(SMLA_FIELD(extra.rows), kInt32, "T Kx").with(offsetof(Args, extra.cache)),
        in(SMLA_FIELD(extra.lengths), kInt32, "T").optional().with(offsetof(Args, extra.cache)),
        out(SMLA_FIELD(out), kFloats, "T H Dv").rows().as_double_as(offsetof(Args, q)),
        in(SMLA_FIELD(sink), kFloat32Or64, "H").optional(),
        out(SMLA_FIELD(lse), kFloat32Or64, "T H").optional().as_double_as(offsetof(Args, q)),
        out(SMLA_FIELD(max_logits), kFloat32Or64, "T H").optional().as_double_as(offsetof(Args, q)),
        in(SMLA_FIELD(out_positions), kInts, "T").optional(),
        in(SMLA_FIELD(out_frequencies), dtype_bit(SMLA_F64), "n")
            .rows()
            .exactly_if(offsetof(Args, out_positions)),
    };
    return table;
}

void AttendOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.precision >= 0 && args.precision <= SMLA_PRECISION_ROUNDED, "args.precision",
               args.precision, "default (0), exact (1) or rounded (2)");
    SMLA_CHECK(args.lse_base == SMLA_LSE_LN || args.lse_base == SMLA_LSE_LOG2, "args.lse_base", args.lse_base,
               "ln (0) or log2 (1)");
    SMLA_CHECK(args.empty_lse == SMLA_EMPTY_LSE_MINUS_INF || args.empty_lse == SMLA_EMPTY_LSE_PLUS_INF,
               "args.empty_lse", args.empty_lse, "-inf (0) or +inf (1)");
    check_limits(args);
    check_fields(args, context);
    const int64_t width = args.q.shape[2];
    const bool f64 = args.q.dtype == SMLA_F64, fp8 = args.q.dtype == SMLA_E4M3;
    check_scale("args.softmax_scale", args.softmax_scale, args.softmax_scale_device);
    if (fp8) check_scale("args.q_scale", args.q_scale, args.q_scale_device);
    else
        SMLA_CHECK(args.q_scale == 0 || args.q_scale == 1, "args.q_scale", args.q_scale,
                   text("0 or 1, because ", dtype_name(args.q.dtype), " queries have no scale"));
    check_factor(args);

    SMLA_CHECK(args.primary.cache.format != SMLA_FORMAT_NONE || args.extra.cache.format != SMLA_FORMAT_NONE,
               "args.primary.cache.format", "none", "at least one source");
    check_source("primary", args.primary, width, f64);
    check_source("extra", args.extra, width, f64);

    if (fp8) check_dtype("args.out", args.out, dtype_bit(SMLA_BF16));
    if (!present(args.out_positions)) return;
    const int64_t pairs = args.out_frequencies.shape[0];
    SMLA_CHECK(
        2 * pairs <= args.out.shape[2], "args.out_frequencies.shape[0]", pairs,
        text("at most ", args.out.shape[2] / 2, " (pairs of the ", args.out.shape[2], " channels of out)"));
}

smla_rope_args rotation_of_out(const smla_attend_args& args) {
    return {.struct_size = sizeof(smla_rope_args),
            .style = SMLA_ROPE_INTERLEAVED,
            .inverse = 1,
            .first = int32_t(args.out.shape[2] - 2 * args.out_frequencies.shape[0]),
            .x = args.out,
            .positions = args.out_positions,
            .frequencies = args.out_frequencies};
}

int64_t max_rows_per_token(const smla_attend_args& args) {
    int64_t rows = 0;
    for (const smla_attend_source* source : {&args.primary, &args.extra})
        if (source->cache.format != SMLA_FORMAT_NONE) rows += source->rows.shape[1];
    return rows;
}

double softmax_scale(const smla_attend_args& args) {
    return args.softmax_scale_device ? *args.softmax_scale_device : args.softmax_scale;
}

double query_scale(const smla_attend_args& args) {
    if (args.q.dtype != SMLA_E4M3) return 1;
    return args.q_scale_device ? *args.q_scale_device : args.q_scale;
}

double lse_of_no_rows(const smla_attend_args& args) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    return args.empty_lse == SMLA_EMPTY_LSE_PLUS_INF ? infinity : -infinity;
}

bool rounds_keys(const smla_attend_args& args, const CacheView& cache) {
    return args.precision == SMLA_PRECISION_ROUNDED && cache.format->scale != ScaleKind::none;
}

int64_t valid_rows(const smla_attend_source& source, const CacheView& cache, int64_t token, int32_t* rows) {
    int64_t listed = source.rows.shape[1];
    if (present(source.lengths)) {
        const int64_t length = load_int(source.lengths, token);
        listed = length < 0 ? 0 : length < listed ? length : listed;
    }
    const int32_t* in = reinterpret_cast<const int32_t*>(address(source.rows, token));
    const int64_t step = source.rows.stride_elems[1];
    int64_t n = 0;
    // Pages without gaps need no division and no branch, which random masked entries would mispredict.
    if (cache.page_rows == cache.page_tokens) {
        for (int64_t j = 0; j < listed; ++j) {
            const int32_t row = in[j * step];
            rows[n] = row;
            n += row >= 0 && row < cache.capacity;
        }
        return n;
    }
    for (int64_t j = 0; j < listed; ++j) {
        const int32_t row = in[j * step];
        if (!cache.hole(row)) rows[n++] = row;
    }
    return n;
}

}  // namespace smla
