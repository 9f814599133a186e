#include "run.h"

#include <algorithm>

namespace smla::cli {

namespace {

constexpr int32_t kBlock = 256;  // tokens that fill whole pages of every group
constexpr int32_t kMostGuesses = 3;
constexpr uint64_t kWrong = 0x5851f42d4c957f2du;

}  // namespace

uint64_t token_key(const TraceRequest& request, int32_t id, int32_t position) {
    const uint64_t text = position < request.shared ? 0 : uint64_t(id) + 1;
    return (text << 32) + uint64_t(position);
}

ServeRun::ServeRun(ServeModel& model, const std::vector<ServeGroup>& groups,
                   const std::vector<TraceRequest>& trace, const ServeLimits& limits)
    : model_(model), groups_(groups), trace_(trace), limits_(limits), random_(limits.seed) {
    for (const int32_t pages : limits.pages) pools_.emplace_back(pages);
}

void ServeRun::release(Pages& pages) {
    for (size_t g = 0; g < pages.size(); ++g)
        for (const int32_t page : pages[g]) pools_[g].release(page);
    pages.assign(groups_.size(), {});
}

// Takes over whole blocks of the shared prefix that another request has computed. At least one token of the
// prompt is left to compute.
void ServeRun::take_prefix(Request& request) {
    const TraceRequest& from = trace_[size_t(request.id)];
    const int32_t most = std::min(from.shared, known(request) - 1) / kBlock * kBlock;
    for (auto prefix = prefixes_.rbegin(); prefix != prefixes_.rend(); ++prefix) {
        if (prefix->first > most) continue;
        request.pages = prefix->second;
        for (size_t g = 0; g < groups_.size(); ++g)
            for (const int32_t page : request.pages[g]) pools_[g].share(page);
        request.computed = prefix->first;
        counts_.shared += prefix->first;
        return;
    }
}

void ServeRun::keep_prefix(const Request& request) {
    const int32_t tokens = std::min(trace_[size_t(request.id)].shared, request.computed) / kBlock * kBlock;
    if (tokens == 0 || prefixes_.count(tokens)) return;
    Pages pages(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
        const int64_t count = groups_[g].pages(tokens);
        pages[g].assign(request.pages[g].begin(), request.pages[g].begin() + count);
        for (const int32_t page : pages[g]) pools_[g].share(page);
    }
    prefixes_[tokens] = std::move(pages);
}

void ServeRun::admit() {
    while (arrived_ < trace_.size() && trace_[arrived_].arrival <= clock_) {
        waiting_.push_back({int32_t(arrived_), 0, 0, Pages(groups_.size())});
        ++arrived_;
    }
    while (!waiting_.empty() && int32_t(running_.size()) < limits_.requests) {
        running_.push_back(std::move(waiting_.front()));
        waiting_.erase(waiting_.begin());
        take_prefix(running_.back());
    }
}

// Finds pages for `tokens` more tokens: frees kept prefixes first, then preempts requests that came later.
bool ServeRun::fit(size_t at, int32_t tokens) {
    for (size_t g = 0; g < groups_.size(); ++g) {
        const int64_t wanted = groups_[g].pages(running_[at].computed + tokens);
        while (int64_t(running_[at].pages[g].size()) + pools_[g].free_pages() < wanted) {
            if (!prefixes_.empty()) {
                release(prefixes_.begin()->second);
                prefixes_.erase(prefixes_.begin());
            } else if (running_.size() > at + 1) {
                Request& victim = running_.back();
                release(victim.pages);
                victim.computed = 0;
                waiting_.insert(waiting_.begin(), std::move(victim));
                running_.pop_back();
                ++counts_.preempted;
            } else {
                return false;
            }
        }
        while (int64_t(running_[at].pages[g].size()) < wanted)
            running_[at].pages[g].push_back(pools_[g].take());
    }
    return true;
}

std::vector<ServeRun::Part> ServeRun::schedule() {
    std::vector<Part> parts;
    int32_t left = limits_.step_tokens;
    const auto below = [&](uint64_t n) { return int32_t(random_() % n); };
    for (size_t i = 0; i < running_.size(); ++i) {  // fit() can shorten the list
        const int32_t total = trace_[size_t(running_[i].id)].total(),
                      missing = known(running_[i]) - running_[i].computed;
        Part part{i, std::min(missing, left), 0};
        if (missing == 1 && running_[i].produced > 0) {  // a decode step can include guessed tokens
            const int32_t guesses = std::min({below(kMostGuesses + 1), left - 1, total - known(running_[i])});
            const int32_t good = guesses > 0 ? below(uint64_t(guesses) + 1) : 0;
            part.right += good;
            part.wrong = std::max(guesses - good, 0);
        }
        if (part.right < 1 || !fit(i, part.right + part.wrong)) continue;
        left -= part.right + part.wrong;
        parts.push_back(part);
    }
    std::stable_partition(parts.begin(), parts.end(),
                          [](const Part& part) { return part.right + part.wrong <= 1 + kMostGuesses; });
    return parts;
}

bool ServeRun::step(const std::function<void(int32_t, int32_t, const float*)>& see) {
    admit();
    ++clock_;
    const std::vector<Part> parts = schedule();
    std::vector<ServeSlice> slices;
    for (const Part& part : parts) {
        const Request& request = running_[part.running];
        ServeSlice slice{.computed = request.computed, .pages = &request.pages};
        for (int32_t i = 0; i < part.right + part.wrong; ++i)
            slice.keys.push_back(token_key(trace_[size_t(request.id)], request.id, request.computed + i) ^
                                 (i < part.right ? 0 : kWrong));
        slices.push_back(std::move(slice));
    }
    if (!slices.empty()) {
        const std::vector<float> out = model_.step(slices);
        const float* row = out.data();
        for (const Part& part : parts) {
            Request& request = running_[part.running];
            for (int32_t i = 0; i < part.right; ++i)
                see(request.id, request.computed + i, row + int64_t(i) * model_.width());
            row += int64_t(part.right + part.wrong) * model_.width();
            counts_.tokens += part.right + part.wrong;
            counts_.decodes += request.produced > 0;
            counts_.rejected += part.wrong;
            const int32_t before = known(request);
            request.computed += part.right;
            // accepted guesses become text; a request that has computed all its text produces a token
            request.produced += std::max(0, request.computed - before);
            if (request.computed == known(request))
                request.produced = std::min(request.produced + 1, trace_[size_t(request.id)].output);
            keep_prefix(request);
        }
        ++counts_.steps;
    } else if (!running_.empty()) {
        fail(SMLA_INVALID_ARGUMENT, "--pool-percent", "a pool that is too small",
             "enough pages for the longest request");
    }
    for (size_t i = running_.size(); i-- > 0;)
        if (running_[i].computed == trace_[size_t(running_[i].id)].total()) {
            release(running_[i].pages);
            running_.erase(running_.begin() + int64_t(i));
        }
    return !running_.empty() || !waiting_.empty() || arrived_ < trace_.size();
}

}  // namespace smla::cli
