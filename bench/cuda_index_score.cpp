// Checks of score and score_select on the GPU: against double arithmetic within the rounding bound, against
// the reference bit for bit where sums are exact, with NaN wherever nothing may be read and canaries where
// nothing may be written.
#include "cuda_index_run.h"
#include "formats/layouts.h"
#include "ops/score/score.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

namespace smla::bench {

namespace {

// Those for Hopper (precision exact) take some shapes only.
constexpr const char* kKernels[] = {"cuda_sm90_pages_score", "cuda_sm90_score", "cuda_mma_score",
                                    "cuda_generic_score"};
bool for_hopper(const std::string& kernel) { return kernel.starts_with("cuda_sm90"); }
constexpr float kCanary = 12345.678f;

struct ScoreCase {
    smla_format format = SMLA_INDEX_FP8_132;
    smla_dtype q = SMLA_E4M3;
    int64_t tokens = 6, heads = 64, width = 128, columns = 300, requests = 2;
    int32_t page_tokens = 64, page_rows = 0;
    int64_t page_padding = 0;  // bytes after a packed page
    bool paged = true, exact = false, hostile = true;
    int fill = 0;
    uint32_t seed = 1;
};

std::string name_of(const ScoreCase& c) {
    return text(find_format(c.format)->name, " q ", dtype_name(c.q), " T ", c.tokens, " H ", c.heads, " D ",
                c.width, " N ", c.columns, " page ", c.page_tokens, c.paged ? " paged" : " ragged",
                c.exact ? " exact" : "", c.fill ? " fill" : "");
}

// One problem in host memory; place() copies it to the GPU.
class Problem {
public:
    explicit Problem(const ScoreCase& shape) : shape(shape), random_(shape.seed) {
        make_windows();
        make_query();
        make_keys();
    }

    ScoreCase shape;
    smla_score_args host{};

    smla_score_args place(Gpu& gpu) {
        smla_score_args out = host;
        out.q.data = gpu.upload(q_bytes_);
        if (shape.q == SMLA_E2M1) out.q_scales.data = gpu.upload(q_scales_);
        out.w.data = gpu.upload(w_);
        out.keys.data = gpu.upload(key_bytes_);
        if (shape.paged) {
            out.block_table.data = gpu.upload(table_);
            out.request_of_token.data = gpu.upload(requests_);
        }
        out.starts.data = gpu.upload(starts_);
        out.ends.data = gpu.upload(ends_);
        for (Tensor* t :
             {&out.q, &out.q_scales, &out.w, &out.block_table, &out.request_of_token, &out.starts, &out.ends})
            if (t->ndim) t->device_type = SMLA_CUDA;
        out.keys.device_type = SMLA_CUDA;
        return out;
    }
    ColumnWindow window(int64_t token) const {
        return clamp_window(host.starts, host.ends, token, shape.columns);
    }

