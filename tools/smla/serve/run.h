// A small serving engine. Requests join, share prefixes, are preempted and resume; batches mix decodes with
// speculative tokens, short extends and chunks of prefill.
#pragma once

#include "model.h"
#include "pages.h"
#include "trace.h"

#include <map>
#include <random>

namespace smla::cli {

struct ServeLimits {
    int32_t step_tokens, requests;
    std::vector<int32_t> pages;  // pages of each group
    uint64_t seed;
};

struct ServeCounts {
    int64_t steps = 0, tokens = 0, decodes = 0, rejected = 0, preempted = 0, shared = 0;  // shared: tokens
};

// Identifies a token by request and position. Rejected guesses have other keys.
uint64_t token_key(const TraceRequest& request, int32_t id, int32_t position);

class ServeRun {
public:
    ServeRun(ServeModel& model, const std::vector<ServeGroup>& groups, const std::vector<TraceRequest>& trace,
             const ServeLimits& limits);
    // Runs one step; calls `see` with the output row of every accepted token. False when all requests are
    // done.
    bool step(const std::function<void(int32_t id, int32_t position, const float* row)>& see);
    const ServeCounts& counts() const { return counts_; }

private:
    using Pages = std::vector<std::vector<int32_t>>;  // by group
    struct Request {
        int32_t id, computed = 0, produced = 0;
        Pages pages;
    };
    struct Part {
        size_t running;        // index
        int32_t right, wrong;  // tokens
    };

    void admit();
    void take_prefix(Request& request);
    void keep_prefix(const Request& request);
    void release(Pages& pages);
    bool fit(size_t running, int32_t tokens);
    std::vector<Part> schedule();
    int32_t known(const Request& request) const {
        return trace_[size_t(request.id)].prompt + request.produced;
    }

    ServeModel& model_;
    std::vector<ServeGroup> groups_;
    const std::vector<TraceRequest>& trace_;
    ServeLimits limits_;
    std::vector<PagePool> pools_;
    std::vector<Request> running_, waiting_;
    std::map<int32_t, Pages> prefixes_;  // pages of the shared text, by tokens
    std::mt19937_64 random_;
    size_t arrived_ = 0;
    int32_t clock_ = 0;
    ServeCounts counts_;
};

}  // namespace smla::cli
