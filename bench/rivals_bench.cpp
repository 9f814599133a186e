// attend against what a user could write with the distribution's libraries: plain loops, gather + CBLAS
// sgemm, gather + oneDNN bf16 products. One token of V3.2 over cold random rows of an fp8_656 cache. Each
// rival gathers and dequantises with vector code on a resident pool, computes all heads at once and writes
// bf16. usage: rivals_bench [threads]    OPENBLAS_CORETYPE picks OpenBLAS kernels (scripts/bench-cpu runs
// both).
#include "core/cpu_features.h"
#include "engines/candidate.h"
#include "formats/layouts.h"
#include "linear/cblas.h"
#include "ops/attend/attend.h"
#include "peaks.h"
#include "pool.h"

#include <dnnl.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>

namespace smla::bench {

namespace {

constexpr int64_t kWidth = 576, kValue = 512;
constexpr float kScale = 0.05f;
constexpr int kLists = 64;

struct Problem {
    int64_t heads, rows;
    std::vector<uint16_t> q, out;
    std::vector<float> q32;
    std::vector<int32_t> lists;
    smla_cache cache;

    Problem(const Pool& pool, int64_t heads, int64_t rows) : heads(heads), rows(rows), cache(pool.cache) {
        std::mt19937 random(2);
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < heads * kWidth; ++i) {
            q.push_back(f32_to_bf16(normal(random)));
            q32.push_back(bf16_to_f32(q.back()));
        }
        out.resize(size_t(heads * kValue));
        for (int64_t i = 0; i < rows * kLists; ++i) lists.push_back(int32_t(random() % kPoolRows));
    }
    const int32_t* list(int i) const { return lists.data() + i * rows; }
};

// e4m3 by bit placement: sign and 7 bits as an f32, times 2^120 and the tile's scale. Vectorises; NaN codes
// do not occur here.
void gather_row(const CacheView& cache, int32_t row, float* out) {
    const char* at = cache.at(row).row();
    const auto* codes = reinterpret_cast<const uint8_t*>(at);
    float scales[4];
    std::memcpy(scales, at + 512, sizeof scales);
    for (int tile = 0; tile < 4; ++tile) {
        const float scale = scales[tile] * 0x1p120f;
        for (int i = 0; i < 128; ++i) {
            const uint32_t code = codes[tile * 128 + i];
            out[tile * 128 + i] = std::bit_cast<float>((code & 0x80u) << 24 | (code & 0x7fu) << 20) * scale;
        }
    }
    const auto* rope = reinterpret_cast<const uint16_t*>(at + 528);
    for (int i = 0; i < 64; ++i) out[512 + i] = std::bit_cast<float>(uint32_t(rope[i]) << 16);
}

void softmax_row(float* s, int64_t n) {
    float peak = s[0], sum = 0;
    for (int64_t j = 1; j < n; ++j) peak = std::max(peak, s[j]);
    for (int64_t j = 0; j < n; ++j) sum += s[j] = std::exp(kScale * (s[j] - peak));
    for (int64_t j = 0; j < n; ++j) s[j] /= sum;
}

class Rivals {
public:
    Rivals(Problem& problem, ThreadPool& pool)
        : p_(problem),
          cache_(problem.cache),
          pool_(pool),
          keys_(size_t(p_.rows * kWidth)),
          scores_(size_t(p_.heads * p_.rows)),
          values_(size_t(p_.heads * kValue)) {}

    void loops(int list) {
        gather(list);
        for_heads([&](int64_t h) {
            float* s = scores_.data() + h * p_.rows;
            for (int64_t j = 0; j < p_.rows; ++j) {
                float dot = 0;
                for (int64_t d = 0; d < kWidth; ++d)
                    dot += p_.q32[size_t(h * kWidth + d)] * keys_[size_t(j * kWidth + d)];
                s[j] = dot;
            }
            softmax_row(s, p_.rows);
            float* o = values_.data() + h * kValue;
            std::fill(o, o + kValue, 0.f);
            for (int64_t j = 0; j < p_.rows; ++j)
                for (int64_t d = 0; d < kValue; ++d) o[d] += s[j] * keys_[size_t(j * kWidth + d)];
        });
        store();
    }