    // The logit in double and how far f32 sums may be from it: tests/index/expected.h has the analysis.
    struct Want {
        double logit, bound;
    };
    Want want(int64_t t, int64_t row) const {
        const CacheView keys(host.keys);
        std::vector<double> key(static_cast<size_t>(shape.width));
        keys.decode(row, key.data());
        double logit = 0, magnitude = 0;
        for (int64_t h = 0; h < shape.heads; ++h) {
            double dot = 0, absolute = 0;
            for (int64_t d = 0; d < shape.width; ++d) {
                const double product = q_[size_t((t * shape.heads + h) * shape.width + d)] * key[size_t(d)];
                dot += product;
                absolute += std::fabs(product);
            }
            const double w = w_[size_t(t * shape.heads + h)];
            logit += w * (dot > 0 ? dot : 0);
            magnitude += std::fabs(w) * absolute;
        }
        const double d = double(shape.width), h = double(shape.heads);
        return {logit, (d + h + 3) * 0x1p-24 * magnitude + d * h * 0x1p-126};
    }
    int64_t row(int64_t token, int64_t column) const {
        const CacheView keys(host.keys);
        KeyColumns columns(host, keys);
        columns.set_token(token);
        return columns.row(column);
    }
    void poison(int64_t row) {
        std::vector<float> key(size_t(shape.width), std::nanf(""));
        CacheView(host.keys).encode(row, key.data());
    }

private:
    float value() {
        if (shape.exact) return float(int(random_() % 5) - 2);
        return normal_(random_);
    }
    void make_windows() {
        const int64_t n = shape.columns;
        for (int64_t t = 0; t < shape.tokens; ++t) {
            const int64_t hostile[][2] = {{0, n}, {n / 3, n - 1}, {-9, n + 99}, {n / 2, n / 4},
                                          {0, 0}, {n - 1, n},     {17, 18},     {INT32_MIN, INT32_MAX}};
            const auto& window = hostile[shape.hostile ? size_t(t * 5 + shape.seed) % 8 : 0];
            starts_.push_back(int32_t(window[0]));
            ends_.push_back(int32_t(window[1]));
            const int64_t request = t * shape.requests / shape.tokens;
            requests_.push_back(shape.hostile && t % 13 == 11 ? (t % 2 ? -1 : 1000) : int32_t(request));
        }
        host.struct_size = sizeof host;
        host.fill = shape.fill;
        host.starts = make_tensor(starts_.data(), SMLA_I32, {shape.tokens});
        host.ends = make_tensor(ends_.data(), SMLA_I32, {shape.tokens});
    }
    void make_query() {
        const int64_t count = shape.tokens * shape.heads * shape.width;
        q_bytes_.resize(size_t(count * dtype_bits(shape.q) / 8));
        q_scales_.resize(size_t(count / 32));
        for (uint8_t& scale : q_scales_) scale = uint8_t(127 + (shape.exact ? 0 : int(random_() % 7) - 3));
        for (int64_t i = 0; i < count; ++i) {
            float x = value();
            if (shape.q == SMLA_F32) {
                reinterpret_cast<float*>(q_bytes_.data())[i] = x;
            } else if (shape.q == SMLA_BF16) {
                const uint16_t bits = f32_to_bf16(x);
                std::memcpy(q_bytes_.data() + 2 * i, &bits, 2);
                x = bf16_to_f32(bits);
            } else if (shape.q == SMLA_E4M3) {
                q_bytes_[size_t(i)] = f32_to_e4m3(x);
                x = e4m3_to_f32(q_bytes_[size_t(i)]);
            } else {
                const uint8_t code = f32_to_e2m1(x);
                uint8_t& byte = q_bytes_[size_t(i / 2)];
                byte = i % 2 ? uint8_t((byte & 15) | code << 4) : code;
                x = e2m1_to_f32(code) * e8m0_to_f32(q_scales_[size_t(i / 32)]);
            }
            q_.push_back(x);
        }
        for (int64_t i = 0; i < shape.tokens * shape.heads; ++i) {
            const float w = normal_(random_);
            w_.push_back(shape.exact ? std::copysign(std::exp2(float(random_() % 3)), w) : w);
        }
        host.q = make_tensor(q_bytes_.data(), shape.q, {shape.tokens, shape.heads, shape.width});
        if (shape.q == SMLA_E2M1)
            host.q_scales =
                make_tensor(q_scales_.data(), SMLA_E8M0, {shape.tokens, shape.heads, shape.width / 32});
        host.w = make_tensor(w_.data(), SMLA_F32, {shape.tokens, shape.heads});
    }
    void make_keys() {
        smla_cache& cache = host.keys;
        const int64_t blocks = std::max<int64_t>(1, ceil_div(shape.columns, shape.page_tokens));
        cache.format = shape.format;
        cache.width = int32_t(shape.width);
        cache.page_tokens = shape.page_tokens;
        cache.page_rows = shape.page_rows;
        cache.pages = (shape.paged ? shape.requests : 1) * blocks + 2;
        if (shape.page_padding)
            cache.page_stride_bytes = int64_t(packed_page_bytes(cache)) + shape.page_padding;
        key_bytes_.assign(cache_bytes(cache), char(0xff));  // NaN in every format of keys
        cache.data = key_bytes_.data();
        std::vector<int32_t> pages(static_cast<size_t>(cache.pages));
        for (size_t i = 0; i < pages.size(); ++i) pages[i] = int32_t(i);
        if (shape.paged) std::shuffle(pages.begin(), pages.end(), random_);
        for (int64_t r = 0; r < shape.requests; ++r)
            for (int64_t b = 0; b <= blocks; ++b) {
                const bool hole = shape.hostile && (r + b) % 7 == 5;
                table_.push_back(b == blocks ? pages.back()
                                 : hole      ? (b % 2 ? -1 : INT32_MAX)
                                             : pages[size_t(r * blocks + b)]);
            }
        if (shape.paged) {
            host.block_table = make_tensor(table_.data(), SMLA_I32, {shape.requests, blocks + 1});
            host.request_of_token = make_tensor(requests_.data(), SMLA_I32, {shape.tokens});
        }
        // Only what some window sees is a number.
        std::vector<float> key(static_cast<size_t>(shape.width));
        std::vector<bool> written(size_t(CacheView(cache).capacity));
        for (int64_t t = 0; t < shape.tokens; ++t)
            for (int64_t j = window(t).begin; j < window(t).end; ++j) {
                const int64_t at = row(t, j);
                if (at < 0 || written[size_t(at)]) continue;
                written[size_t(at)] = true;
                for (float& each : key) each = value();
                CacheView(cache).encode(at, key.data());
                if (shape.format != SMLA_INDEX_FP8_132 || shape.exact) continue;
                const RecordAt record = CacheView(cache).at(at);
                const float scale = std::uniform_real_distribution<float>(0.001f, 0.01f)(random_);
                std::memcpy(record.page + layout::IndexFp8_132::scale_at(shape.page_tokens, record.offset),
                            &scale, 4);
            }
    }

