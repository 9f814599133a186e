// The indexer stages on the cpu engine: score against the dot-product peak of one core, select against
// std::nth_element. usage: index_bench [threads] [largest number of keys]
#include "core/cpu_features.h"
#include "core/tensor.h"
#include "engines/run.h"
#include "formats/format.h"
#include "peaks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace smla::bench {

namespace {

constexpr int kWidth = 128, kPage = 64;

// Medians; on one thread of processor time, which other load does not touch.
struct Timer {
    bool processor_time;

    double now() const {
        timespec time;
        clock_gettime(processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
        return double(time.tv_sec) * 1e6 + double(time.tv_nsec) * 1e-3;
    }
    double median_us(const std::function<void()>& body) const {
        std::vector<double> times;
        for (double total = 0; times.size() < 9 || (times.size() < 300 && total < 3e5);
             total += times.back()) {
            const double start = now();
            body();
            times.push_back(now() - start);
        }
        std::nth_element(times.begin(), times.begin() + int64_t(times.size() / 2), times.end());
        return times[times.size() / 2];
    }
};

// T query rows of one request over N keys in shuffled pages.
struct IndexCase {
    static constexpr size_t kHugePage = 2 << 20;
    std::vector<uint8_t> q;
    std::unique_ptr<void, void (*)(void*)> keys{nullptr, std::free};
    size_t keys_bytes = 0;
    std::vector<float> w, logits;
    std::vector<int32_t> table, request, ends, indices;
    smla_score_args score{};
    smla_score_select_args fused{};

    IndexCase(int64_t tokens, int64_t heads, int64_t columns, int64_t k, smla_format format) {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        q.resize(size_t(tokens * heads * kWidth));
        for (uint8_t& code : q) code = f32_to_e4m3(normal(random) * 100);
        w.resize(size_t(tokens * heads));
        for (float& each : w) each = normal(random) * 0.01f;
        logits.resize(size_t(tokens * columns));
        indices.resize(size_t(tokens * k));
        smla_cache& cache = score.keys;
        cache.format = format;
        cache.width = kWidth;
        cache.page_tokens = kPage;
        cache.pages = ceil_div(columns, kPage);
        // In huge pages, as a server keeps its caches: 4 KB pages cost this stage page-table walks.
        keys_bytes = round_up(cache_bytes(cache), kHugePage);
        keys.reset(std::aligned_alloc(kHugePage, keys_bytes));
        madvise(keys.get(), keys_bytes, MADV_HUGEPAGE);
        cache.data = keys.get();
        std::vector<float> row(kWidth);
        const CacheView view(cache);
        for (int64_t j = 0; j < view.capacity; ++j) {
            for (float& value : row) value = normal(random);
            view.encode(j, row.data());
        }
        for (int64_t page = 0; page < cache.pages; ++page) table.push_back(int32_t(page));
        std::shuffle(table.begin(), table.end(), random);
        request.assign(size_t(tokens), 0);
        ends.assign(size_t(tokens), int32_t(columns));
        score.q = make_tensor(q.data(), SMLA_E4M3, {tokens, heads, kWidth});
        score.w = make_tensor(w.data(), SMLA_F32, {tokens, heads});
        score.block_table = make_tensor(table.data(), SMLA_I32, {1, cache.pages});
        score.request_of_token = make_tensor(request.data(), SMLA_I32, {tokens});
        score.ends = make_tensor(ends.data(), SMLA_I32, {tokens});
        fused.columns = int32_t(columns);
        fused.score = score;
        fused.select.indices = make_tensor(indices.data(), SMLA_I32, {tokens, k});
        score.logits = make_tensor(logits.data(), SMLA_F32, {tokens, columns});
    }
};

struct Machine {
    ThreadPool pool;
    static constexpr size_t kScratch = 64 << 20;
    std::unique_ptr<void, void (*)(void*)> workspace{std::aligned_alloc(kCacheLine, kScratch), std::free};
    double bf16 = dot_bf16_peak(), f32 = fma_f32_peak(), f32_256 = fma_f32_peak_256();

    double peak(smla_isa isa) const {
        return isa == SMLA_ISA_AVX512_BF16 ? bf16 : isa == SMLA_ISA_AVX512 ? f32 : f32_256;
    }
    Timer timer;
    explicit Machine(int threads) : pool(threads), timer{threads == 1} {}

