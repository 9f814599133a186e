#include "support.h"

#include "core/numbers.h"
#include "kit/amx_emulator.h"
#include "kit/rounded_key.h"
#include "kit/scratch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <thread>

namespace attend_test {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kGuardTokens = 1;  // tokens before and after the views of q and out

size_t element_bytes(smla_dtype dtype) { return size_t(dtype_bits(dtype)) / 8; }

// A [T,H,D] view in the middle of a larger buffer of 0xFF bytes: NaN for every float type.
Tensor make_view(std::vector<uint8_t>& buffer, smla_dtype dtype, int64_t tokens, int64_t heads,
                 int64_t padding, int64_t width) {
    const int64_t all_heads = heads + padding;
    buffer.assign(size_t((tokens + 2 * kGuardTokens) * all_heads * width) * element_bytes(dtype), 0xFF);
    Tensor view = make_tensor(buffer.data() + size_t(kGuardTokens * all_heads * width) * element_bytes(dtype),
                              dtype, {tokens, heads, width});
    view.stride_elems[0] = all_heads * width;
    return view;
}

}  // namespace

std::string Spec::name() const {
    std::string out = text("T", tokens, " H", heads, " D", width, "/", value_width, " q ", dtype_name(q),
                           " out ", dtype_name(this->out), " precision ", precision);
    for (const SourceSpec* s : {&primary, &extra})
        if (s->format) out += text(" ", find_format(s->format)->name, " K", s->k, " page ", s->page_tokens);
    return out;
}

Problem::Problem(const Spec& given) : spec(given), rng(given.seed) {
    args.struct_size = sizeof args;
    args.precision = spec.precision;
    args.lse_base = spec.base;
    args.softmax_scale = 1.f / std::sqrt(float(spec.width));
    args.q_scale = spec.q == SMLA_E4M3 ? 0.0625f : 0.f;
    args.q = make_view(q, spec.q, spec.tokens, spec.heads, spec.head_padding, spec.width);
    std::normal_distribution<float> normal;
    std::vector<float> row(size_t(spec.width));
    for (int64_t t = 0; t < spec.tokens; ++t)
        for (int64_t h = 0; h < spec.heads; ++h) {
            for (float& v : row) v = 1.5f * normal(rng);
            char* at = address(args.q, t, h);
            if (spec.q != SMLA_E4M3) store_row(args.q, at, spec.width, row.data());
            else
                for (int64_t d = 0; d < spec.width; ++d)
                    at[d] = char(f32_to_e4m3(row[size_t(d)] / args.q_scale));
        }
    make_cache(spec.primary, args.primary.cache, primary_cache);
    make_cache(spec.extra, args.extra.cache, extra_cache);
    make_rows(spec.primary, args.primary, primary_rows, primary_lengths, false);
    make_rows(spec.extra, args.extra, extra_rows, extra_lengths, true);
    if (spec.sink) {
        for (int64_t h = 0; h < spec.heads; ++h) sink.push_back(2 * normal(rng));
        args.sink = make_tensor(sink.data(), SMLA_F32, {spec.heads});
    }
    args.out = make_view(out, spec.out, spec.tokens, spec.heads, spec.head_padding, spec.value_width);
    lse.resize(size_t(spec.tokens * spec.heads) + 1);
    max_logits.resize(lse.size());
    args.lse = make_tensor(lse.data(), SMLA_F32, {spec.tokens, spec.heads});
    args.max_logits = make_tensor(max_logits.data(), SMLA_F32, {spec.tokens, spec.heads});
    poison_outputs();
}

