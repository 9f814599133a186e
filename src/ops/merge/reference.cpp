// The specification of merge: plain loops, in float or double.
#include "core/interrupt.h"
#include "ops/ops.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace smla {

template <>
std::span<const StageField> fields_of<smla_merge_args>() {
    using namespace fields;
    using Args = smla_merge_args;
    static constexpr StageField table[] = {
        in(SMLA_FIELD(partials), kFloats, "n T H Dv"),
        in(SMLA_FIELD(lse), kFloat32Or64, "n T H").as_double_as(offsetof(Args, partials)),
        in(SMLA_FIELD(sink), kFloat32Or64, "H").optional(),
        out(SMLA_FIELD(out), kFloats, "T H Dv").as_double_as(offsetof(Args, partials)),
        out(SMLA_FIELD(lse_out), kFloat32Or64, "T H").optional().as_double_as(offsetof(Args, partials)),
    };
    return table;
}

void MergeOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.lse_base == SMLA_LSE_LN || args.lse_base == SMLA_LSE_LOG2, "args.lse_base", args.lse_base,
               "ln (0) or log2 (1)");
    check_fields(args, context);
}

namespace {

// Weights relative to the largest part, and the factor that divides by the denominator with the sink.
template <class Real>
struct Weights {
    std::vector<Real> parts;  // negative for empty parts
    Real lse;                 // natural log, without the sink
    Real factor;              // out = factor * sum_i parts[i] * partials[i]
};

// Returns the natural-log lse of a part; -inf if the part is empty. FlashMLA and FlashAttention-2 mark an
// empty part with +inf. No other part has an lse of +inf, because the lse of logits of +inf is NaN.
template <class Real>
Real lse_of(const smla_merge_args& args, int64_t i, int64_t t, int64_t h) {
    const Real lse = load_one<Real>(args.lse, i, t, h);
    if (std::isinf(lse)) return -std::numeric_limits<Real>::infinity();
    return lse * (args.lse_base == SMLA_LSE_LOG2 ? Real(std::numbers::ln2) : Real(1));
}

template <class Real>
void weigh(const smla_merge_args& args, int64_t t, int64_t h, Weights<Real>& out) {
    const int64_t n = args.partials.shape[0];
    const Real infinity = std::numeric_limits<Real>::infinity();
    out.parts.resize(size_t(n));
    out.lse = -infinity;
    out.factor = 0;
    Real peak = -infinity;
    for (int64_t i = 0; i < n; ++i) {
        Real& lse = out.parts[size_t(i)];
        lse = lse_of<Real>(args, i, t, h);
        if (!(lse <= peak) && peak == peak) peak = lse;  // NaN stays the peak
    }
    if (peak == -infinity) {
        out.parts.assign(size_t(n), Real(-1));
        return;  // no part saw a key, so out is 0 for any sink
    }
    Real sum = 0;
    for (Real& part : out.parts) {
        if (part == -infinity) part = -1;
        else sum += part = std::exp(part - peak);
    }
    out.lse = peak + std::log(sum);
    const Real sink = present(args.sink) ? load_one<Real>(args.sink, h) : -infinity;
    if (sink == infinity) return;
    // a sink above the peak scales both sides of the fraction down to avoid overflow
    const Real above = sink > peak ? sink - peak : Real(0);
    out.factor = std::exp(-above) / (sum * std::exp(-above) + std::exp(sink - peak - above));
}

Tensor part_of(const Tensor& partials, int64_t i) {  // [T,H,Dv]
    Tensor out = slice(partials, 0, i, i + 1);
    out.ndim = 3;
    for (int d = 0; d < 3; ++d) {
        out.shape[d] = partials.shape[d + 1];
        out.stride_elems[d] = partials.stride_elems[d + 1];
    }
    return out;
}

template <class Real>
void merge_tokens(const smla_merge_args& args, int64_t begin, int64_t end) {
    const int64_t parts = args.partials.shape[0], width = args.partials.shape[3];
    const Real unit = args.lse_base == SMLA_LSE_LOG2 ? Real(std::numbers::log2e) : Real(1);
    std::vector<Real> part(static_cast<size_t>(width)), out(static_cast<size_t>(width));
    Weights<Real> weights;
    for (int64_t t = begin; t < end; ++t)
        for (int64_t h = 0; h < args.partials.shape[2]; ++h) {
            stop_point();
            weigh(args, t, h, weights);
            out.assign(size_t(width), Real(0));
            for (int64_t i = 0; i < parts; ++i) {
                if (weights.parts[size_t(i)] < 0) continue;  // values of an empty part are never read
                const Real weight = weights.parts[size_t(i)] * weights.factor;
                const Tensor one = part_of(args.partials, i);
                load_row(one, address(one, t, h), width, part.data());
                for (int64_t d = 0; d < width; ++d) out[size_t(d)] += weight * part[size_t(d)];
            }
            store_row(args.out, address(args.out, t, h), width, out.data());
            const Real lse = weights.lse * unit;
            if (present(args.lse_out)) store_row(args.lse_out, address(args.lse_out, t, h), 1, &lse);
        }
}

}  // namespace

void MergeOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.partials.dtype == SMLA_F64) merge_tokens<double>(args, begin, end);
    else merge_tokens<float>(args, begin, end);
}

}  // namespace smla