    void sgemm(int list) {
        gather(list);
        constexpr int row_major = 101, plain = 111, transposed = 112;
        const int heads = int(p_.heads), rows = int(p_.rows);
        cblas().sgemm(row_major, plain, transposed, heads, rows, kWidth, 1, p_.q32.data(), kWidth,
                      keys_.data(), kWidth, 0, scores_.data(), rows);
        for_heads([&](int64_t h) { softmax_row(scores_.data() + h * p_.rows, p_.rows); });
        cblas().sgemm(row_major, plain, plain, heads, kValue, rows, 1, scores_.data(), rows, keys_.data(),
                      kWidth, 0, values_.data(), kValue);
        store();
    }

    void onednn(int list) {
        keys16_.resize(keys_.size());
        weights16_.resize(scores_.size());
        if (!score_) make_onednn();
        over(p_.rows, [&](int64_t j) {
            float row[kWidth];
            gather_row(cache_, p_.list(list)[j], row);
            for (int64_t d = 0; d < kWidth; ++d) keys16_[size_t(j * kWidth + d)] = f32_to_bf16(row[d]);
        });
        score_->execute(stream_, score_args_);
        for_heads([&](int64_t h) {
            softmax_row(scores_.data() + h * p_.rows, p_.rows);
            for (int64_t j = 0; j < p_.rows; ++j)
                weights16_[size_t(h * p_.rows + j)] = f32_to_bf16(scores_[size_t(h * p_.rows + j)]);
        });
        value_->execute(stream_, value_args_);
        stream_.wait();
        store();
    }

private:
    void over(int64_t n, const std::function<void(int64_t)>& body) {
        const int64_t parts = pool_.threads();
        pool_.run(parts, [&](int64_t part, int) {
            for (int64_t i = n * part / parts; i < n * (part + 1) / parts; ++i) body(i);
        });
    }
    void for_heads(const std::function<void(int64_t)>& body) { over(p_.heads, body); }
    void gather(int list) {
        over(p_.rows, [&](int64_t j) { gather_row(cache_, p_.list(list)[j], keys_.data() + j * kWidth); });
    }
    void store() {
        for (size_t i = 0; i < values_.size(); ++i) p_.out[i] = f32_to_bf16(values_[i]);
    }

    void make_onednn() {
        using dt = dnnl::memory::data_type;
        const auto at = [&](dnnl::memory::dims dims, dt type, dnnl::memory::dims strides, void* data) {
            return dnnl::memory({dims, type, strides}, engine_, data);
        };
        const int64_t h = p_.heads, n = p_.rows;
        const auto q = at({h, kWidth}, dt::bf16, {kWidth, 1}, p_.q.data());
        const auto k = at({kWidth, n}, dt::bf16, {1, kWidth}, keys16_.data());
        const auto s = at({h, n}, dt::f32, {n, 1}, scores_.data());
        const auto w = at({h, n}, dt::bf16, {n, 1}, weights16_.data());
        const auto v = at({n, kValue}, dt::bf16, {kWidth, 1}, keys16_.data());
        const auto o = at({h, kValue}, dt::f32, {kValue, 1}, values_.data());
        const auto product = [&](const dnnl::memory& a, const dnnl::memory& b, const dnnl::memory& c) {
            return dnnl::matmul({{a.get_desc(), b.get_desc(), c.get_desc()}, engine_});
        };
        score_ = std::make_unique<dnnl::matmul>(product(q, k, s));
        value_ = std::make_unique<dnnl::matmul>(product(w, v, o));
        score_args_ = {{DNNL_ARG_SRC, q}, {DNNL_ARG_WEIGHTS, k}, {DNNL_ARG_DST, s}};
        value_args_ = {{DNNL_ARG_SRC, w}, {DNNL_ARG_WEIGHTS, v}, {DNNL_ARG_DST, o}};
    }