void Problem::make_cache(const SourceSpec& source, smla_cache& cache, std::vector<uint8_t>& bytes) {
    if (source.format == SMLA_FORMAT_NONE) return;
    const Format& format = *find_format(source.format);
    cache.format = source.format;
    cache.width = format.width ? 0 : int32_t(spec.width);
    cache.page_tokens = source.page_tokens;
    cache.page_rows = int32_t(source.page_rows);
    cache.pages = source.pages;
    if (source.row_gap)
        cache.row_stride_bytes = int64_t(format.record_bytes(int32_t(spec.width))) + source.row_gap;
    if (source.page_gap) cache.page_stride_bytes = int64_t(packed_page_bytes(cache)) + source.page_gap;
    cache.scale = format.scale == ScaleKind::per_tensor ? 0.017f : 0.f;
    bytes.assign(cache_bytes(cache) + 64, 0xFF);  // vectors never hand out less than 16-byte alignment
    cache.data = bytes.data();
    if (source.pages == 0) return;
    const CacheView view(cache);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> size(-2.f, 1.f);
    std::vector<float> values(size_t(spec.width));
    for (int64_t r = 0; r < view.capacity; ++r) {
        if (view.hole(r)) continue;
        float scale = 1.f;
        for (size_t d = 0; d < values.size(); ++d) {
            if (d % 64 == 0) scale = std::exp2(size(rng));  // so that tiles differ
            values[d] = scale * normal(rng);
        }
        view.encode(r, values.data());
        // writers store powers of two; readers take any f32: make every other record's scales odd
        if (source.odd_scales && (source.format == SMLA_FP8_656 || source.format == SMLA_FP8_528))
            for (int t = 0; t < 4 && r % 2; ++t) {
                char* at = view.at(r).row() + 512 + 4 * t;
                float odd;
                std::memcpy(&odd, at, 4);
                odd *= 0.5f + float(rng() % 1000) / 1000.f;
                std::memcpy(at, &odd, 4);
            }
    }
}

int32_t Problem::random_row(bool extra) {
    const CacheView cache = view(extra);
    for (;;) {
        const int32_t row = int32_t(rng() % uint64_t(cache.capacity));
        if (!cache.hole(row)) return row;
    }
}

void Problem::make_rows(const SourceSpec& source, smla_attend_source& to, std::vector<int32_t>& rows,
                        std::vector<int32_t>& lengths, bool extra) {
    if (source.format == SMLA_FORMAT_NONE) return;
    const CacheView cache = view(extra);
    std::uniform_real_distribution<double> chance(0, 1);
    const int32_t holes[] = {-1,         INT32_MIN, int32_t(cache.capacity), int32_t(cache.capacity) + 1,
                             2147480000, INT32_MAX};
    for (int64_t i = 0; i < spec.tokens * source.k; ++i)
        rows.push_back(source.pages == 0 || chance(rng) < source.holes ? holes[rng() % 6]
                                                                       : random_row(extra));
    rows.push_back(0);  // data() is never null
    to.rows = make_tensor(rows.data(), SMLA_I32, {spec.tokens, source.k});
    if (!source.lengths) return;
    for (int64_t t = 0; t < spec.tokens; ++t) lengths.push_back(int32_t(rng() % uint64_t(source.k + 1)));
    lengths.push_back(0);
    to.lengths = make_tensor(lengths.data(), SMLA_I32, {spec.tokens});
}

float Problem::value(int64_t t, int64_t h, int64_t d) const {
    float v;
    load_row(args.out, address(args.out, t, h, d), 1, &v);
    return v;
}

void Problem::poison_outputs() {
    std::fill(out.begin(), out.end(), uint8_t(0xFF));
    std::fill(lse.begin(), lse.end(), std::numeric_limits<float>::quiet_NaN());
    std::fill(max_logits.begin(), max_logits.end(), std::numeric_limits<float>::quiet_NaN());
}

void Problem::expect_canaries() const {
    const size_t bytes = element_bytes(spec.out), row = size_t(spec.value_width) * bytes;
    const int64_t all_heads = spec.heads + spec.head_padding;
    for (int64_t t = -kGuardTokens; t < spec.tokens + kGuardTokens; ++t)
        for (int64_t h = 0; h < all_heads; ++h) {
            if (t >= 0 && t < spec.tokens && h < spec.heads) continue;
            const uint8_t* at = out.data() + size_t((t + kGuardTokens) * all_heads + h) * row;
            ASSERT_TRUE(std::all_of(at, at + row, [](uint8_t b) { return b == 0xFF; }))
                << "written outside the view at token " << t << " head " << h;
        }
    ASSERT_TRUE(std::isnan(lse.back()) && std::isnan(max_logits.back()));
}

