// A trace of requests through one backend: every token's output against that of its request computed alone.
#pragma once

#include "run.h"

#include <string>
#include <vector>

namespace smla::cli {

// The two sides sum a few hundred f32 products in different orders. Their records are the same bits.
constexpr double kServeLimit = 1e-4;

struct ServeCase {
    const Backend* backend;
    int32_t ratio;
};
std::vector<ServeCase> serve_cases(const std::string& backend);  // or "all"

struct ServeSettings {
    std::string kv_dtype = "auto";
    int32_t step_tokens = 192, requests = 6, pool_percent = 45;
};

struct ServeOutcome {
    std::string record;  // of both caches, if they differ
    ServeCounts counts;
    int64_t compared = 0;
    double error = 0;  // largest difference, relative to the row's root mean square
};

class ServeCheck {
public:
    // Computes each request alone.
    ServeCheck(const ServeCase& each, const ServeSettings& settings, const std::vector<TraceRequest>& trace);
    // The trace in batches; what is guessed, rejected and preempted follows from the seed.
    ServeOutcome run(Context& context, uint64_t seed) const;

private:
    ServeSpec spec_;
    ServeSettings settings_;
    std::vector<TraceRequest> trace_;
    int32_t longest_ = 0, total_ = 0;  // tokens
    std::vector<std::vector<float>> alone_;
};

}  // namespace smla::cli
