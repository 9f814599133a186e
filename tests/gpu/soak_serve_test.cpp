// A trace of requests through every backend, again and again: other guesses, other preemptions, the same
// outputs as each request has alone.
#include "backends/registry.h"
#include "gpu/needs_gpu.h"
#include "gpu/soak.h"
#include "serve/check.h"

namespace smla::cli {
namespace {

// arrival, prompt, output, shared: as in examples/traces/mixed.csv. The short form takes the first four.
const std::vector<TraceRequest> kTrace = {{0, 5, 12, 0}, {0, 300, 6, 280}, {1, 33, 9, 0},    {2, 290, 8, 280},
                                          {3, 1, 30, 0}, {4, 300, 5, 256}, {6, 540, 8, 520}, {9, 90, 14, 0},
                                          {12, 2, 3, 0}, {15, 600, 4, 520}};

Context gpu_context() {
    smla_context_args args{};
    args.struct_size = sizeof args;
    args.version = SMLA_VERSION;
    args.engine = SMLA_ENGINE_CUDA;
    return Context(args);
}

TEST(GpuSoak, ServingOnEveryBackend) {
    SMLA_NEEDS_GPU();
    const std::vector<ServeCase> cases = serve_cases("all");
    const std::vector<TraceRequest> trace(kTrace.begin(), gpu::soaks() ? kTrace.end() : kTrace.begin() + 4);
    const ServeSettings settings{.kv_dtype = "row_f32", .step_tokens = 64, .requests = 4, .pool_percent = 40};
    int64_t compared = 0, preempted = 0, rejected = 0;
    double worst = 0;
    for (const ServeCase& each : cases) {
        SCOPED_TRACE(testing::Message() << each.backend->name << " ratio " << each.ratio);
        const ServeCheck check(each, settings, trace);
        Context context = gpu_context();
        gpu::ConstantMemory memory;
        const gpu::Deadline deadline(1.0 / double(cases.size()));
        for (uint64_t round = 1; round == 1 || !deadline.passed(); ++round) {
            const ServeOutcome out = check.run(context, round);
            EXPECT_LE(out.error, kServeLimit) << "seed " << round << ", record " << out.record;
            EXPECT_GT(out.compared, 0);
            compared += out.compared;
            preempted += out.counts.preempted;
            rejected += out.counts.rejected;
            worst = std::max(worst, out.error);
            if (round == 1) memory.begin();
            memory.settle(deadline);
            if (HasFailure()) return;
        }
        memory.expect_unchanged();
    }
    EXPECT_GT(preempted, 0);
    EXPECT_GT(rejected, 0);
    std::printf("%ld tokens compared, %ld guesses rejected, %ld requests preempted, largest error %.1e\n",
                long(compared), long(rejected), long(preempted), worst);
}

}  // namespace
}  // namespace smla::cli