namespace {

void round_key(const CacheView& cache, int64_t row, KeyType type, std::vector<double>& key) {
    if (type == KeyType::exact) return;
    if (type == KeyType::bf16) {
        for (double& v : key) v = double(round_to_bf16(float(v)));
        return;
    }
    // the scales of other formats are powers of two
    if (kit::becomes_f16(cache.format->id)) kit::round_key_to_f16(cache, row, key.data());
}

// The valid keys of a token, as the kernel may round them.
std::vector<std::vector<double>> keys_of(const Problem& problem, KeyType rounded, int64_t t) {
    const smla_attend_args& args = problem.args;
    const size_t width = size_t(problem.spec.width);
    std::vector<std::vector<double>> keys;
    for (const smla_attend_source* source : {&args.primary, &args.extra}) {
        if (source->cache.format == SMLA_FORMAT_NONE) continue;
        const CacheView cache(source->cache);
        int64_t n = source->rows.shape[1];
        if (present(source->lengths)) n = std::clamp<int64_t>(load_int(source->lengths, t), 0, n);
        for (int64_t j = 0; j < n; ++j) {
            const int64_t row = load_int(source->rows, t, j);
            if (row < 0 || row >= cache.capacity || row % cache.page_rows >= cache.page_tokens) continue;
            keys.emplace_back(width);
            cache.decode(row, keys.back().data());
            if (args.precision == SMLA_PRECISION_ROUNDED && cache.format->scale != ScaleKind::none)
                round_key(cache, row, rounded, keys.back());
        }
    }
    return keys;
}

// Heads [first, end) of a token.
void expect_heads(const Problem& problem, KeyType rounded, int64_t t, int64_t first, int64_t end,
                  Expected& out) {
    const Spec& spec = problem.spec;
    const smla_attend_args& args = problem.args;
    const size_t width = size_t(spec.width), value_width = size_t(spec.value_width);
    const std::vector<std::vector<double>> keys = keys_of(problem, rounded, t);
    std::vector<double> q(width), of_all(value_width);  // of_all: of all keys with a weight of 1
    for (const auto& key : keys)
        for (size_t d = 0; d < value_width; ++d) of_all[d] += std::fabs(key[d]);
    for (int64_t h = first; h < end; ++h) {
        load_row(args.q, address(args.q, t, h), spec.width, q.data());
        const double scale = double(args.softmax_scale) * (spec.q == SMLA_E4M3 ? double(args.q_scale) : 1.);
        std::vector<double> logits;
        double peak = -kInfinity, sum = 0;
        for (const auto& key : keys) {
            double dot = 0;
            for (size_t d = 0; d < width; ++d) dot += q[d] * key[d];
            logits.push_back(scale * dot);
            if (!(logits.back() <= peak) && !std::isnan(peak)) peak = logits.back();
        }
        const size_t row = size_t(t * spec.heads + h);
        double* result = out.out.data() + row * value_width;
        double* magnitude = out.magnitude.data() + row * value_width;
        double* largest = out.largest.data() + row * value_width;
        for (size_t j = 0; j < keys.size(); ++j) {
            const double p = std::exp(logits[j] - peak);
            sum += p;
            for (size_t d = 0; d < value_width; ++d) {
                result[d] += p * keys[j][d];
                magnitude[d] += p * std::fabs(keys[j][d]);
            }
        }
        double denominator = sum;
        if (present(args.sink)) denominator += std::exp(double(load_one<float>(args.sink, h)) - peak);
        for (size_t d = 0; d < value_width && !keys.empty(); ++d) {
            result[d] /= denominator;
            magnitude[d] /= denominator;
            largest[d] = of_all[d] / denominator;
        }
        const double unit = spec.base == SMLA_LSE_LOG2 ? std::numbers::log2e : 1.;
        out.lse[row] = keys.empty() ? -kInfinity : (peak + std::log(sum)) * unit;
        out.max_logits[row] = peak;
    }
}

// body(0) to body(count - 1), on all cores of the machine.
template <class Body>
void on_all_cores(int64_t count, const Body& body) {
    std::atomic<int64_t> next = 0;
    const auto work = [&] {
        for (int64_t i; (i = next.fetch_add(1)) < count;) body(i);
    };
    std::vector<std::thread> others;
    const int64_t threads = std::min<int64_t>(count, std::thread::hardware_concurrency());
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
}

}  // namespace

