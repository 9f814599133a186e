#include "attention.h"

#include "core/numbers.h"
#include "formats/format.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace contract {

Attention::Attention(const Shape& s) : CallOf("attend", SMLA_STAGE_ATTEND, smla_attend) {
    memory.rng.seed(s.seed);
    tokens = s.tokens;
    with.softmax_scale = 1 / std::sqrt(double(s.width));
    with.q_scale = s.q == SMLA_E4M3 ? 0.5 : 0;
    add_normal(with.q, s.q, {s.tokens, s.heads, s.width}, s.width);  // a padded head
    const auto add_source = [&](bool extra, smla_format format, int32_t page_tokens, int64_t rows) {
        smla_attend_source& source = this->source(extra);
        add_cache(source.cache, {format, int32_t(s.width), page_tokens, extra ? 0 : s.page_rows, s.pages});
        fill_int(add(source.rows, SMLA_I32, {s.tokens, rows}, 3, 2),
                 [&](int64_t, int64_t) { return s.pages ? random_row(extra) : -1; });
    };
    add_source(false, s.format, s.page_tokens, s.rows);
    if (s.extra_format) add_source(true, s.extra_format, s.extra_page_tokens, s.extra_rows);
    add(with.out, s.out, {s.tokens, s.heads, s.value_width}, s.value_width);
    add(with.lse, s.q == SMLA_F64 ? SMLA_F64 : SMLA_F32, {s.tokens, s.heads}, 3, 2);
    add(with.max_logits, with.lse.dtype, {s.tokens, s.heads});
}

int32_t Attention::random_row(bool extra) {
    const smla_cache& cache = source(extra).cache;
    for (;;) {
        const auto row = int32_t(memory.rng() % uint64_t(capacity(cache)));
        if (is_row(cache, row)) return row;
    }
}

void Attention::add_lengths(bool extra) {
    smla_attend_source& from = source(extra);
    const int64_t width = from.rows.shape[1];
    fill_int(add(from.lengths, SMLA_I32, {tokens}, 0, 2), [&](int64_t, int64_t) { return width; });
}

void Attention::add_sink(double value) {
    if (with.sink.ndim == 0) add(with.sink, SMLA_F32, {with.q.shape[1]}, 0, 2);
    for (int64_t h = 0; h < with.q.shape[1]; ++h) set(with.sink, h, 0, 0, value);
}

void Attention::fill_listed() {
    for (const bool extra : {false, true}) {
        const smla_attend_source& from = source(extra);
        if (from.cache.format == SMLA_FORMAT_NONE) continue;
        for (int64_t t = 0; t < tokens; ++t) {
            int64_t n = from.rows.shape[1];
            if (from.lengths.ndim) n = std::clamp<int64_t>(get_int(from.lengths, t), 0, n);
            for (int64_t j = 0; j < n; ++j)
                if (is_row(from.cache, get_int(from.rows, t, j)))
                    write_normal(from.cache, get_int(from.rows, t, j), memory.rng);
        }
    }
    memory.remember();
}

