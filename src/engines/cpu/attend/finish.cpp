// The end of attend: joins splits in their order, adds the sink, divides, and writes lse and max_logits.
#include "engines/cpu/attend/worker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace smla::cpu_attend {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct HeadSums {
    double peak = -kInfinity;  // natural log, NaN if a logit is NaN
    double total = 0;          // sum of exp(logit - peak)
    int count = 0;             // number of parts that saw a key
    const float* parts[kMaxSplits];
    float weights[kMaxSplits];
};

double sink_factor(double sink, double peak, double total) {
    if (sink == kInfinity) return 0;
    const double above = std::max(0., sink - peak);
    return std::exp(-above) / (total * std::exp(-above) + std::exp(sink - peak - above));
}

// Joins the parts of one head. `unit` turns a score into a logit.
void join(const Plan& plan, const Partial* parts, int head, double unit, HeadSums& sums) {
    for (int s = 0; s < plan.splits; ++s) {
        if (*parts[s].count == 0) continue;
        const double peak = double(parts[s].peak[head]) * unit;
        if (!(peak <= sums.peak) && !std::isnan(sums.peak)) sums.peak = peak;
    }
    const double shift = std::max(sums.peak, -std::numeric_limits<double>::max());
    for (int s = 0; s < plan.splits; ++s) {
        if (*parts[s].count == 0) continue;
        const double weight = plan.splits == 1 ? 1. : std::exp(double(parts[s].peak[head]) * unit - shift);
        sums.total += weight * double(parts[s].sum[head]);
        sums.parts[sums.count] = parts[s].out + int64_t(head) * plan.micro.value_tile;
        sums.weights[sums.count++] = float(weight);
    }
    // keys whose logits are all -inf have no softmax
    if (sums.peak == -kInfinity) sums.total = std::numeric_limits<double>::quiet_NaN();
}

void store_stats(const smla_attend_args& args, int64_t token, int head, const HeadSums& sums) {
    const double unit = args.lse_base == SMLA_LSE_LOG2 ? std::numbers::log2e : 1.;
    float peak = -std::numeric_limits<float>::infinity(), lse = float(lse_of_no_rows(args));
    if (sums.count > 0) {
        lse = float((sums.peak + std::log(sums.total)) * unit);
        peak = float(sums.peak);
    }
    if (present(args.lse)) *reinterpret_cast<float*>(address(args.lse, token, head)) = lse;
    if (present(args.max_logits)) *reinterpret_cast<float*>(address(args.max_logits, token, head)) = peak;
}

}  // namespace

void finish_heads(const Call& call, int64_t token, const Chunk& chunk, int first, int last,
                  const Partial* parts, float* row) {
    const Plan& plan = call.plan;
    const smla_attend_args& args = call.args;
    const int padded = plan.value_tiles * plan.micro.value_tile;
    for (int h = first; h < last; ++h) {
        const int head = chunk.first_head + h;
        HeadSums sums;
        join(plan, parts, h, double(call.factor) * std::numbers::ln2, sums);
        if (sums.count == 0) {
            std::fill_n(row, padded, 0.f);
        } else {
            const double factor = present(args.sink)
                                      ? sink_factor(load_one<double>(args.sink, head), sums.peak, sums.total)
                                      : 1 / sums.total;
            for (int s = 0; s < sums.count; ++s) sums.weights[s] = float(double(sums.weights[s]) * factor);
            plan.micro.finish(
                {sums.parts, sums.weights, plan.tile_stride(chunk.heads), sums.count, plan.value_tiles, row});
        }
        char* out = address(args.out, token, head);
        if (plan.value_width % plan.micro.lanes == 0)
            plan.micro.narrow(row, plan.value_width, args.out.dtype, out);
        else store_row(args.out, out, plan.value_width, row);
        store_stats(args, token, head, sums);
    }
}

}  // namespace smla::cpu_attend
