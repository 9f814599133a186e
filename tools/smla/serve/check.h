// A trace of requests through one backend: every token's output against that of its request computed alone.
#pragma once

#include "run.h"

#include <string>
#include <vector>

namespace smla::cli {

// The two sides sum a few hundred f32 products in different orders. Their records are the same bits, but for
// codes of entries whose pooling is not that of the reference's loops: a value between two codes may become
// either, and one of e4m3 is up to an eighth of the value off, in one of some hundred keys (1.8e-3 at most in
// 1,732 tokens on an H100, 2.4e-4 in 1,922 with AVX2). A wrong row is off by more than a tenth.
constexpr double kServeLimit = 1e-4, kServeCodeLimit = 1e-2;

struct ServeCase {
    const Backend* backend;
    int32_t ratio;
    bool indexed = false;  // same as in ServeSpec
};
std::vector<ServeCase> serve_cases(const std::string& backend);  // or "all"

struct ServeSettings {
    std::string kv_dtype = "auto";
    int32_t step_tokens = 192, requests = 6, pool_percent = 45;
};

struct ServeOutcome {
    std::string record;  // formats of both caches, if they differ
    std::string lists;   // of what tokens attend to: "given", or selected "in blocks"; empty: there are none
    ServeCounts counts;
    int64_t compared = 0;
    int64_t restricted = 0;  // number of these tokens whose lists would differ without candidate blocks
    double error = 0;        // largest difference, relative to the row's root mean square
    double limit = kServeLimit;
};

class ServeCheck {
public:
    // Computes each request alone on the processor, with the records that the backend has on `device`, and
    // with lists by plain loops where layers select.
    ServeCheck(const ServeCase& each, const ServeSettings& settings, const std::vector<TraceRequest>& trace,
               const Device& device);
    // The trace in batches; what is guessed, rejected and preempted follows from the seed.
    ServeOutcome run(Context& context, uint64_t seed) const;

private:
    ServeSpec spec_;
    ServeSettings settings_;
    std::vector<TraceRequest> trace_;
    int32_t longest_ = 0, total_ = 0;  // tokens
    std::vector<PlainLists> lists_;    // lists by request, if layers select
    std::vector<std::vector<float>> alone_;
};

}  // namespace smla::cli