namespace {

bool rounds_keys(const smla_attend_args& args) {
    return args.precision == SMLA_PRECISION_ROUNDED && !on_gpu();
}

std::vector<std::vector<double>> listed_keys(const smla_attend_args& args, int64_t t) {
    std::vector<std::vector<double>> keys;
    for (const smla_attend_source* source : {&args.primary, &args.extra}) {
        if (source->cache.format == SMLA_FORMAT_NONE) continue;
        int64_t n = source->rows.shape[1];
        if (source->lengths.ndim) n = std::clamp<int64_t>(get_int(source->lengths, t), 0, n);
        for (int64_t j = 0; j < n; ++j) {
            const int64_t row = get_int(source->rows, t, j);
            if (!is_row(source->cache, row)) continue;
            keys.push_back(read_record(source->cache, row));
            if (rounds_keys(args) && source->cache.format >= SMLA_FP8_656)
                for (double& v : keys.back()) v = double(smla::round_to_bf16(float(v)));
        }
    }
    return keys;
}

void attend_head(const smla_attend_args& args, const std::vector<std::vector<double>>& keys, int64_t t,
                 int64_t h, Truth& truth) {
    const size_t width = size_t(args.q.shape[2]), value_width = size_t(args.out.shape[2]);
    double scale = args.softmax_scale_device ? double(*args.softmax_scale_device) : args.softmax_scale;
    if (args.q.dtype == SMLA_E4M3) scale *= args.q_scale_device ? double(*args.q_scale_device) : args.q_scale;
    std::vector<double> logits, q(width);
    for (size_t d = 0; d < width; ++d) q[d] = get(args.q, t, h, int64_t(d));
    double peak = -INFINITY, sum = 0;
    for (const auto& key : keys) {
        double dot = 0;
        for (size_t d = 0; d < width; ++d) dot += q[d] * key[d];
        logits.push_back(scale * dot);
        peak = std::max(peak, logits.back());
    }
    const double sink = args.sink.ndim ? get(args.sink, h) : -INFINITY;
    for (const double logit : logits) sum += std::exp(logit - peak);
    const size_t at = truth.out.size();
    truth.out.resize(at + value_width, 0);
    truth.magnitude.resize(at + value_width, 0);
    // relative to the larger of peak and sink, so that nothing overflows
    const double top = std::max(peak, sink), denominator = sum * std::exp(peak - top) + std::exp(sink - top);
    for (size_t j = 0; j < keys.size() && sink < INFINITY; ++j) {
        const double weight = std::exp(logits[j] - top) / denominator;
        for (size_t d = 0; d < value_width; ++d) {
            truth.out[at + d] += weight * keys[j][d];
            truth.magnitude[at + d] += weight * std::fabs(keys[j][d]);
        }
    }
    const double unit = args.lse_base == SMLA_LSE_LOG2 ? std::numbers::log2e : 1.;
    const double empty = args.empty_lse == SMLA_EMPTY_LSE_PLUS_INF ? INFINITY : -INFINITY;
    truth.lse.push_back(keys.empty() ? empty : (peak + std::log(sum)) * unit);
    truth.max_logits.push_back(peak);
}

// How far a result may be from the truth, as a share of sum(weight * |value|): what tests/attend derives for
// these kernels. f32: a logit errs by some 1e-6 of sum |q k| * scale, and a weight by as much. bf16 products:
// each weight is rounded to bf16, 2^-8 of it at most, nothing else. f64: 576 roundings of 2^-53 in a logit of
// some tens.
double weight_error(const Engine& engine, const smla_attend_args& args) {
    if (args.q.dtype == SMLA_F64) return 1e-12;
    const bool bf16 = engine.engine == SMLA_ENGINE_CUDA || engine.name.find("bf16") != std::string::npos ||
                      engine.name.find("amx") != std::string::npos;
    return bf16 ? 0x1p-8 + 5e-5 : 5e-5;
}
double rounding(smla_dtype dtype) { return dtype == SMLA_BF16 ? 0x1p-8 : dtype == SMLA_F16 ? 0x1p-11 : 1e-7; }

bool close(double got, double want, double relative) {
    return got == want || (std::isfinite(want) && std::fabs(got - want) <= relative * (1 + std::fabs(want)));
}

}  // namespace

Truth truth_of(const smla_attend_args& args) {
    Truth truth;
    for (int64_t t = 0; t < args.q.shape[0]; ++t) {
        const auto keys = listed_keys(args, t);
        for (int64_t h = 0; h < args.q.shape[1]; ++h) attend_head(args, keys, t, h, truth);
    }
    return truth;
}

testing::AssertionResult agrees(const Engine& engine, const smla_attend_args& args, const Truth& truth) {
    const int64_t heads = args.q.shape[1], value_width = args.out.shape[2];
    const double error = weight_error(engine, args), stat_error = args.q.dtype == SMLA_F64 ? 1e-12 : 2e-5;
    for (int64_t t = 0; t < args.q.shape[0]; ++t)
        for (int64_t h = 0; h < heads; ++h) {
            const size_t row = size_t(t * heads + h);
            for (int64_t d = 0; d < value_width; ++d) {
                const size_t i = row * size_t(value_width) + size_t(d);
                const double got = get(args.out, t, h, d), want = truth.out[i];
                const double bound = error * truth.magnitude[i] + rounding(args.out.dtype) * std::fabs(want) +
                                     (args.out.dtype == SMLA_F16 ? 0x1p-24 : 0);  // half its smallest step
                if (!(std::fabs(got - want) <= bound))
                    return testing::AssertionFailure()
                           << engine.name << " out[" << t << "," << h << "," << d << "] " << got << ", true "
                           << want << " within " << bound;
            }
            if (args.lse.ndim && !close(get(args.lse, t, h), truth.lse[row], stat_error))
                return testing::AssertionFailure() << engine.name << " lse[" << t << "," << h << "] "
                                                   << get(args.lse, t, h) << ", true " << truth.lse[row];
            if (args.max_logits.ndim && !close(get(args.max_logits, t, h), truth.max_logits[row], stat_error))
                return testing::AssertionFailure()
                       << engine.name << " max_logits[" << t << "," << h << "] " << get(args.max_logits, t, h)
                       << ", true " << truth.max_logits[row];
        }
    return testing::AssertionSuccess();
}

void expect_truth(Attention& problem, const Options& options) {
    const Truth truth = truth_of(problem.with);
    for (const Engine& engine : engines()) {
        if (problem.with.q.dtype == SMLA_F64 && engine.engine == SMLA_ENGINE_CUDA) continue;
        const Context context(engine, options);
        problem.memory.reset();
        run_exactly(problem, context);
        if (testing::Test::HasFatalFailure()) return;
        ASSERT_TRUE(agrees(engine, problem.with, truth));
        ASSERT_TRUE(problem.memory.only_allowed_changed()) << engine.name;
    }
}

}  // namespace contract
