#include "ops/attend/attend.h"

#include <limits>

namespace smla {

namespace {

void check_source(const char* name, const smla_attend_source& source, int64_t tokens, int64_t width,
                  bool f64) {
    const std::string prefix = text("args.", name);
    check_cache((prefix + ".cache").c_str(), source.cache, kKvFormats);
    const CacheView view(source.cache);
    SMLA_CHECK(view.width == width, prefix + ".cache.width", view.width, text("the width of q: ", width));
    SMLA_CHECK(source.cache.format != SMLA_ROW_F64 || f64, prefix + ".cache.format", "row_f64",
               "f64 q with an f64 cache");
    check_tensor((prefix + ".rows").c_str(), source.rows, kInt32, {tokens, kAny});
    check_optional((prefix + ".lengths").c_str(), source.lengths, kInt32, {tokens});
}

// As f32: what kernels multiply with.
void check_scale(const char* field, double scale, const float* override_scale) {
    using F32 = std::numeric_limits<float>;
    SMLA_CHECK(override_scale || (scale >= F32::denorm_min() && scale <= F32::max()), field, double(scale),
               "a finite number above 0, also in f32");
}

}  // namespace

void AttendOp::check(const Args& args) {
    SMLA_CHECK(args.precision >= 0 && args.precision <= SMLA_PRECISION_ROUNDED, "args.precision",
               args.precision, "default (0), exact (1) or rounded (2)");
    SMLA_CHECK(args.lse_base == SMLA_LSE_LN || args.lse_base == SMLA_LSE_LOG2, "args.lse_base", args.lse_base,
               "ln (0) or log2 (1)");
    SMLA_CHECK(args.reserved == 0, "args.reserved", args.reserved, "0");
    check_tensor("args.q", args.q, kFloats | dtype_bit(SMLA_E4M3), {kAny, kAny, kAny});
    check_rows("args.q", args.q);
    const int64_t tokens = args.q.shape[0], heads = args.q.shape[1], width = args.q.shape[2];
    const bool f64 = args.q.dtype == SMLA_F64, fp8 = args.q.dtype == SMLA_E4M3;
    SMLA_CHECK(heads >= 1 && heads <= kMaxHeads, "args.q.shape[1]", heads,
               text("1 to ", kMaxHeads, " heads"));
    SMLA_CHECK(width >= 1 && width <= 1024, "args.q.shape[2]", width, "1 to 1024");
    check_scale("args.softmax_scale", args.softmax_scale, args.softmax_scale_device);
    if (fp8) check_scale("args.q_scale", args.q_scale, args.q_scale_device);
    else
        SMLA_CHECK(args.q_scale == 0 || args.q_scale == 1, "args.q_scale", args.q_scale,
                   text("0 or 1: ", dtype_name(args.q.dtype), " queries have no scale, only e4m3 has"));

    SMLA_CHECK(args.primary.cache.format != SMLA_FORMAT_NONE || args.extra.cache.format != SMLA_FORMAT_NONE,
               "args.primary.cache.format", "none", "at least one source");
    if (args.primary.cache.format != SMLA_FORMAT_NONE)
        check_source("primary", args.primary, tokens, width, f64);
    if (args.extra.cache.format != SMLA_FORMAT_NONE) check_source("extra", args.extra, tokens, width, f64);

    const uint32_t out_types = f64   ? dtype_bit(SMLA_F64)
                               : fp8 ? dtype_bit(SMLA_BF16)
                                     : dtypes(SMLA_F32, SMLA_BF16, SMLA_F16);
    const uint32_t stat_types = f64 ? dtype_bit(SMLA_F64) : dtype_bit(SMLA_F32);
    check_tensor("args.out", args.out, out_types, {tokens, heads, kAny});
    check_rows("args.out", args.out);
    SMLA_CHECK(args.out.shape[2] >= 1 && args.out.shape[2] <= width, "args.out.shape[2]", args.out.shape[2],
               text("1 to ", width, ": V is the first values of the K row"));
    check_apart("args.out", args.out);
    check_optional("args.sink", args.sink, kFloat32Or64, {heads});
    check_optional_output("args.lse", args.lse, stat_types, {tokens, heads});
    check_optional_output("args.max_logits", args.max_logits, stat_types, {tokens, heads});
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
    if (cache.page_rows ==
        cache.page_tokens) {  // no gaps: no division, and no branch that random holes mislead
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