    Problem& p_;
    CacheView cache_;
    ThreadPool& pool_;
    std::vector<float> keys_, scores_, values_;
    std::vector<uint16_t> keys16_, weights16_;
    dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream_{engine_};
    std::unique_ptr<dnnl::matmul> score_, value_;
    std::unordered_map<int, dnnl::memory> score_args_, value_args_;
};

// smla on the same problem, the kernel that a user gets.
class Smla {
public:
    Smla(Problem& p, ThreadPool& pool) {
        env_.isa = best_isa();
        env_.pool = &pool;
        args_.struct_size = sizeof args_;
        args_.softmax_scale = kScale;
        args_.q = make_tensor(p.q.data(), SMLA_BF16, {1, p.heads, kWidth});
        args_.out = make_tensor(p.out.data(), SMLA_BF16, {1, p.heads, kValue});
        args_.primary.cache = p.cache;
        args_.primary.rows = make_tensor(p.lists.data(), SMLA_I32, {1, p.rows});
        for (const auto& candidate : cpu_candidates<Stage::attend>())
            if (!kernel_ && candidate.refuse(args_, env_).empty()) kernel_ = &candidate;
        const size_t size = kernel_->workspace(args_, env_, 0);
        memory_ = std::make_unique<HugePages>(size);
        env_.workspace = {memory_->data(), size};
    }
    const char* kernel() const { return kernel_->name; }
    void run(const Problem& p, int list) {
        args_.primary.rows.data = const_cast<int32_t*>(p.list(list));
        kernel_->run(args_, env_);
    }

private:
    Env env_;
    smla_attend_args args_{};
    const Candidate<smla_attend_args>* kernel_ = nullptr;
    std::unique_ptr<HugePages> memory_;
};

struct Timed {
    const char* name;
    std::function<void(int)> run;
    std::vector<double> times{};
    std::vector<uint16_t> out{};
    double median() {
        std::sort(times.begin(), times.end());
        return times[times.size() / 2];
    }
};

double l2(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double x = bf16_to_f32(a[i]), y = bf16_to_f32(b[i]);
        error += (x - y) * (x - y);
        norm += y * y;
    }
    return std::sqrt(error / norm);
}

void compare(const Pool& cache, ThreadPool& pool, int64_t heads, int64_t rows) {
    Problem problem(cache, heads, rows);
    Rivals rivals(problem, pool);
    Smla smla(problem, pool);
    std::vector<Timed> all;
    all.push_back({"smla", [&](int i) { smla.run(problem, i); }});
    all.push_back({"gather + oneDNN bf16", [&](int i) { rivals.onednn(i); }});
    if (cblas().sgemm) all.push_back({"gather + CBLAS sgemm", [&](int i) { rivals.sgemm(i); }});
    all.push_back({"plain loops", [&](int i) { rivals.loops(i); }});
    double peak = dot_bf16_peak();
    for (int round = 0; round < 25; ++round) {  // in turn, so that all see the same machine
        for (Timed& each : all) {
            if (each.run == nullptr || (round >= 3 && &each == &all.back())) continue;
            const double start = now_ms(false);
            each.run(round % kLists);
            each.times.push_back(now_ms(false) - start);
            if (round == 0) each.out = problem.out;
        }
    }
    peak = std::max(peak, dot_bf16_peak()) * pool.threads();
    const double flop = 2. * double(heads * rows) * double(kWidth + kValue), mine = all[0].median();
    for (Timed& each : all) {
        const double ms = each.median();
        std::printf(
            "H%-3ld K%-4ld %-22s %8.3f ms %7.1f GFLOP/s %5.1f %% of bf16 peak  smla is %5.2fx  L2 to smla "
            "%.1e\n",
            long(heads), long(rows), each.name, ms, flop / ms * 1e-6, 100 * flop / ms * 1e-6 / peak,
            ms / mine, l2(each.out, all[0].out));
    }
}

}  // namespace

}  // namespace smla::bench

int main(int argc, char** argv) {
    using namespace smla;
    using namespace smla::bench;
    ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 1);
    const char* core = std::getenv("OPENBLAS_CORETYPE");
    std::printf("%d thread(s), CBLAS %s with %s kernels, fp8_656 rows of a pool of %ld\n", pool.threads(),
                cblas().library.c_str(), core ? core : "its own choice of", long(kPoolRows));
    const Pool cache(SMLA_FP8_656, 576, kPoolRows);
    for (const int64_t heads : {128, 64, 16})
        for (const int64_t rows : {2048, 512, 128}) compare(cache, pool, heads, rows);
    return 0;
}
