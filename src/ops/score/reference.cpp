// The specification of score: plain loops, one token at a time, in float or double.
#include "core/interrupt.h"
#include "ops/quant_index_q/quant_index_q.h"
#include "ops/score/score.h"

#include <cmath>
#include <limits>
#include <vector>

namespace smla {

template <>
std::span<const StageField> fields_of<smla_score_args>() {
    return kScoreFields;
}

void check_score_rules(const char* prefix, const smla_score_args& args) {
    const auto field = [&](const char* name) { return text(prefix, name); };
    SMLA_CHECK(args.fill == 0 || args.fill == 1, field(".fill"), args.fill, "0 or 1");
    SMLA_CHECK(args.precision >= 0 && args.precision <= SMLA_PRECISION_ROUNDED, field(".precision"),
               args.precision, "default (0), exact (1) or rounded (2)");
    SMLA_CHECK(args.reserved == 0, field(".reserved"), args.reserved, "0");
    const int64_t heads = args.q.shape[1], width = args.q.shape[2];
    const bool f64 = args.q.dtype == SMLA_F64;
    SMLA_CHECK(heads >= 1 && heads <= kMaxIndexHeads, field(".q.shape[1]"), heads,
               text("1 to ", kMaxIndexHeads, " heads"));
    SMLA_CHECK(width >= 1 && width <= 1024, field(".q.shape[2]"), width, "1 to 1024");
    if (args.q.dtype == SMLA_E2M1) {
        SMLA_CHECK(width % kQueryScaleGroup == 0, field(".q.shape[2]"), width, "a multiple of 32 for e2m1");
        check_even_strides(field(".q").c_str(), args.q);
    }
    const CacheView keys(args.keys);
    SMLA_CHECK(keys.width == width, field(".keys.width"), keys.width, text(width, " (the width of q)"));
    SMLA_CHECK(args.keys.format != SMLA_ROW_F64 || f64, field(".keys.format"), "row_f64",
               "another format, because row_f64 requires f64 q");
}

void ScoreOp::check(const Args& args, const CheckContext& context) {
    check_fields(args, context);
    check_score_rules("args", args);
    SMLA_CHECK(args.logits.shape[1] <= INT32_MAX, "args.logits.shape[1]", args.logits.shape[1],
               "at most 2^31 - 1 columns");
}

template <class Real>
void load_index_query(const smla_score_args& args, int64_t token, int64_t head, Real* row) {
    const int64_t width = args.q.shape[2];
    load_row(args.q, address(args.q, token, head), width, row);
    if (args.q.dtype != SMLA_E2M1) return;
    const auto* scales = reinterpret_cast<const uint8_t*>(address(args.q_scales, token, head));
    for (int64_t d = 0; d < width; ++d) row[d] *= Real(e8m0_to_f32(scales[d / kQueryScaleGroup]));
}
template void load_index_query<float>(const smla_score_args&, int64_t, int64_t, float*);
template void load_index_query<double>(const smla_score_args&, int64_t, int64_t, double*);

namespace {

template <class Real>
Real relu(Real x) {  // NaN stays NaN
    return x <= 0 ? Real(0) : x;
}

template <class Real>
struct Query {
    std::vector<Real> q, w;  // [H,D], [H]

    Query(const smla_score_args& args, int64_t token) {
        const int64_t heads = args.q.shape[1], width = args.q.shape[2];
        q.resize(size_t(heads * width));
        w.resize(size_t(heads));
        for (int64_t h = 0; h < heads; ++h) load_index_query(args, token, h, q.data() + h * width);
        load_row(args.w, address(args.w, token), heads, w.data());
    }

    // Sums products over ascending d, then heads over ascending h. The scale of the key comes last.
    Real logit(const std::vector<Real>& key, Real scale) const {
        const size_t width = key.size();
        Real sum = 0;
        for (size_t h = 0; h < w.size(); ++h) {
            Real dot = 0;
            for (size_t d = 0; d < width; ++d) dot += q[h * width + d] * key[d];
            sum += w[h] * relu(dot);
        }
        return sum * scale;
    }
};

template <class Real>
struct AsIs {
    using Stored = Real;
    static Real of(Real value) { return value; }
};
struct AsBf16 {
    using Stored = uint16_t;
    static uint16_t of(float value) { return f32_to_bf16(value); }
};

template <class Real, class As = AsIs<Real>>
void score_tokens(const smla_score_args& args, int64_t begin, int64_t end) {
    const CacheView keys(args.keys);
    const int64_t columns = args.logits.shape[1];
    const auto lowest = As::of(-std::numeric_limits<Real>::infinity());
    KeyColumns rows(args, keys);
    std::vector<Real> key(static_cast<size_t>(keys.width));
    for (int64_t t = begin; t < end; ++t) {
        const ColumnWindow window = clamp_window(args.starts, args.ends, t, columns);
        auto* const logits = reinterpret_cast<typename As::Stored*>(address(args.logits, t));
        if (args.fill) {
            std::fill(logits, logits + window.begin, lowest);
            std::fill(logits + window.end, logits + columns, lowest);
        }
        if (window.begin == window.end) continue;
        const Query<Real> query(args, t);
        rows.set_token(t);
        for (int64_t j = window.begin; j < window.end; ++j) {
            stop_point();
            const int64_t row = rows.row(j);
            logits[j] = lowest;
            if (row < 0) continue;
            const Real scale = load_key(keys, row, key.data());
            logits[j] = As::of(query.logit(key, scale));
        }
    }
}

}  // namespace

void ScoreOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.q.dtype == SMLA_F64) score_tokens<double>(args, begin, end);
    else if (args.logits.dtype == SMLA_BF16) score_tokens<float, AsBf16>(args, begin, end);
    else score_tokens<float>(args, begin, end);
}

}  // namespace smla
