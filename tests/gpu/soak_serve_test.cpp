// A trace of requests through every backend, again and again: other guesses, other preemptions, the same
// outputs as each request has alone.
#include "backends/registry.h"
#include "gpu/needs_gpu.h"
#include "gpu/soak.h"
#include "kit/context_args.h"
#include "serve/check.h"

namespace smla::cli {
namespace {

// arrival, prompt, output, shared: as in examples/traces/mixed.csv. The short form takes the first four.
const std::vector<TraceRequest> kTrace = {{0, 5, 12, 0}, {0, 300, 6, 280}, {1, 33, 9, 0},    {2, 290, 8, 280},
                                          {3, 1, 30, 0}, {4, 300, 5, 256}, {6, 540, 8, 520}, {9, 90, 14, 0},
                                          {12, 2, 3, 0}, {15, 600, 4, 520}};

Context gpu_context() { return Context(kit::context_args(SMLA_ENGINE_CUDA)); }

// Totals of all rounds.
struct Served {
    int64_t compared = 0, preempted = 0, rejected = 0;
    double worst = 0;
};

void serve(const ServeCase& each, const ServeSettings& settings, double share, Served& served) {
    SCOPED_TRACE(testing::Message() << each.backend->name << " ratio " << each.ratio << " "
                                    << settings.kv_dtype);
    const std::vector<TraceRequest> trace(kTrace.begin(), gpu::soaks() ? kTrace.end() : kTrace.begin() + 4);
    Context context = gpu_context();
    const ServeCheck check(each, settings, trace, context.device());
    gpu::ConstantMemory memory;
    const gpu::Deadline deadline(share);
    for (uint64_t round = 1; round == 1 || !deadline.passed(); ++round) {
        const ServeOutcome out = check.run(context, round);
        EXPECT_LE(out.error, out.limit) << "seed " << round << ", record " << out.record;
        EXPECT_GT(out.compared, 0);
        served.compared += out.compared;
        served.preempted += out.counts.preempted;
        served.rejected += out.counts.rejected;
        served.worst = std::max(served.worst, out.error);
        if (round == 1) memory.begin();
        memory.settle(deadline);
        if (testing::Test::HasFailure()) return;
    }
    memory.expect_unchanged();
}

TEST(GpuSoak, ServingOnEveryBackend) {
    SMLA_NEEDS_GPU();
    const std::vector<ServeCase> cases = serve_cases("all");
    Served served;
    for (const char* kv_dtype : {"row_f32", "auto"})  // auto: what the backend writes on this GPU
        for (const ServeCase& each : cases) {
            const ServeSettings settings{
                .kv_dtype = kv_dtype, .step_tokens = 64, .requests = 4, .pool_percent = 40};
            serve(each, settings, 0.5 / double(cases.size()), served);
            if (HasFailure()) return;
        }
    EXPECT_GT(served.preempted, 0);
    EXPECT_GT(served.rejected, 0);
    std::printf("%ld tokens compared, %ld guesses rejected, %ld requests preempted, largest error %.1e\n",
                long(served.compared), long(served.rejected), long(served.preempted), served.worst);
}

}  // namespace
}  // namespace smla::cli
