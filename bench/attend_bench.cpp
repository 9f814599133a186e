// attend on the cpu engine: one token at a time over random rows of a pool that no cache holds, another list
// each time. Prints time, GFLOP/s (2 T H K (Dqk + Dv)) and the share of the dot-product peak measured in the
// same run.
//
// usage: attend_bench [THREADS] [KERNEL] [HEADS] [ROWS]
// KERNEL: "best" (the default), "all", or a name. HEADS, ROWS: only shapes with so many; 0: all.
#include "core/cpu_features.h"
#include "engines/candidate.h"
#include "formats/format.h"
#include "ops/attend/attend.h"
#include "peaks.h"
#include "pool.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace smla::bench {

namespace {

constexpr int kLists = 64;  // different row lists, so that none is warm when its turn comes
constexpr int kValueWidth = 512;

struct Shape {
    int heads;
    int64_t primary, extra;  // listed rows
    smla_precision precision;
    smla_dtype q;
};

struct Case {
    std::vector<uint16_t> q, out;
    std::vector<float> q32;
    std::vector<int32_t> primary_rows, extra_rows;
    smla_attend_args args{};

    Case(const Shape& shape, const Pool& pool, int width) {
        std::mt19937 random(2);
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < int64_t(shape.heads) * width; ++i) {
            q32.push_back(normal(random));
            q.push_back(f32_to_bf16(q32.back()));
        }
        out.resize(size_t(shape.heads) * kValueWidth);
        args.struct_size = sizeof args;
        args.precision = shape.precision;
        args.softmax_scale = 0.05f;
        args.q = make_tensor(shape.q == SMLA_BF16 ? static_cast<void*>(q.data()) : q32.data(), shape.q,
                             {1, shape.heads, width});
        args.out = make_tensor(out.data(), SMLA_BF16, {1, shape.heads, kValueWidth});
        fill(args.primary, pool, shape.primary, primary_rows, random);
        if (shape.extra) fill(args.extra, pool, shape.extra, extra_rows, random);
    }
    void fill(smla_attend_source& source, const Pool& pool, int64_t k, std::vector<int32_t>& rows,
              std::mt19937& random) {
        source.cache = pool.cache;
        const uint32_t capacity = uint32_t(CacheView(pool.cache).capacity);
        for (int64_t i = 0; i < k * kLists; ++i) rows.push_back(int32_t(random() % capacity));
        source.rows = make_tensor(rows.data(), SMLA_I32, {1, k});
    }
    void use_list(int list) {
        args.primary.rows.data = primary_rows.data() + list * args.primary.rows.shape[1];
        if (!extra_rows.empty()) args.extra.rows.data = extra_rows.data() + list * args.extra.rows.shape[1];
    }
};

struct Bench {
    ThreadPool pool;
    Env env;
    std::string kernel;  // empty: the first that accepts
    int only_heads = 0;  // 0: all
    int64_t only_rows = 0;
    double dot_peak = 0, fma_peak = 0, fma_peak_256 = 0;

