// Problems of attend and merge.
#include "ops/attend/attend.h"
#include "formats/layouts.h"
#include "kit/problem.h"
#include "kit/rounded_key.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

namespace smla::kit {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Bound on the multiplications of one problem, which runs a dozen times.
constexpr int64_t kWork = 4'000'000, kSmallWork = 20'000;

// Returns log(exp(a) + exp(b)).
double log_add(double a, double b) {
    const double high = std::max(a, b), low = std::min(a, b);
    if (high == -kInfinity || high == kInfinity) return high;
    return high + std::log1p(std::exp(low - high));
}

// Facts about the keys of one token, for the error bounds.
struct TokenFacts {
    double key = 0, value = 0;  // largest L2 norm of a listed row, and of its first Dv values
    int64_t same = 0;           // largest number of times that one row is listed
};

class AttendProblem : public ProblemOf<Stage::attend> {
public:
    explicit AttendProblem(const Draw& draw) : ProblemOf(draw) {
        draw_shape();
        draw_source("primary", args.primary, primary_);
        draw_source("extra", args.extra, extra_);
        draw_outputs();
        if (unwanted()) return;
        for (smla_attend_source* source : {&args.primary, &args.extra})
            if (source->cache.format != SMLA_FORMAT_NONE) fill_rows(*source);
        fill_queries();
        fill_rotation();
        expect();
    }

    void expect() override {
        memory.allow_nothing();
        for (const Tensor* each : {&args.out, &args.lse, &args.max_logits}) memory.allow(*each);
        memory.remember();
        take_shape();
        q_ = Doubles(args.q);
        sink_ = Doubles(args.sink);
        AttendOp::check(args);
        expected_.clear();
        expected_of_f16_.reset();
        facts_.clear();
        for (const smla_precision each : {SMLA_PRECISION_EXACT, SMLA_PRECISION_ROUNDED})
            if (each == SMLA_PRECISION_EXACT || args.precision == each)
                expected_.emplace(each, reference(args, each));
        for (int64_t t = 0; t < tokens_; ++t) facts_.push_back(facts(t));
    }

    void compare(const std::string& kernel, Comparison& out) const override;

private:
    void draw_shape();
    void take_shape() {
        tokens_ = args.q.shape[0];
        heads_ = args.q.shape[1];
        width_ = args.q.shape[2];
        value_width_ = args.out.shape[2];
        listed_ = std::max(args.primary.rows.shape[1], args.extra.rows.shape[1]);
    }
    void draw_source(const char* name, smla_attend_source& source, smla_format format);
    void fill_rows(smla_attend_source& source);
    void fill_record(const CacheView& cache, int64_t row);
    void draw_outputs();
    void fill_queries();
    void fill_rotation();
    struct Expected {
        Doubles out, lse, max_logits;
    };
    Expected reference(const smla_attend_args& call, smla_precision precision) const;
    Expected reference_of_f16_keys() const;
    const Expected& expected(const std::string& kernel) const;
    TokenFacts facts(int64_t token) const;