Expected oracle(const Problem& problem, KeyType rounded) {
    const Spec& spec = problem.spec;
    const size_t rows = size_t(spec.tokens * spec.heads);
    Expected out;
    out.out.assign(rows * size_t(spec.value_width), 0);
    out.magnitude = out.largest = out.out;
    out.lse.assign(rows, 0), out.max_logits.assign(rows, 0);
    constexpr int64_t kHeads = 16;  // of a task
    const int64_t groups = (spec.heads + kHeads - 1) / kHeads;
    on_all_cores(spec.tokens * groups, [&](int64_t task) {
        const int64_t first = task % groups * kHeads;
        expect_heads(problem, rounded, task / groups, first, std::min(first + kHeads, spec.heads), out);
    });
    return out;
}

Env best_env(ThreadPool* pool) {
    Env env;
    kit::emulate_amx();  // where it cannot, kernels for AMX refuse
    env.isa = best_isa();
    env.pool = pool;
    return env;
}

std::vector<std::string> kernels(const smla_attend_args& args, const Env& env) {
    std::vector<std::string> out;
    for (const Verdict& verdict : explain_stage<Stage::attend>(args, env))
        if (verdict.refusal.empty()) out.push_back(verdict.kernel);
    return out;
}

namespace {

Env demanding(const std::string& kernel, Env env) {
    env.demanded[size_t(Stage::attend)] = kernel;
    return env;
}

}  // namespace

size_t workspace_of(const std::string& kernel, const smla_attend_args& args, const Env& env, size_t budget) {
    return stage_workspace<Stage::attend>(args, demanding(kernel, env), budget);
}

bool Bits::operator==(const Bits& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return out == other.out && same(lse, other.lse) && same(max_logits, other.max_logits);
}

void run_kernel(const std::string& kernel, const smla_attend_args& args, const Env& env, size_t budget) {
    Env with = demanding(kernel, env);
    const kit::Scratch scratch(*env.device, workspace_of(kernel, args, env, budget));
    with.workspace = scratch.get();
    ASSERT_EQ(run_stage<Stage::attend>(args, with), kernel);
    ASSERT_EQ(scratch.complaint(), "") << kernel;
}

namespace {

// How far an output may be from the truth, as a share of sum_j p_j |v_j| and of the output itself.
//   f32 kernels: 5e-5. A dot of 576 terms errs by a few 1e-6 of sum |q k| * scale (about 15 here), which is
//   the relative error of a weight; a factor of ten above what is seen. bf16 kernels: each weight is rounded
//   to bf16 once, at most 2^-8 of it; K and q are exact, so nothing else is lost. amx kernels are such.
double weight_error(const std::string& kernel) {
    const bool bf16 = kernel.find("_bf16_") != std::string::npos || kernel.find("_amx_") != std::string::npos;
    return bf16 ? 0x1p-8 + 5e-5 : 5e-5;
}
double output_rounding(smla_dtype dtype) {
    return dtype == SMLA_BF16 ? 0x1p-8 : dtype == SMLA_F16 ? 0x1p-11 : 0;
}

}  // namespace

