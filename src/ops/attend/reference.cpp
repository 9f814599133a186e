// The specification of attend: plain loops, one token at a time, in float or double.
#include "core/interrupt.h"
#include "ops/attend/attend.h"
#include "ops/rope/rotate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace smla {

namespace {

template <class Real>
struct TokenKeys {
    std::vector<Real> values;  // [n,Dqk], dequantized
    int64_t count = 0;

    void append(const smla_attend_args& args, const smla_attend_source& source, int64_t token,
                int64_t width) {
        if (source.cache.format == SMLA_FORMAT_NONE) return;
        const CacheView cache(source.cache);
        std::vector<int32_t> rows(size_t(source.rows.shape[1]));
        const int64_t n = valid_rows(source, cache, token, rows.data());
        values.resize(size_t((count + n) * width));
        for (int64_t j = 0; j < n; ++j) {
            Real* key = values.data() + (count + j) * width;
            cache.decode(rows[size_t(j)], key);
            if (rounds_keys(args, cache))
                for (int64_t d = 0; d < width; ++d) key[d] = Real(round_to_bf16(float(key[d])));
        }
        count += n;
    }
};

template <class Real>
void attend_head(const smla_attend_args& args, const TokenKeys<Real>& keys, int64_t t, int64_t h,
                 const Rotation<Real>& rotation, std::vector<Real>& p) {
    const int64_t width = args.q.shape[2], value_width = args.out.shape[2], n = keys.count;
    const Real infinity = std::numeric_limits<Real>::infinity();
    const Real scale = Real(softmax_scale(args)) * Real(query_scale(args));
    std::vector<Real> q(static_cast<size_t>(width)), out(size_t(value_width), Real(0));
    load_row(args.q, address(args.q, t, h), width, q.data());

    Real peak = -infinity;
    for (int64_t j = 0; j < n; ++j) {
        Real dot = 0;
        for (int64_t d = 0; d < width; ++d) dot += q[size_t(d)] * keys.values[size_t(j * width + d)];
        p[size_t(j)] = scale * dot;
        if (!(p[size_t(j)] <= peak) && peak == peak) peak = p[size_t(j)];  // NaN stays the peak
    }
    const Real sink = present(args.sink) ? load_one<Real>(args.sink, h) : -infinity;
    Real lse = Real(lse_of_no_rows(args));
    if (n > 0) {
        Real sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += p[size_t(j)] = std::exp(p[size_t(j)] - peak);
        lse = peak + std::log(sum);
        // exp(sink - peak) is part of the denominator; a sink above the peak scales both sides down
        const Real above = std::max(Real(0), sink - peak);
        const Real weight = std::exp(-above) / (sum * std::exp(-above) + std::exp(sink - peak - above));
        const Real factor = sink == infinity ? Real(0) : weight;
        for (int64_t j = 0; j < n; ++j)
            for (int64_t d = 0; d < value_width; ++d)
                out[size_t(d)] += p[size_t(j)] * factor * keys.values[size_t(j * width + d)];
    }
    rotation.interleaved(out.data() + value_width - 2 * int64_t(rotation.cosine.size()));
    store_row(args.out, address(args.out, t, h), value_width, out.data());
    const Real unit = args.lse_base == SMLA_LSE_LOG2 ? Real(std::numbers::log2e) : Real(1);
    const Real scaled = lse * unit;
    if (present(args.lse)) store_row(args.lse, address(args.lse, t, h), 1, &scaled);
    if (present(args.max_logits)) store_row(args.max_logits, address(args.max_logits, t, h), 1, &peak);
}

template <class Real>
void attend_tokens(const smla_attend_args& args, int64_t begin, int64_t end) {
    const int64_t width = args.q.shape[2];
    std::vector<Real> p(static_cast<size_t>(max_rows_per_token(args)));
    for (int64_t t = begin; t < end; ++t) {
        TokenKeys<Real> keys;
        keys.append(args, args.primary, t, width);
        keys.append(args, args.extra, t, width);
        Rotation<Real> back;
        if (present(args.out_positions))
            back.set(static_cast<const double*>(args.out_frequencies.data), args.out_frequencies.shape[0],
                     load_int(args.out_positions, t), true);
        for (int64_t h = 0; h < args.q.shape[1]; ++h) {
            stop_point();
            attend_head<Real>(args, keys, t, h, back, p);
        }
    }
}

}  // namespace

void AttendOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.q.dtype == SMLA_F64) attend_tokens<double>(args, begin, end);
    else attend_tokens<float>(args, begin, end);
}

}  // namespace smla