    Bench(int threads, std::string name) : pool(threads), kernel(std::move(name)) {
        env.isa = best_isa();
        env.pool = &pool;
    }
    void measure_peaks() {
        dot_peak = std::max(dot_peak, dot_bf16_peak());
        fma_peak = std::max(fma_peak, fma_f32_peak());
        fma_peak_256 = std::max(fma_peak_256, fma_f32_peak_256());
    }
    double peak_of(const char* name) const {
        const double one = std::strstr(name, "_bf16_")   ? dot_peak
                           : std::strstr(name, "avx512") ? fma_peak
                                                         : fma_peak_256;
        return one * pool.threads();
    }
    void run(const char* label, const Shape& shape, const Pool& cache, int width) {
        if ((only_heads && only_heads != shape.heads) || (only_rows && only_rows != shape.primary)) return;
        Case it(shape, cache, width);
        for (const auto& candidate : cpu_candidates<Stage::attend>()) {
            if (!kernel.empty() && kernel != "all" && kernel != candidate.name) continue;
            if (!candidate.refuse(it.args, env).empty()) continue;
            time(candidate, label, it, shape, width);
            if (kernel.empty()) return;
        }
    }
    void time(const Candidate<smla_attend_args>& candidate, const char* label, Case& it, const Shape& shape,
              int width) {
        measure_peaks();
        const size_t size = candidate.workspace(it.args, env, 0);
        const HugePages memory(size);
        env.workspace = {memory.data(), size};
        std::vector<double> times;
        double total = 0;
        for (int list = 0; times.size() < 15 || (times.size() < 400 && total < 400);
             list = (list + 1) % kLists) {
            it.use_list(list);
            const double start = now_ms(pool.threads() == 1);
            candidate.run(it.args, env);
            times.push_back(now_ms(pool.threads() == 1) - start);
            total += times.back();
        }
        measure_peaks();
        std::sort(times.begin(), times.end());
        const double median = times[times.size() / 2], best = times.front();
        const double flop = 2. * shape.heads * double(shape.primary + shape.extra) * (width + kValueWidth);
        const double peak = peak_of(candidate.name);
        std::printf(
            "%-10s H%-3d K%4ld+%-4ld %-7s %-20s %8.4f ms (best %8.4f) %7.1f GF/s  %5.1f %% of %.0f (best "
            "%.1f %%)\n",
            label, shape.heads, long(shape.primary), long(shape.extra),
            shape.precision == SMLA_PRECISION_ROUNDED ? "rounded" : "exact", candidate.name, median, best,
            flop / median * 1e-6, 100 * flop / median * 1e-6 / peak, peak, 100 * flop / best * 1e-6 / peak);
    }
};

void run_all(Bench& bench) {
    const auto exact = SMLA_PRECISION_EXACT, rounded = SMLA_PRECISION_ROUNDED;
    {
        const Pool pool(SMLA_FP8_656, 576, kPoolRows);
        for (const int heads : {128, 64, 16})
            for (const int64_t k : {2048, 512, 128})
                bench.run("fp8_656", {heads, k, 0, exact, SMLA_BF16}, pool, 576);
        bench.run("fp8_656", {128, 2048, 0, rounded, SMLA_BF16}, pool, 576);
        bench.run("fp8_656", {32, 2048, 0, exact, SMLA_BF16}, pool, 576);
        bench.run("fp8_656", {8, 2048, 0, exact, SMLA_BF16}, pool, 576);
        bench.run("fp8_656 f32q", {128, 2048, 0, exact, SMLA_F32}, pool, 576);
        bench.run("fp8_656 f32q", {16, 2048, 0, exact, SMLA_F32}, pool, 576);
    }
    {
        const Pool pool(SMLA_ROW_BF16, 576, kPoolRows);
        for (const int heads : {128, 16})
            bench.run("bf16_576", {heads, 2048, 0, exact, SMLA_BF16}, pool, 576);
    }
    {
        const Pool pool(SMLA_FP8_584, 512, kPoolRows);
        for (const int heads : {128, 64, 16})
            bench.run("fp8_584", {heads, 128, heads == 128 ? 1024 : 512, exact, SMLA_BF16}, pool, 512);
    }
    {
        const Pool pool(SMLA_FP8_512, 512, kPoolRows);
        bench.run("fp8_512", {64, 128, 512, exact, SMLA_BF16}, pool, 512);
    }
}

}  // namespace

}  // namespace smla::bench

int main(int argc, char** argv) {
    const std::string kernel = argc > 2 ? argv[2] : "best";
    smla::bench::Bench bench(argc > 1 ? std::atoi(argv[1]) : 1, kernel == "best" ? "" : kernel);
    if (argc > 3) bench.only_heads = std::atoi(argv[3]);
    if (argc > 4) bench.only_rows = std::atoi(argv[4]);
    smla::bench::run_all(bench);
}