void expect_close(const std::string& kernel, const Problem& problem, const Expected& expected, double more) {
    const Spec& spec = problem.spec;
    const double error = weight_error(kernel) + more, rounding = output_rounding(spec.out);
    const double f16_step = spec.out == SMLA_F16 ? 0x1p-24 : 1e-30;
    // Weights in f16 are multiples of 2^-31 of the largest or finer (peak_weight_log2 in
    // src/engines/cuda/attend/sm90/config.h), so rounding moves them by half of that.
    const bool f16_weights = kernel.find("sm90") != std::string::npos && spec.primary.format == SMLA_FP8_656;
    const double weight_step = f16_weights ? 0x1p-32 : 0;
    for (int64_t t = 0; t < spec.tokens; ++t)
        for (int64_t h = 0; h < spec.heads; ++h) {
            const size_t at = size_t(t * spec.heads + h);
            for (int64_t d = 0; d < spec.value_width; ++d) {
                const size_t i = at * size_t(spec.value_width) + size_t(d);
                const double got = double(problem.value(t, h, d)), want = expected.out[i];
                if (std::isnan(want) && std::isnan(got)) continue;
                const double bound = error * expected.magnitude[i] + weight_step * expected.largest[i] +
                                     rounding * std::fabs(want) + f16_step;
                ASSERT_LE(std::fabs(got - want), bound)
                    << kernel << " [" << t << "," << h << "," << d << "] got " << got << " want " << want
                    << "; " << spec.name();
                ASSERT_FALSE(std::isnan(got) || std::isnan(want))
                    << kernel << " got " << got << " want " << want;
            }
            const auto same = [](double got, double want) {
                return (std::isnan(got) && std::isnan(want)) || got == want ||
                       (std::isfinite(want) && std::fabs(got - want) <= 2e-5 * (1 + std::fabs(want)));
            };
            ASSERT_TRUE(same(problem.lse[at], expected.lse[at]))
                << kernel << " lse [" << t << "," << h << "] " << problem.lse[at] << " want "
                << expected.lse[at];
            ASSERT_TRUE(same(problem.max_logits[at], expected.max_logits[at]))
                << kernel << " max_logits " << problem.max_logits[at] << " want " << expected.max_logits[at];
        }
}

void with_huge_logits(std::initializer_list<int> heads, std::initializer_list<smla_format> formats,
                      const std::function<void(Problem&)>& check) {
    for (const int h : heads)
        for (const smla_format format : formats)
            for (const float by : {0x1p20f, 0x1p26f, 0x1p40f, 0x1p85f}) {
                Problem problem({.tokens = 2,
                                 .heads = h,
                                 .primary = {.format = format, .k = 300},
                                 .precision = SMLA_PRECISION_EXACT,
                                 .sink = true});
                problem.args.softmax_scale *= by;
                SCOPED_TRACE(text("times ", by));
                check(problem);
                if (testing::Test::HasFatalFailure()) return;
            }
}

void check_all(Problem& problem, ThreadPool* pool) {
    SCOPED_TRACE(problem.spec.name());
    const Expected expected = oracle(problem);
    const Env env = best_env(pool);
    const auto accepting = kernels(problem, env);
    ASSERT_FALSE(accepting.empty());
    const Spec& spec = problem.spec;
    const int64_t products = spec.tokens * spec.heads * spec.width * (spec.primary.k + spec.extra.k);
    constexpr int64_t kMostOfLoops = 1 << 20;  // more take plain loops long under a sanitizer
    for (const std::string& kernel : accepting) {
        if (kernel == "cpu_generic_attend" && accepting.size() > 1 && products > kMostOfLoops) continue;
        problem.poison_outputs();
        run_kernel(kernel, problem, env);
        expect_close(kernel, problem, expected);
        problem.expect_canaries();
        if (testing::Test::HasFatalFailure()) return;
    }
}

void check_all(const Spec& spec, ThreadPool* pool) {
    Problem problem(spec);
    check_all(problem, pool);
}

}  // namespace attend_test