    int64_t tokens_ = 1, heads_ = 1, width_ = 1, value_width_ = 1, listed_ = 0;
    smla_format primary_ = SMLA_FORMAT_NONE, extra_ = SMLA_FORMAT_NONE;
    float scale_override_ = 0, q_scale_override_ = 0, cache_scale_[2] = {};
    double query_spread_ = 1;
    Doubles q_, sink_;
    std::map<smla_precision, Expected> expected_;
    mutable std::optional<Expected> expected_of_f16_;
    std::vector<TokenFacts> facts_;
};

void AttendProblem::draw_shape() {
    const bool model = of_model() || random.chance(0.6);
    width_ = model ? random.pick<int64_t>({576, 512}) : random.log_between(1, 700);
    value_width_ = model ? 512 : random.between(1, width_);
    if (model && !of_model() && random.chance(0.1)) value_width_ = random.between(1, width_);
    const auto fits = [&](bool none) -> smla_format {
        std::vector<smla_format> out{SMLA_ROW_F32, SMLA_ROW_BF16};
        if (width_ == 576) out.insert(out.end(), {SMLA_FP8_656, SMLA_FP8_576, SMLA_FP8_656, SMLA_NVFP4_352});
        if (width_ == 512)
            out.insert(out.end(),
                       {SMLA_FP8_584, SMLA_FP8_512, SMLA_FP8_528, SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT,
                        SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384});
        if (none) return SMLA_FORMAT_NONE;
        return out[size_t(random.between(of_model() ? 1 : 0, int64_t(out.size()) - 1))];
    };
    extra_ = fits(random.chance(0.55));
    primary_ = fits(extra_ != SMLA_FORMAT_NONE && random.chance(0.2));
    // one token with few heads and a long list, which kernels split over threads or blocks
    const bool few = random.chance(0.15);
    heads_ =
        random.chance(0.3) ? random.pick<int64_t>({8, 16, 32, 64, 128, 256}) : random.log_between(1, 256);
    if (few) heads_ = random.between(1, 4);
    if (small()) heads_ = std::min<int64_t>(heads_, 20);
    tokens_ = few ? 1 : random.chance(0.03) ? 0 : random.log_between(1, 5);
    const int64_t most =
        (small() ? kSmallWork : kWork) / (width_ * heads_ * std::max<int64_t>(tokens_, 1)) + 3;
    listed_ = std::min<int64_t>(most, few ? 1500 : 600);
    const smla_dtype q = of_model() || random.chance(0.5)
                             ? SMLA_BF16
                             : random.pick<smla_dtype>({SMLA_F32, SMLA_F16, SMLA_E4M3});
    args.q = memory.tensor(q, {tokens_, heads_, width_});
    const smla_dtype out =
        q == SMLA_E4M3 ? SMLA_BF16 : random.pick<smla_dtype>({SMLA_F32, SMLA_BF16, SMLA_F16});
    args.out = memory.tensor(out, {tokens_, heads_, value_width_});
    args.precision =
        random.pick<smla_precision>({SMLA_PRECISION_DEFAULT, SMLA_PRECISION_EXACT, SMLA_PRECISION_ROUNDED});
    args.lse_base = random.pick<smla_lse_base>({SMLA_LSE_LN, SMLA_LSE_LOG2});
    args.empty_lse = random.pick<smla_empty_lse>({SMLA_EMPTY_LSE_MINUS_INF, SMLA_EMPTY_LSE_PLUS_INF});
    description = text("T", tokens_, " H", heads_, " ", width_, "/", value_width_, " q ", dtype_name(q),
                       " out ", dtype_name(out), args.precision == SMLA_PRECISION_ROUNDED ? " rounded" : "");
}

void AttendProblem::draw_source(const char* name, smla_attend_source& source, smla_format format) {
    if (format == SMLA_FORMAT_NONE) return;
    const bool all = listed_ > 600 && random.chance(0.7);
    const int64_t k = all ? listed_ : random.chance(0.05) ? 0 : random.log_between(1, listed_);
    source.cache = memory.cache({format, width_, random.between(1, 6), int32_t(random.log_between(1, 80))});
    source.rows = memory.tensor(SMLA_I32, {tokens_, k}, Inner::any);
    if (random.chance(0.6)) source.lengths = memory.tensor(SMLA_I32, {tokens_}, Inner::any);
    if (source.cache.scale > 0 && random.chance(0.3)) {  // the pointer overrides the number
        float& scale = cache_scale_[&source == &args.extra];
        scale = source.cache.scale;
        source.cache.scale = -1;
        source.cache.scale_device = &scale;
    }
    description +=
        text("; ", name, " ", find_format(format)->name, " K", k, " pages of ", source.cache.page_tokens);
}

// Writes only the rows to which a token attends; all others stay NaN.
void AttendProblem::fill_rows(smla_attend_source& source) {
    const CacheView cache(source.cache);
    const int64_t k = source.rows.shape[1];
    const double holes = random.pick({0., 0., 0.1, 0.6, 1.});
    const bool one_row = random.chance(0.05);  // one row is listed repeatedly
    std::vector<int64_t> valid;
    for (int64_t row = 0; row < cache.capacity; ++row)
        if (!cache.hole(row)) valid.push_back(row);
    const auto any = [&] { return valid[size_t(random.between(0, int64_t(valid.size()) - 1))]; };
    // a NaN only affects the tokens that list it
    const int64_t never = random.chance(0.3) && valid.size() > 1 ? any() : -1;
    const int64_t struck = random.chance(0.3) ? random.between(0, 5) : -1;
    for (int64_t t = 0; t < tokens_; ++t) {
        int64_t length = k;
        if (present(source.lengths)) {
            const int64_t given = random.chance(0.05)
                                      ? random.pick<int64_t>({INT32_MIN, -1, INT32_MAX, k + 1})
                                      : random.between(0, k);
            set_int(source.lengths, t, 0, given);
            length = std::clamp<int64_t>(given, 0, k);
        }
        const int64_t again = any();
        for (int64_t j = 0; j < k; ++j) {
            int64_t row = one_row ? again : any();
            const bool nan = row == never;
            if (random.chance(holes))
                row = random.pick<int64_t>({-1, INT32_MIN, cache.capacity, INT32_MAX, -2, cache.page_tokens});
            if (nan && t != struck) row = -1;
            set_int(source.rows, t, j, row);
            if (j < length && !nan && !cache.hole(row)) fill_record(cache, row);
        }
    }
}

void AttendProblem::fill_record(const CacheView& cache, int64_t row) {
    std::vector<float> values(static_cast<size_t>(cache.width));
    double spread = 1;
    for (size_t d = 0; d < values.size(); ++d) {
        if (d % 64 == 0) spread = std::exp2(random.uniform(-3, 1));  // tiles have different scales
        values[d] = float(spread * random.normal());
    }
    cache.encode(row, values.data());
    // writers store powers of two; readers accept any f32
    const bool tiles = cache.format->scale == ScaleKind::f32_tile;
    for (int tile = 0; tiles && tile < layout::Fp8_656::tiles; ++tile) {
        static_assert(layout::Fp8_656::scales_at == layout::Fp8_528::scales_at);
        char* at = cache.at(row).row() + layout::Fp8_656::scales_at + 4 * tile;
        float scale;
        std::memcpy(&scale, at, sizeof scale);
        scale *= row % 2 ? 1.f : float(random.uniform(0.5, 1.5));
        std::memcpy(at, &scale, sizeof scale);
    }
}

void AttendProblem::draw_outputs() {
    if (random.chance(0.5))
        args.sink = memory.tensor(random.chance(0.9) ? SMLA_F32 : SMLA_F64, {heads_}, Inner::any);
    if (random.chance(0.8)) args.lse = memory.tensor(SMLA_F32, {tokens_, heads_}, Inner::any);
    if (random.chance(0.5)) args.max_logits = memory.tensor(SMLA_F32, {tokens_, heads_}, Inner::any);
    if (random.chance(0.3)) {
        args.out_positions = memory.tensor(random.chance(0.5) ? SMLA_I32 : SMLA_I64, {tokens_}, Inner::any);
        const int64_t most = std::min<int64_t>(value_width_ / 2, 128);
        args.out_frequencies = memory.tensor(
            SMLA_F64, {random.chance(0.5) ? std::min<int64_t>(32, most) : random.between(0, most)});
    }
}

void AttendProblem::fill_rotation() {
    if (!present(args.out_positions)) return;
    for (int64_t t = 0; t < tokens_; ++t)
        set_int(args.out_positions, t, 0, random.chance(0.2) ? -5 : random.log_between(1, 1'000'000));
    for (int64_t i = 0; i < args.out_frequencies.shape[0]; ++i)
        set_value(
            args.out_frequencies, i, 0, 0, 0,
            random.chance(0.01) ? random.pick({kInfinity, std::nan("")}) : std::exp(-random.uniform(0, 12)));
    description += text(", ", args.out_frequencies.shape[0], " pairs rotated back");
}

void AttendProblem::fill_queries() {
    query_spread_ = random.pick({0., 0.3, 1., 3., 10.});
    args.softmax_scale = random.uniform(0.3, 2) / std::sqrt(double(width_));
    if (random.chance(0.3)) {
        scale_override_ = float(args.softmax_scale);
        args.softmax_scale = -1;
        args.softmax_scale_device = &scale_override_;
    }
    if (args.q.dtype == SMLA_E4M3) {
        args.q_scale = random.uniform(0.02, 0.2);
        if (random.chance(0.5)) {
            q_scale_override_ = float(args.q_scale);
            args.q_scale = 0;
            args.q_scale_device = &q_scale_override_;
        }
    }
    fill_normal(args.q, random,
                args.q.dtype == SMLA_E4M3 ? query_spread_ / query_scale(args) : query_spread_);
    if (present(args.sink)) {
        fill_normal(args.sink, random, random.pick({1., 10., 100.}));
        for (int64_t h = 0; h < heads_; ++h)
            if (random.chance(0.1))
                set_value(args.sink, h, 0, 0, 0, random.chance(0.5) ? kInfinity : -kInfinity);
    }
    description += text(present(args.sink) ? ", sink" : "", ", queries of ", query_spread_);
}

TokenFacts AttendProblem::facts(int64_t token) const {
    TokenFacts out;
    std::vector<double> key(static_cast<size_t>(width_));
    for (const smla_attend_source* source : {&args.primary, &args.extra}) {
        if (source->cache.format == SMLA_FORMAT_NONE) continue;
        const CacheView cache(source->cache);
        std::vector<int32_t> rows(size_t(source->rows.shape[1]));
        rows.resize(size_t(valid_rows(*source, cache, token, rows.data())));
        std::map<int32_t, int64_t> times;
        for (const int32_t row : rows) {
            out.same = std::max(out.same, ++times[row]);
            cache.decode(row, key.data());
            double square = 0;
            for (int64_t d = 0; d < width_; ++d) {
                square += key[size_t(d)] * key[size_t(d)];
                if (d == value_width_ - 1) out.value = std::max(out.value, std::sqrt(square));
            }
            out.key = std::max(out.key, std::sqrt(square));
        }
    }
    return out;
}

AttendProblem::Expected AttendProblem::reference(const smla_attend_args& call,
                                                 smla_precision precision) const {
    Expected out{Doubles::like(args.out), Doubles::like(make_tensor(&args, SMLA_F64, {tokens_, heads_})),
                 Doubles::like(make_tensor(&args, SMLA_F64, {tokens_, heads_}))};
    smla_attend_args exact = call;
    exact.precision = precision;
    exact.softmax_scale = softmax_scale(args) * query_scale(args);
    exact.q_scale = 0;
    exact.softmax_scale_device = exact.q_scale_device = nullptr;
    exact.lse_base = SMLA_LSE_LN;
    exact.q = q_.tensor();
    exact.sink = sink_.tensor();
    exact.out = out.out.tensor();
    exact.lse = out.lse.tensor();
    exact.max_logits = out.max_logits.tensor();
    AttendOp::check(exact);
    AttendOp::reference(exact, 0, tokens_);
    return out;
}

// Returns the result for f32 rows that are the records' keys rounded to f16.
AttendProblem::Expected AttendProblem::reference_of_f16_keys() const {
    smla_attend_args call = args;
    std::vector<float> values[2];
    for (const bool extra : {false, true}) {
        smla_cache& cache = (extra ? call.extra : call.primary).cache;
        if (!kit::becomes_f16(cache.format)) continue;
        const CacheView from(cache);
        values[extra].assign(size_t(from.capacity * width_), NAN);
        cache.format = SMLA_ROW_F32;
        cache.width = width_;
        cache.data = values[extra].data();
        cache.page_stride_bytes = cache.row_stride_bytes = 0;
        const CacheView to(cache);
        std::vector<double> key(static_cast<size_t>(width_));
        for (int64_t row = 0; row < from.capacity; ++row) {
            if (from.hole(row)) continue;
            from.decode(row, key.data());
            kit::round_key_to_f16(from, row, key.data());
            to.encode(row, std::vector<float>(key.begin(), key.end()).data());
        }
    }
    return reference(call, SMLA_PRECISION_EXACT);
}

// Returns the expected result of a kernel. Keys may be rounded with precision rounded; of the GPU's kernels,
// only one for Hopper rounds keys.
const AttendProblem::Expected& AttendProblem::expected(const std::string& kernel) const {
    const bool rounds = args.precision == SMLA_PRECISION_ROUNDED,
               sm90 = kernel.find("sm90") != std::string::npos;
    // with few heads per block, keys are not rounded
    if (kernel.find("sm90_raw") != std::string::npos) return expected_.at(SMLA_PRECISION_EXACT);
    if (rounds && sm90 && kit::becomes_f16(primary_)) {
        if (!expected_of_f16_) expected_of_f16_.emplace(reference_of_f16_keys());
        return *expected_of_f16_;
    }
    const bool able = kernel.rfind("cuda", 0) != 0 || sm90;
    return expected_.at(rounds && able ? SMLA_PRECISION_ROUNDED : SMLA_PRECISION_EXACT);
}

// Error bounds of f32 and bf16 arithmetic. One head of one token has logits l_j, weights p_j with sum 1 -
// sink, and values v_j.
//   logit    a sum of Dqk products: sum_error(Dqk) * scale * |q| * |k|, and two roundings of the scales
//   weight   relative: the error of the logit, of the exponential and its argument (2^-22 and |l| 2^-24), and
//            2^-8 if weights are multiplied as bf16
//   lse      the error of a logit, and of the sum of up to n weights; a weight that is added m times rounds
//            alike each time: sqrt(n / m) groups' errors of m, sqrt(n m) together
//   out      roundings of the weights differ between rows: together at most sqrt(sum p_j^2 |v_j|^2), and
//            sqrt(m p_max) |v| for a row that is listed up to m times; rows with equal weights round alike:
//            |out|. Products and weights are summed in f32, as for lse, then rounded to the type of out. A
//            row that is rotated back keeps its length; cosines are rounded to f32, and the row is rounded
//            again to the type of out if another stage rotates it.
// p_max = exp(max - lse) is computed from the reference.
void AttendProblem::compare(const std::string& kernel, Comparison& out) const {
    const bool bf16 = kernel.find("bf16") != std::string::npos || kernel.find("amx") != std::string::npos ||
                      kernel.find("mma_attend") != std::string::npos ||
                      kernel.find("sm90") != std::string::npos;
    const Expected& wanted = expected(kernel);
    const Doubles &want = wanted.out, &want_lse = wanted.lse, &want_max = wanted.max_logits;
    const double scale = softmax_scale(args) * query_scale(args);
    const size_t n = want_lse.values.size();
    std::vector<double> logit(n), bound(n), lse(want_lse.values), lse_bound(n);
    const double unit = args.lse_base == SMLA_LSE_LOG2 ? 1.4426950408889634 : 1;
    for (size_t i = 0; i < n; ++i) {
        const TokenFacts& token = facts_[i / size_t(heads_)];
        double query = 0, result = 0;
        for (size_t d = i * size_t(width_); d < (i + 1) * size_t(width_); ++d)
            query += q_.values[d] * q_.values[d];
        for (size_t d = i * size_t(value_width_); d < (i + 1) * size_t(value_width_); ++d)
            if (std::isfinite(want.values[d])) result += want.values[d] * want.values[d];
        const double largest = scale * std::sqrt(query) * token.key;
        logit[i] = (sum_error(width_) + 2 * kF32) * largest;
        const double sink = present(args.sink) ? sink_.values[i % size_t(heads_)] : -kInfinity;
        const double whole = log_add(want_lse.values[i], sink);
        const double exponent = std::isfinite(sink) ? std::fabs(sink) : 0;
        const double weight = logit[i] + 0x1p-22 +
                              kF32 * (largest + exponent + std::fabs(want_lse.values[i])) +
                              (bf16 ? 0x1p-8 : 0);
        const double share =
            std::min(1., double(token.same) * std::exp(want_max.values[i] - want_lse.values[i]));
        const double scaled = std::exp(want_lse.values[i] - whole);
        const double sums = sum_error(2 * listed_ * token.same);
        bound[i] = weight * (2 * std::sqrt(share) * token.value * scaled + std::sqrt(result)) +
                   sums * (std::sqrt(share) * token.value * scaled + std::sqrt(result)) +
                   rounding(args.out.dtype) * std::sqrt(result) +
                   smallest_step(args.out.dtype) * std::sqrt(double(value_width_));
        if (present(args.out_positions))
            bound[i] += (rounding(args.out.dtype) + 4 * kF32) * std::sqrt(result);
        lse[i] *= unit;
        lse_bound[i] = unit * (logit[i] + sums + 0x1p-21 + 4 * kF32 * std::fabs(want_lse.values[i]));
    }
    out.rows_close("out", args.out, want.values, [&](size_t row) { return bound[row]; });
    if (present(args.lse)) out.close("lse", args.lse, lse, [&](size_t i) { return lse_bound[i]; });
    if (present(args.max_logits))
        out.close("max_logits", args.max_logits, want_max.values,
                  [&](size_t i) { return logit[i] + kF32 * std::fabs(want_max.values[i]); });
}

}  // namespace

std::unique_ptr<Problem> make_attend(Stage, const Draw& draw) {
    return std::make_unique<AttendProblem>(draw);
}

}  // namespace smla::kit