    std::mt19937 random_;
    std::normal_distribution<float> normal_;
    std::vector<uint8_t> q_bytes_, q_scales_;
    std::vector<double> q_;
    std::vector<float> w_;
    std::vector<char> key_bytes_;
    std::vector<int32_t> table_, requests_, starts_, ends_;
};

// Logits of a kernel, rows 3 further apart than they are long, canaries between them.
std::vector<float> run_score(Gpu& gpu, Problem& problem, const char* kernel, int64_t first = 0,
                             int64_t last = -1) {
    if (last < 0) last = problem.shape.tokens;
    const int64_t stride = problem.shape.columns + 3;
    std::vector<float> memory(size_t((last - first) * stride), kCanary);
    smla_score_args args = problem.place(gpu);
    for (Tensor* t : {&args.q, &args.q_scales, &args.w, &args.request_of_token, &args.starts, &args.ends})
        if (t->ndim) *t = slice(*t, 0, first, last);
    args.logits = Gpu::tensor(gpu.upload(memory), SMLA_F32, {last - first, problem.shape.columns});
    args.logits.stride_elems[0] = stride;
    if (gpu.refuses<Stage::score>(kernel, args)) {
        gpu.clear();
        return {};
    }
    gpu.run<Stage::score>(kernel, args);
    auto out = gpu.download(static_cast<float*>(args.logits.data), memory.size());
    gpu.clear();
    return out;
}

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void check_case(Gpu& gpu, Report& report, const ScoreCase& shape) {
    Problem problem(shape);
    const int64_t stride = shape.columns + 3;
    std::vector<float> reference(size_t(shape.tokens * stride), kCanary);
    problem.host.logits = make_tensor(reference.data(), SMLA_F32, {shape.tokens, shape.columns});
    problem.host.logits.stride_elems[0] = stride;
    ScoreOp::reference(problem.host, 0, shape.tokens);
    for (const char* kernel : kKernels) {
        const auto got = run_score(gpu, problem, kernel);
        if (got.empty()) {
            report.check(for_hopper(kernel) || shape.width != 128 || shape.q == SMLA_F32 ||
                             shape.format == SMLA_ROW_F32 || !shape.tokens,
                         text(kernel, " refuses ", name_of(shape)));
            continue;
        }
        std::string wrong;
        double worst = 0;
        for (int64_t i = 0; i < int64_t(got.size()) && wrong.empty(); ++i) {
            const int64_t t = i / stride, j = i % stride;
            const float value = got[size_t(i)], expected = reference[size_t(i)];
            const bool inside =
                j < shape.columns && j >= problem.window(t).begin && j < problem.window(t).end;
            const int64_t row = inside ? problem.row(t, j) : -1;
            bool ok = same(value, expected);
            if (!ok && row >= 0 && !shape.exact) {
                const auto want = problem.want(t, row);
                ok = std::fabs(double(value) - want.logit) <= want.bound;
                worst = std::max(worst, std::fabs(double(value) - want.logit) / want.bound);
            }
            if (!ok) wrong = text(" token ", t, " column ", j, ": ", value, ", wanted ", expected);
        }
        report.check(wrong.empty(), text(kernel, " ", name_of(shape), wrong));
        report.worst = std::max(report.worst, worst);
        const auto again = run_score(gpu, problem, kernel);
        report.check(std::memcmp(again.data(), got.data(), got.size() * sizeof(float)) == 0,
                     text(kernel, " ", name_of(shape), ": another run, other bits"));
        for (int64_t t = 0; t < std::min<int64_t>(shape.tokens, 3); ++t) {
            const auto one = run_score(gpu, problem, kernel, t, t + 1);
            report.check(
                std::memcmp(one.data(), got.data() + t * stride, size_t(shape.columns) * sizeof(float)) == 0,
                text(kernel, " ", name_of(shape), ": token ", t, " alone has other bits"));
        }
    }
}

void check_nan(Gpu& gpu, Report& report, smla_format format, smla_dtype q) {
    const ScoreCase shape{.format = format, .q = q, .heads = 21, .columns = 70, .hostile = false};
    Problem clean(shape), dirty(shape);
    const int64_t row = dirty.row(0, 33);
    dirty.poison(row);
    for (const char* kernel : kKernels) {
        const auto want = run_score(gpu, clean, kernel), got = run_score(gpu, dirty, kernel);
        bool ok = true;
        for (int64_t i = 0; i < int64_t(got.size()); ++i) {
            const int64_t t = i / (shape.columns + 3), j = i % (shape.columns + 3);
            const bool hit = j < shape.columns && dirty.row(t, j) == row;
            ok = ok && (hit ? std::isnan(got[size_t(i)]) : same(got[size_t(i)], want[size_t(i)]));
        }
        report.check(ok, text(kernel, " ", name_of(shape), ": a NaN key"));
    }
}

// Infinite keys: relu(-inf) is 0, and padded heads stay out.
void check_infinity(Gpu& gpu, Report& report) {
    const ScoreCase shape{
        .format = SMLA_ROW_BF16, .q = SMLA_BF16, .heads = 5, .columns = 40, .hostile = false};
    Problem problem(shape);
    std::vector<float> key(128, 0.f);
    key[0] = std::numeric_limits<float>::infinity();
    CacheView(problem.host.keys).encode(problem.row(0, 2), key.data());
    std::vector<float> reference(size_t(shape.tokens * 43), kCanary);
    problem.host.logits = make_tensor(reference.data(), SMLA_F32, {shape.tokens, shape.columns});
    problem.host.logits.stride_elems[0] = 43;
    ScoreOp::reference(problem.host, 0, shape.tokens);
    for (const char* kernel : kKernels) {
        const auto got = run_score(gpu, problem, kernel);
        if (got.empty() && for_hopper(kernel)) continue;
        report.check(got[2] == reference[2] || (std::isnan(got[2]) && std::isnan(reference[2])),
                     text(kernel, ": infinite key ", got[2], ", wanted ", reference[2]));
    }
}

}  // namespace

void check_score(Gpu& gpu, Report& report) {
    uint32_t seed = 1;
    for (const smla_format format : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68, SMLA_ROW_BF16, SMLA_ROW_F32})
        for (const smla_dtype q : {SMLA_E4M3, SMLA_E2M1, SMLA_BF16, SMLA_F32})
            for (const int64_t heads : {1, 7, 16, 33, 64, 100, 256})
                for (const bool exact : {true, false}) {
                    if (report.brief && (heads % 7 || exact)) continue;
                    if (report.tiny && q != SMLA_E4M3) continue;
                    ScoreCase shape{.format = format, .q = q, .heads = heads, .exact = exact, .seed = ++seed};
                    shape.fill = int(seed % 2);
                    if (heads == 256) shape.tokens = 2, shape.columns = 70;
                    if (heads == 33) shape.paged = false;
                    if (heads == 7) shape.page_tokens = 5, shape.page_rows = 11;
                    if (heads == 16) shape.page_padding = 36, shape.tokens = 27, shape.requests = 3;
                    if (heads == 1) shape.tokens = 40, shape.columns = 1000, shape.requests = 5;
                    if (heads == 100 && (format == SMLA_ROW_BF16 || format == SMLA_ROW_F32))
                        shape.width = q == SMLA_E2M1 ? 32 : 75;
                    check_case(gpu, report, shape);
                }
    for (const int64_t columns : {1, 31, 32, 33, 63, 127, 128, 129, 257, 5000})
        check_case(gpu, report,
                   {.tokens = 9, .columns = columns, .page_tokens = 1 + int32_t(columns) % 60, .seed = 7});
    check_case(gpu, report, {.tokens = 0, .columns = 50});
    for (const smla_format format : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68, SMLA_ROW_BF16})
        for (const smla_dtype q : {SMLA_E4M3, SMLA_BF16}) check_nan(gpu, report, format, q);
    check_infinity(gpu, report);
}

