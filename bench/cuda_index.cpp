// The indexer's stages on a GPU: checks against the host, then times.
//
// usage: cuda_index [check|brief|tiny|time|score|select|blocks]
// check, time: only these. brief, tiny: a few checks, for sanitizers. score, select: times of score alone, of
// select and score_select; blocks: of score_select_blocks.
//
// A time is the median of 8 to 30 runs, each after a 256 MB memset that flushes the L2 cache, by CUDA events
// around the call.
#include "cuda_fill.h"
#include "cuda_index_run.h"
#include "cuda_peaks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>

namespace smla::bench {

namespace {

struct Ceilings {
    double tflops = mma_peak_tflops(), gbytes = copy_peak_gbytes();
};

class Timer {
public:
    Timer() {
        SMLA_CUDA_CALL(cudaMalloc(&flush_, kFlush));
        for (cudaEvent_t* event : {&begin_, &end_}) SMLA_CUDA_CALL(cudaEventCreate(event));
    }
    ~Timer() {
        cudaFree(flush_);
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
    }
    template <class Work>
    double median_us(const Work& work) {
        std::vector<float> times;
        double total = 0;
        for (int i = 0; i < 31 && (i < 9 || total < 400); ++i) {
            SMLA_CUDA_CALL(cudaMemsetAsync(flush_, i, kFlush));
            SMLA_CUDA_CALL(cudaEventRecord(begin_));
            work();
            SMLA_CUDA_CALL(cudaEventRecord(end_));
            SMLA_CUDA_CALL(cudaEventSynchronize(end_));
            float ms = 0;
            SMLA_CUDA_CALL(cudaEventElapsedTime(&ms, begin_, end_));
            if (i > 0) times.push_back(ms * 1e3f);  // the first one loads the kernel
            total += ms;
        }
        std::nth_element(times.begin(), times.begin() + int64_t(times.size() / 2), times.end());
        return times[times.size() / 2];
    }

private:
    static constexpr size_t kFlush = size_t(256) << 20;
    void* flush_ = nullptr;
    cudaEvent_t begin_, end_;
};

struct Bench {
    Gpu& gpu;
    Report& report;
    Ceilings ceilings;
    Timer timer;