    Env env(smla_isa isa) {
        Env env;
        env.isa = isa;
        env.pool = &pool;
        env.workspace = {workspace.get(), kScratch};
        return env;
    }
};

void bench_score(Machine& machine, const Env& env, int64_t tokens, int64_t heads, int64_t columns,
                 smla_format format) {
    IndexCase test(tokens, heads, columns, 2048, format);
    const char* name = "";
    const double us = machine.timer.median_us([&] { name = run_stage<Stage::score>(test.score, env); });
    const double gflops = 2.0 * double(tokens * heads * columns * kWidth) / us * 1e-3;
    const double peak = machine.peak(env.isa) * machine.pool.threads();
    std::printf("%-14s %-22s T %4ld  H %3ld  N %7ld  %10.1f us  %7.1f GFLOP/s  %5.1f %% of peak\n",
                find_format(format)->name, name, long(tokens), long(heads), long(columns), us, gflops,
                100 * gflops / peak);
}

void bench_select(const Machine& machine, const Env& env, int64_t columns, int64_t k) {
    constexpr int64_t kRows = 32;  // in turn, so that neither caches nor branch predictors know the row
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<float> scores(size_t(kRows * columns)), copy(static_cast<size_t>(columns));
    for (float& score : scores) score = normal(random);
    std::vector<int32_t> indices(static_cast<size_t>(k));
    int64_t row = 0;
    smla_select_args args{};
    args.indices = make_tensor(indices.data(), SMLA_I32, {1, k});
    const char* name = "";
    const double us = machine.timer.median_us([&] {
        args.scores = make_tensor(scores.data() + row * columns, SMLA_F32, {1, columns});
        row = (row + 1) % kRows;
        name = run_stage<Stage::select>(args, env);
    });
    std::vector<int32_t> list(static_cast<size_t>(columns));
    const double rival = machine.timer.median_us([&] {
        const float* from = scores.data() + row * columns;
        row = (row + 1) % kRows;
        for (int64_t j = 0; j < columns; ++j) list[size_t(j)] = int32_t(j);
        std::nth_element(list.begin(), list.begin() + k, list.end(),
                         [&](int32_t a, int32_t b) { return from[a] > from[b]; });
    });
    std::printf("select         %-22s k %4ld  N %7ld  %10.1f us  std::nth_element %8.1f us  %5.1fx\n", name,
                long(k), long(columns), us, rival, rival / us);
}

void bench_fused(const Machine& machine, const Env& env, int64_t tokens, int64_t columns, int64_t k) {
    IndexCase test(tokens, 64, columns, k, SMLA_INDEX_FP8_132);
    const char* name = "";
    const double alone = machine.timer.median_us([&] { run_stage<Stage::score>(test.score, env); });
    const double us =
        machine.timer.median_us([&] { name = run_stage<Stage::score_select>(test.fused, env); });
    std::printf("score_select   %-22s T %4ld  k %4ld  N %7ld  %10.1f us  score alone %10.1f us  %5.3fx\n",
                name, long(tokens), long(k), long(columns), us, alone, us / alone);
}

}  // namespace

int run(int threads, int64_t most) {
    Machine machine(threads);
    std::printf("%s, %d threads; one core: %.0f GFLOP/s bf16 dot, %.0f GFLOP/s f32\n", isa_name(best_isa()),
                machine.pool.threads(), machine.bf16, machine.f32);
    for (int isa = best_isa(); isa >= SMLA_ISA_SCALAR; --isa) {
        const Env env = machine.env(isa);
        const int64_t columns = isa == SMLA_ISA_SCALAR ? std::min<int64_t>(most, 4096) : most;
        for (const smla_format format : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68, SMLA_ROW_BF16})
            bench_score(machine, env, 1, 64, columns, format);
        for (const int64_t tokens : {4, 64})
            bench_score(machine, env, tokens, 64, columns / 4, SMLA_INDEX_FP8_132);
        for (const int64_t heads : {32, 16}) bench_score(machine, env, 1, heads, columns, SMLA_INDEX_FP8_132);
        for (const int64_t k : {512, 2048}) bench_select(machine, env, columns, k);
        bench_fused(machine, env, 1, columns, 2048);
        bench_fused(machine, env, 16, columns / 4, 2048);
    }
    return 0;
}

}  // namespace smla::bench

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    return smla::bench::run(argc > 1 ? std::atoi(argv[1]) : 1, argc > 2 ? std::atoll(argv[2]) : 131072);
}