void check_score_select(Gpu& gpu, Report& report) {
    struct {
        int64_t tokens, columns, k;
        size_t budget;
        bool ragged = false;
    } const cases[] = {{40, 9000, 700, 0},
                       {40, 9000, 700, 200 << 10},
                       {7, 70000, 2048, 400 << 10},
                       {7, 70000, 2048, 1 << 20},
                       {3, 40000, 64, 40 << 10},
                       {300, 3000, 512, 256 << 10, true},
                       {5, 300, 400, 0},
                       {5, 300, 0, 0},
                       {2, 20000, 5000, 300 << 10}};
    for (const auto& each : cases) {
        if (report.brief && each.columns > 9000) continue;
        ScoreCase shape{.tokens = each.tokens, .heads = 16, .columns = each.columns, .paged = !each.ragged};
        Problem problem(shape);
        smla_score_args score = problem.place(gpu);
        score.logits = Gpu::tensor(gpu.allocate<float>(size_t(each.tokens * each.columns)), SMLA_F32,
                                   {each.tokens, each.columns});
        const char* const* kernel = kKernels;
        while (gpu.refuses<Stage::score>(*kernel, score)) ++kernel;
        gpu.run<Stage::score>(*kernel, score);
        auto logits =
            gpu.download(static_cast<float*>(score.logits.data), size_t(each.tokens * each.columns));
        const size_t size = size_t(each.tokens * each.k);
        std::vector<int32_t> indices(size), counts(size_t(each.tokens));
        std::vector<float> selected(size);
        smla_select_args select{};
        select.struct_size = sizeof select;
        select.relative = each.k % 3 == 0;
        select.scores = make_tensor(logits.data(), SMLA_F32, {each.tokens, each.columns});
        select.starts = problem.host.starts, select.ends = problem.host.ends;
        select.indices = make_tensor(indices.data(), SMLA_I32, {each.tokens, each.k});
        select.selected = make_tensor(selected.data(), SMLA_F32, {each.tokens, each.k});
        select.counts = make_tensor(counts.data(), SMLA_I32, {each.tokens});
        SelectOp::reference(select, 0, each.tokens);
        smla_score_select_args fused{};
        fused.struct_size = sizeof fused;
        fused.columns = int32_t(each.columns);
        fused.score = score;
        fused.score.logits = {};
        fused.select.relative = select.relative;
        fused.select.indices = Gpu::tensor(gpu.allocate<int32_t>(size), SMLA_I32, {each.tokens, each.k});
        fused.select.selected = Gpu::tensor(gpu.allocate<float>(size), SMLA_F32, {each.tokens, each.k});
        fused.select.counts =
            Gpu::tensor(gpu.allocate<int32_t>(size_t(each.tokens)), SMLA_I32, {each.tokens});
        gpu.run<Stage::score_select>("cuda_streamed_score_select", fused, each.budget);
        const std::string name = text("score_select T ", each.tokens, " N ", each.columns, " k ", each.k,
                                      " budget ", each.budget, ": ");
        report.check(gpu.download(static_cast<int32_t*>(fused.select.indices.data), size) == indices,
                     name + "indices");
        report.check(gpu.download(static_cast<int32_t*>(fused.select.counts.data), counts.size()) == counts,
                     name + "counts");
        const auto got = gpu.download(static_cast<float*>(fused.select.selected.data), size);
        report.check(std::memcmp(got.data(), selected.data(), size * sizeof(float)) == 0, name + "selected");
        gpu.clear();
    }
}

}  // namespace smla::bench