    // flop, bytes: what the stage must do at least
    void print(const std::string& what, const char* kernel, double us, double flop, double bytes) const {
        const double tflops = flop / us * 1e-6, gbytes = bytes / us * 1e-3;
        std::printf("%-44s %-24s %9.1f us %7.1f TFLOP/s %3.0f%% %7.0f GB/s %3.0f%%\n", what.c_str(), kernel,
                    us, tflops, 100 * tflops / ceilings.tflops, gbytes, 100 * gbytes / ceilings.gbytes);
        std::fflush(stdout);
    }
};

struct ScoreShape {
    const char* name;
    int64_t tokens, columns, heads = 64;
    int64_t requests = 1;  // paged if next_n > 0
    int64_t next_n = 0;
    smla_format format = SMLA_INDEX_FP8_132;
    smla_dtype q = SMLA_E4M3;
    bool causal = false;
};

smla_score_args make_score(Gpu& gpu, const ScoreShape& shape, uint32_t seed) {
    smla_score_args args{};
    args.struct_size = sizeof args;
    const int64_t count = shape.tokens * shape.heads * 128;
    args.q = Gpu::tensor(gpu.allocate<char>(size_t(count * 2)), shape.q, {shape.tokens, shape.heads, 128});
    fill_normal(args.q.data, shape.q, count, shape.q == SMLA_E4M3 ? 20.f : 1.f, seed);
    if (shape.q == SMLA_E2M1) {
        args.q_scales =
            Gpu::tensor(gpu.allocate<char>(size_t(count / 32)), SMLA_E8M0, {shape.tokens, shape.heads, 4});
        fill_normal(args.q_scales.data, SMLA_E8M0, count / 32, 1, seed);
    }
    args.w = Gpu::tensor(gpu.allocate<float>(size_t(shape.tokens * shape.heads)), SMLA_F32,
                         {shape.tokens, shape.heads});
    fill_normal(args.w.data, SMLA_F32, shape.tokens * shape.heads, 0.01f, seed + 1);
    smla_cache& keys = args.keys;
    const int64_t blocks = ceil_div(shape.columns, 64);
    keys.format = shape.format;
    keys.device_type = SMLA_CUDA;
    keys.width = 128;
    keys.page_tokens = 64;
    keys.pages = shape.requests * blocks;
    keys.data = gpu.allocate<char>(cache_bytes(keys));
    fill_keys(keys, seed + 2);
    std::vector<int32_t> ends, requests, table;
    for (int64_t t = 0; t < shape.tokens; ++t) {
        const int64_t end = shape.causal ? shape.columns - shape.tokens + t + 1 : shape.columns;
        ends.push_back(int32_t(end));
        requests.push_back(int32_t(t * shape.requests / shape.tokens));
    }
    for (int64_t i = 0; i < keys.pages; ++i) table.push_back(int32_t(i * 7919 % keys.pages));
    args.ends = Gpu::tensor(gpu.upload(ends), SMLA_I32, {shape.tokens});
    if (shape.next_n) {
        args.block_table = Gpu::tensor(gpu.upload(table), SMLA_I32, {shape.requests, blocks});
        args.request_of_token = Gpu::tensor(gpu.upload(requests), SMLA_I32, {shape.tokens});
    }
    args.logits = Gpu::tensor(gpu.allocate<float>(size_t(shape.tokens * shape.columns)), SMLA_F32,
                              {shape.tokens, shape.columns});
    return args;
}

// The last columns of some tokens against the generic kernel, which shares no arithmetic with the others.
// Rounded products may be off by 132 * 2^-12 of the largest (docs/kernels/cuda_score.md).
void spot_check(Bench& bench, const ScoreShape& shape, const smla_score_args& args) {
    const double share = args.precision == SMLA_PRECISION_ROUNDED ? 132 * 0x1p-12 : 1e-5;
    const int64_t tokens = std::min<int64_t>(shape.tokens, 4), columns = shape.columns, from = columns - 64;
    smla_score_args last = args;
    for (Tensor* t : {&last.q, &last.q_scales, &last.w, &last.request_of_token, &last.ends})
        if (t->ndim) *t = slice(*t, 0, shape.tokens - tokens, shape.tokens);
    const std::vector<int32_t> begin(static_cast<size_t>(tokens), int32_t(from));
    last.starts = Gpu::tensor(bench.gpu.upload(begin), SMLA_I32, {tokens});
    last.logits =
        Gpu::tensor(bench.gpu.allocate<float>(size_t(tokens * columns)), SMLA_F32, {tokens, columns});
    bench.gpu.run<Stage::score>("cuda_generic_score", last);
    double difference = 0, largest = 0;
    for (int64_t t = 0; t < tokens; ++t) {
        const auto got = bench.gpu.download(
            static_cast<float*>(args.logits.data) + (shape.tokens - tokens + t) * columns + from, 64);
        const auto want = bench.gpu.download(static_cast<float*>(last.logits.data) + t * columns + from, 64);
        for (int64_t j = 0; j < (shape.causal ? 64 - tokens : 64); ++j) {
            difference = std::max(difference, std::fabs(double(got[size_t(j)]) - want[size_t(j)]));
            largest = std::max(largest, std::fabs(double(want[size_t(j)])));
        }
    }
    bench.report.check(difference <= share * largest && largest > 0,
                       text(shape.name, ": off by ", difference, " of ", largest));
}

void time_score(Bench& bench, const ScoreShape& shape) {
    smla_score_args args = make_score(bench.gpu, shape, 11);
    double pairs = double(shape.tokens) * double(shape.columns);
    if (shape.causal) pairs -= 0.5 * double(shape.tokens) * double(shape.tokens);
    const double bytes =
        double(cache_bytes(args.keys)) + double(shape.tokens * shape.heads * 132) + 4 * pairs;
    struct Way {
        const char *name, *word;
        smla_precision precision;
    };
    for (const Way& way : {Way{"cuda_sm90_pages_score", " rounded", SMLA_PRECISION_ROUNDED},
                           Way{"cuda_sm90_pages_score", "", SMLA_PRECISION_EXACT},
                           Way{"cuda_sm90_score", " rounded", SMLA_PRECISION_ROUNDED},
                           Way{"cuda_sm90_score", "", SMLA_PRECISION_EXACT},
                           Way{"cuda_mma_score", "", SMLA_PRECISION_EXACT}}) {
        args.precision = way.precision;
        if (bench.gpu.refuses<Stage::score>(way.name, args)) continue;
        const auto& kernel = bench.gpu.prepare<Stage::score>(way.name, args);
        const double us = bench.timer.median_us([&] { kernel.run(args, bench.gpu.env()); });
        bench.print(text(shape.name, way.word), way.name, us, 2 * double(shape.heads) * 128 * pairs, bytes);
        spot_check(bench, shape, args);
    }
    bench.gpu.clear();
}

void time_select(Bench& bench, const char* what, int64_t rows, int64_t columns, smla_dtype dtype = SMLA_F32,
                 bool integers = false) {
    constexpr int64_t k = 2048;
    smla_select_args args{};
    args.struct_size = sizeof args;
    args.scores = Gpu::tensor(bench.gpu.allocate<char>(size_t(rows * columns * dtype_bits(dtype) / 8)), dtype,
                              {rows, columns});
    fill_normal(args.scores.data, dtype, rows * columns, 1, 5);
    if (integers)
        fill_i32(static_cast<int32_t*>(args.scores.data), rows * columns, 0x3f800000, 1 << 20, 7 << 20);
    std::vector<int32_t> want;
    for (const char* name :
         {"cuda_generic_select", "cuda_sampled_select", "cuda_cluster_select", "cuda_register_select"}) {
        args.indices = Gpu::tensor(bench.gpu.allocate<int32_t>(size_t(rows * k)), SMLA_I32, {rows, k});
        if (bench.gpu.refuses<Stage::select>(name, args)) continue;
        const auto& kernel = bench.gpu.prepare<Stage::select>(name, args);
        const double us = bench.timer.median_us([&] { kernel.run(args, bench.gpu.env()); });
        bench.print(text(what, " ", rows, " x ", columns, " ", dtype_name(dtype)), name, us, 0,
                    double(rows * columns * dtype_bits(dtype) / 8) + 4. * double(rows * k));
        const auto got = bench.gpu.download(static_cast<int32_t*>(args.indices.data), size_t(rows * k));
        if (want.empty()) want = got;
        else
            bench.report.check(got == want,
                               text(name, " ", rows, " x ", columns, ": not what the other kernel selects"));
    }
    bench.gpu.clear();
}

void time_score_select(Bench& bench, const ScoreShape& shape, size_t budget) {
    smla_score_select_args args{};
    args.struct_size = sizeof args;
    args.columns = int32_t(shape.columns);
    args.score = make_score(bench.gpu, shape, 17);
    args.score.logits = {};
    args.score.precision = SMLA_PRECISION_ROUNDED;
    args.select.indices =
        Gpu::tensor(bench.gpu.allocate<int32_t>(size_t(shape.tokens * 2048)), SMLA_I32, {shape.tokens, 2048});
    const char* name = "cuda_streamed_score_select";
    const auto& kernel = bench.gpu.prepare<Stage::score_select>(name, args, budget);
    const double us = bench.timer.median_us([&] { kernel.run(args, bench.gpu.env()); });
    const double pairs = double(shape.tokens) * double(shape.columns);
    bench.print(text(shape.name, " in ", bench.gpu.env().workspace.bytes >> 20, " MB"), name, us,
                2 * double(shape.heads) * 128 * pairs, double(cache_bytes(args.score.keys)));
    bench.gpu.clear();
}

// Ascending columns of the token's blocks, as many as are asked for.
void check_selection(Bench& bench, const smla_score_select_blocks_args& args, const std::string& name) {
    const int64_t tokens = args.indices.shape[0], best = args.indices.shape[1], listed = args.blocks.shape[1];
    const auto got = bench.gpu.download(static_cast<int32_t*>(args.indices.data), size_t(tokens * best));
    const auto blocks = bench.gpu.download(static_cast<int32_t*>(args.blocks.data), size_t(tokens * listed));
    bool right = true;
    for (int64_t t = 0; t < tokens && right; ++t) {
        const auto first = blocks.begin() + t * listed;
        const std::set<int32_t> of_token(first, first + listed);
        for (int64_t j = 0; j < best && right; ++j) {
            const int32_t column = got[size_t(t * best + j)];
            right = column >= 0 && of_token.contains(column / args.block_size) &&
                    (j == 0 || got[size_t(t * best + j - 1)] < column);
        }
    }
    bench.report.check(right, name + ": a selection outside of the blocks, or out of order");
}

// 2,048 candidate blocks of 8 columns, as V4.1's later index sources have them, beside the score of all.
void time_blocks(Bench& bench, const ScoreShape& shape) {
    constexpr int64_t kBlocks = 2048, kBlock = 8, kBest = 512;
    const smla_score_args all = make_score(bench.gpu, shape, 29);
    smla_score_select_blocks_args args{};
    args.struct_size = sizeof args;
    args.columns = int32_t(shape.columns);
    args.block_size = kBlock;
    args.q = all.q, args.q_scales = all.q_scales, args.w = all.w, args.keys = all.keys, args.ends = all.ends;
    args.block_table = all.block_table, args.request_of_token = all.request_of_token;
    std::vector<int32_t> blocks;
    const int64_t step = shape.columns / kBlock / kBlocks;
    for (int64_t t = 0; t < shape.tokens; ++t)
        for (int64_t i = 1; i <= kBlocks; ++i) blocks.push_back(int32_t(i * step - 1 - (t + i) % step));
    args.blocks = Gpu::tensor(bench.gpu.upload(blocks), SMLA_I32, {shape.tokens, kBlocks});
    args.indices = Gpu::tensor(bench.gpu.allocate<int32_t>(size_t(shape.tokens * kBest)), SMLA_I32,
                               {shape.tokens, kBest});
    const double listed = double(shape.tokens * kBlocks * kBlock),
                 key = double(cache_bytes(all.keys)) / double(all.keys.pages * all.keys.page_tokens);
    double whole = 0;
    for (const char* name : {"cuda_sm90_score", "cuda_mma_score"}) {
        if (bench.gpu.refuses<Stage::score>(name, all)) continue;
        const auto& kernel = bench.gpu.prepare<Stage::score>(name, all);
        const double us = bench.timer.median_us([&] { kernel.run(all, bench.gpu.env()); });
        const double pairs = double(shape.tokens * shape.columns);
        bench.print(shape.name, name, us, 2 * double(shape.heads) * 128 * pairs, key * pairs);
        whole = whole == 0 ? us : std::min(whole, us);
    }
    for (const char* name : {"cuda_streamed_score_select_blocks", "cuda_generic_score_select_blocks"}) {
        const auto& kernel = bench.gpu.prepare<Stage::score_select_blocks>(name, args);
        const double us = bench.timer.median_us([&] { kernel.run(args, bench.gpu.env()); });
        check_selection(bench, args, text(shape.name, ", ", name));
        bench.print(text("  2048 blocks of 8: 1/", int(whole / us)), name, us,
                    2 * double(shape.heads) * 128 * listed, key * listed);
    }
    bench.gpu.clear();
}

void time_all_blocks(Gpu& gpu, Report& report) {
    Bench bench{gpu, report, {}, {}};
    for (const int64_t tokens : {1, 64})
        time_blocks(bench, {.name = tokens == 1 ? "score 1 x 1048576" : "score 64 x 1048576",
                            .tokens = tokens,
                            .columns = 1 << 20,
                            .heads = 32,
                            .requests = tokens,
                            .next_n = 1,
                            .format = SMLA_INDEX_MXFP4_68,
                            .q = SMLA_E2M1});
}

// A captured call follows what changes in memory: two replays with other windows, against direct calls.
void check_graph(Gpu& gpu, Report& report) {
    constexpr int64_t tokens = 20, columns = 30000, k = 512;
    smla_score_select_args args{};
    args.struct_size = sizeof args;
    args.columns = columns;
    args.score =
        make_score(gpu, {.name = "", .tokens = tokens, .columns = columns, .requests = 5, .next_n = 4}, 23);
    args.score.logits = {};
    args.select.indices = Gpu::tensor(gpu.allocate<int32_t>(size_t(tokens * k)), SMLA_I32, {tokens, k});
    const auto& kernel = gpu.prepare<Stage::score_select>("cuda_streamed_score_select", args, 1 << 20);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    SMLA_CUDA_CALL(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Env env = gpu.env();
    env.stream = stream;
    kernel.run(args, env);  // loads the kernels
    SMLA_CUDA_CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    kernel.run(args, env);
    SMLA_CUDA_CALL(cudaStreamEndCapture(stream, &graph));
    SMLA_CUDA_CALL(cudaGraphInstantiate(&replay, graph, 0));
    const auto result = [&] {
        SMLA_CUDA_CALL(cudaStreamSynchronize(stream));
        auto out = gpu.download(static_cast<int32_t*>(args.select.indices.data), size_t(tokens * k));
        gpu.device().fill(args.select.indices.data, 0x77, size_t(tokens * k) * sizeof(int32_t), nullptr);
        gpu.device().wait(nullptr);
        return out;
    };
    for (const int32_t end : {20000, 300, 0, 29999}) {
        fill_i32(static_cast<int32_t*>(args.score.ends.data), tokens, end, 1, 2);
        gpu.device().wait(nullptr);
        kernel.run(args, env);
        const auto want = result();
        SMLA_CUDA_CALL(cudaGraphLaunch(replay, stream));
        report.check(result() == want, text("a graph replayed with ends at ", end));
    }
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    gpu.clear();
}

void time_scores(Bench& bench) {
    const ScoreShape scores[] = {
        {.name = "score 2048 x 8192", .tokens = 2048, .columns = 8192},
        {.name = "score 2048 x 65536", .tokens = 2048, .columns = 65536},
        {.name = "score 2048 x 65536 H 32", .tokens = 2048, .columns = 65536, .heads = 32},
        {.name = "score 16 x 8192", .tokens = 16, .columns = 8192},
        {.name = "score 16 x 131072", .tokens = 16, .columns = 131072},
        {.name = "score 128 x 8192", .tokens = 128, .columns = 8192},
        {.name = "score 512 x 32768", .tokens = 512, .columns = 32768},
        {.name = "score 8192 x 8192 causal", .tokens = 8192, .columns = 8192, .causal = true},
        {.name = "score 2048 x 65536 mxfp4, q e2m1",
         .tokens = 2048,
         .columns = 65536,
         .format = SMLA_INDEX_MXFP4_68,
         .q = SMLA_E2M1},
        {.name = "score 2048 x 65536 bf16, q bf16",
         .tokens = 2048,
         .columns = 65536,
         .format = SMLA_ROW_BF16,
         .q = SMLA_BF16},
        {.name = "paged score 256 x 8192", .tokens = 256, .columns = 8192, .requests = 256, .next_n = 1},
        {.name = "paged score 256 x 8192 next_n 2",
         .tokens = 512,
         .columns = 8192,
         .requests = 256,
         .next_n = 2},
        {.name = "paged score 256 x 65536", .tokens = 256, .columns = 65536, .requests = 256, .next_n = 1},
        {.name = "paged score 256 x 65536 next_n 2",
         .tokens = 512,
         .columns = 65536,
         .requests = 256,
         .next_n = 2},
        {.name = "paged score 256 x 8192 next_n 4",
         .tokens = 1024,
         .columns = 8192,
         .requests = 256,
         .next_n = 4},
        {.name = "paged score 64 x 65536 next_n 3",
         .tokens = 192,
         .columns = 65536,
         .requests = 64,
         .next_n = 3},
        {.name = "paged score 64 x 65536 next_n 5",
         .tokens = 320,
         .columns = 65536,
         .requests = 64,
         .next_n = 5},
        {.name = "paged score 64 x 8192", .tokens = 64, .columns = 8192, .requests = 64, .next_n = 1},
        {.name = "paged score 1 x 131072 next_n 4",
         .tokens = 4,
         .columns = 131072,
         .requests = 1,
         .next_n = 4},
        {.name = "paged score 1 x 32768", .tokens = 1, .columns = 32768, .requests = 1, .next_n = 1},
        {.name = "paged score 1 x 131072", .tokens = 1, .columns = 131072, .requests = 1, .next_n = 1},
        {.name = "paged score 1 x 524288", .tokens = 1, .columns = 524288, .requests = 1, .next_n = 1},
        {.name = "paged score 256 x 8192 mxfp4",
         .tokens = 256,
         .columns = 8192,
         .requests = 256,
         .next_n = 1,
         .format = SMLA_INDEX_MXFP4_68,
         .q = SMLA_E2M1},
    };
    for (const ScoreShape& shape : scores) time_score(bench, shape);
}

void time_selections(Bench& bench) {
    time_select(bench, "select", 64, 131072);
    time_select(bench, "select", 2048, 65536);
    for (const int64_t rows : {1, 4, 8, 14, 16, 28, 32, 64}) time_select(bench, "select", rows, 65536);
    for (const int64_t rows : {1, 4, 8, 14, 16, 32}) time_select(bench, "select", rows, 131072);
    for (const int64_t columns : {4096, 8192, 16384, 32768})
        for (const int64_t rows : {1, 8, 16, 32, 64, 256, 2048}) time_select(bench, "select", rows, columns);
    time_select(bench, "select", 1, 131072, SMLA_BF16);
    time_select(bench, "select of 7 values,", 1, 131072, SMLA_F32, true);
    for (const int64_t columns : {262144, 524288}) time_select(bench, "select", 1, columns);
    time_select(bench, "select", 256, 65536);
    time_select(bench, "select", 2048, 65536, SMLA_BF16);
    time_select(bench, "select of 7 values,", 2048, 65536, SMLA_F32, true);
    time_select(bench, "select of 7 values,", 2048, 8192, SMLA_F32, true);
    time_select(bench, "select", 2048, 8192, SMLA_BF16);
    time_select(bench, "select", 4, 1 << 20);
    time_score_select(bench, {.name = "score_select 2048 x 65536", .tokens = 2048, .columns = 65536}, 0);
    time_score_select(bench, {.name = "score_select 2048 x 65536", .tokens = 2048, .columns = 65536},
                      16 << 20);
    for (const int64_t columns : {32768, 131072})
        time_score_select(bench,
                          {.name = columns > 32768 ? "score_select 1 x 131072" : "score_select 1 x 32768",
                           .tokens = 1,
                           .columns = columns,
                           .next_n = 1},
                          0);
    time_score_select(
        bench,
        {.name = "score_select 256 x 65536", .tokens = 256, .columns = 65536, .requests = 256, .next_n = 1},
        0);
    time_score_select(
        bench,
        {.name = "score_select 64 x 131072", .tokens = 64, .columns = 131072, .requests = 64, .next_n = 1},
        0);
}

void time_all(Gpu& gpu, Report& report, bool scores, bool selections) {
    Bench bench{gpu, report, {}, {}};
    std::printf("%s: mma.sync %.0f TFLOP/s, copy %.0f GB/s\n", gpu.device().facts().name.c_str(),
                bench.ceilings.tflops, bench.ceilings.gbytes);
    int32_t* const word = gpu.allocate<int32_t>(1);
    std::printf("a kernel without work: %.1f us\n",
                bench.timer.median_us([&] { fill_i32(word, 0, 0, 1, 1); }));
    if (scores) time_scores(bench);
    if (selections) time_selections(bench);
}

int run(const std::string& what) {
    Gpu gpu;
    Report report;
    report.tiny = what == "tiny";
    report.brief = what == "brief" || report.tiny;
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    if (what == "blocks") time_all_blocks(gpu, report);
    else if (what != "time" && what != "score" && what != "select") {
        check_score(gpu, report);
        std::printf("score: %d checks, %d wrong, error at most %.3f of the bound, %.1f s\n", report.checks,
                    report.failures, report.worst, seconds());
        check_select(gpu, report);
        std::printf("select: %d checks, %d wrong, %.1f s\n", report.checks, report.failures, seconds());
        check_score_select(gpu, report);
        if (!report.tiny) check_graph(gpu, report);
        std::printf("score_select: %d checks, %d wrong, %.1f s\n", report.checks, report.failures, seconds());
        std::fflush(stdout);
    }
    if (what.empty() || what == "time" || what == "score" || what == "select")
        time_all(gpu, report, what != "select", what != "score");
    std::printf("%d checks, %d wrong, %.1f s\n", report.checks, report.failures, seconds());
    return report.failures ? 1 : 0;
}

}  // namespace

}  // namespace smla::bench

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    const std::initializer_list<std::string> words{"",     "check", "brief",  "tiny",
                                                   "time", "score", "select", "blocks"};
    if (argc > 2 || std::find(words.begin(), words.end(), what) == words.end()) {
        std::fprintf(stderr, "usage: cuda_index [check|brief|tiny|time|score|select|blocks]\n");
        return 2;
    }
    try {
        return smla::bench::run(what);
    } catch (const smla::Error& error) {
        std::printf("%s: got %s, wants %s\n", error.field.c_str(), error.got.c_str(), error.wanted.c_str());
        return 1;
    }
}
