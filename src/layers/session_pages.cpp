// Pages of requests: allocated for the tokens of a step, freed, and copied to other requests and sessions.
#include "layers/session.h"

#include <algorithm>
#include <numeric>

namespace smla {

void Session::create_group(const CacheNeed& need, std::mt19937_64& random) {
    Group group;
    group.need = need;
    group.table = make_table(need);
    const int64_t pages = need.pages(options_.max_tokens, options_.max_step_tokens) * options_.max_requests;
    smla_cache& cache = group.cache;
    cache.format = need.format;
    cache.width = find_format(need.format)->width ? 0 : need.width;
    cache.page_tokens = need.page_rows;
    cache.pages = pages;
    cache.scale = find_format(need.format)->scale == ScaleKind::per_tensor ? options_.caches.kv_scale : 0.f;
    if (need.group & (SMLA_GROUP_PRIMARY | SMLA_GROUP_WINDOW | SMLA_GROUP_COMPRESSED))
        cache.writer = options_.caches.kv_writer;
    if (need.group != SMLA_GROUP_COMPRESSED) cache.writer &= ~SMLA_WRITER_FP4_VALUES;  // of a window
    group.memory = {context_.allocate(size_t(pages) * need.page_bytes()),
                    [this](void* memory) { context_.release(memory); }};
    cache.data = group.memory.get();
    cache.device_type = context_.device().type();
    cache.device_index = context_.device().index();
    context_.device().fill(cache.data, 0, size_t(pages) * need.page_bytes(), nullptr);
    group.free_pages.resize(size_t(pages));
    std::iota(group.free_pages.begin(), group.free_pages.end(), 0);
    std::shuffle(group.free_pages.begin(), group.free_pages.end(), random);
    group.pages.resize(size_t(options_.max_requests));
    groups_.push_back(std::move(group));
}

int32_t Session::take_page(Group& group) {
    if (group.free_pages.empty())
        fail(SMLA_INTERNAL, text("cache ", group.need.name), "no free page", "one for every row");
    const int32_t page = group.free_pages.back();
    group.free_pages.pop_back();
    return page;
}

// Frees pages[first, last); the list keeps its length.
void Session::give_back(Group& group, std::vector<int32_t>& pages, int64_t first, int64_t last) {
    for (int64_t i = first; i < std::min(last, int64_t(pages.size())); ++i) {
        if (pages[size_t(i)] >= 0) group.free_pages.push_back(pages[size_t(i)]);
        pages[size_t(i)] = -1;
    }
}

// Adds pages for new tokens of the step. Frees pages that neither this step nor a later one can see.
void Session::fit_pages(Group& group, const StepRequest& request) {
    std::vector<int32_t>& pages = group.pages[size_t(request.request)];
    const int64_t before = lengths_[size_t(request.request)], page = group.need.page_rows;
    if (group.need.resident)
        give_back(group, pages, 0, std::max<int64_t>(0, before - group.need.resident) / page);
    const int64_t needed = ceil_div(group.need.rows(before + request.tokens), page);
    while (int64_t(pages.size()) < needed) pages.push_back(take_page(group));
}

void Session::check_request(const char* field, int32_t request) const {
    SMLA_CHECK(request >= 0 && request < options_.max_requests, field, request,
               text("0 to ", options_.max_requests - 1));
}

void Session::end_request(int32_t request) {
    check_request("request", request);
    cut_pages(request, 0);
}

void Session::cut_pages(int32_t request, int32_t tokens) {
    for (Group& group : groups_) {
        std::vector<int32_t>& pages = group.pages[size_t(request)];
        const size_t kept = size_t(ceil_div(group.need.rows(tokens), group.need.page_rows));
        if (pages.size() <= kept) continue;
        give_back(group, pages, int64_t(kept), int64_t(pages.size()));
        pages.resize(kept);
    }
    lengths_[size_t(request)] = tokens;
}

// Returns the minimum number of tokens, except 0, that truncate() can keep, because the next token's window
// needs all of its pages.
int32_t Session::shortest(int32_t request) const {
    int64_t tokens = 0;
    for (const Group& group : groups_) {
        const std::vector<int32_t>& pages = group.pages[size_t(request)];
        const auto held = std::find_if(pages.begin(), pages.end(), [](int32_t page) { return page >= 0; });
        if (held == pages.begin()) continue;
        const int64_t window = group.need.resident - options_.rewind_tokens;
        tokens = std::max(tokens, (held - pages.begin()) * group.need.page_rows + window);
    }
    return int32_t(tokens);
}

void Session::truncate(int32_t request, int32_t tokens) {
    check_request("request", request);
    const int32_t length = lengths_[size_t(request)];
    SMLA_CHECK(tokens >= 0 && tokens <= length, "tokens", tokens,
               text("0 to ", length, " (the length of the request)"));
    SMLA_CHECK(tokens == 0 || tokens == length || tokens >= shortest(request), "tokens", tokens,
               text("0, or ", shortest(request), " to ", length,
                    ", because earlier window pages are freed (rewind_tokens keeps more)"));
    cut_pages(request, tokens);
}

void Session::copy_request(int32_t source, int32_t target) {
    check_request("source", source);
    check_request("target", target);
    const Move move{source, target};
    rearrange({&move, 1});
}

void Session::reorder(std::span<const int32_t> sources) {
    SMLA_CHECK(int64_t(sources.size()) <= options_.max_requests, "count", sources.size(),
               text("at most ", options_.max_requests));
    std::vector<Move> moves;
    for (size_t i = 0; i < sources.size(); ++i) {
        check_request(text("sources[", i, "]").c_str(), sources[i]);
        moves.push_back({sources[i], int32_t(i)});
    }
    rearrange(moves);
}

// Moves the content of requests move.from to requests move.to, each listed once. If a source is also a
// target, one move takes over its pages; the others copy them.
void Session::rearrange(std::span<const Move> moves) {
    const size_t requests = lengths_.size();
    std::vector<bool> target(requests);
    std::vector<int32_t> heir(requests, -1);  // for each source: the request that receives its pages
    for (const Move& move : moves) target[size_t(move.to)] = true;
    for (size_t r = 0; r < requests; ++r)
        if (!target[r]) heir[r] = int32_t(r);
    for (const Move& move : moves)
        if (move.from == move.to || heir[size_t(move.from)] < 0) heir[size_t(move.from)] = move.to;

    for (Group& group : groups_) {
        std::vector<std::vector<int32_t>> before(requests);
        before.swap(group.pages);
        group.pages.resize(requests);
        for (size_t r = 0; r < requests; ++r) {
            if (heir[r] >= 0) group.pages[size_t(heir[r])] = before[r];
            else give_back(group, before[r], 0, int64_t(before[r].size()));
        }
        std::vector<int32_t> pairs;
        for (const Move& move : moves)
            if (heir[size_t(move.from)] != move.to)
                group.pages[size_t(move.to)] = duplicate(group, before[size_t(move.from)], 0, pairs);
        copy_pages(group.cache, group.cache, pairs);
    }
    const std::vector<int32_t> before = lengths_;
    for (const Move& move : moves) lengths_[size_t(move.to)] = before[size_t(move.from)];
}

// Returns new pages for `pages` from `first` on; earlier pages are not needed.
std::vector<int32_t> Session::duplicate(Group& group, const std::vector<int32_t>& pages, int64_t first,
                                        std::vector<int32_t>& pairs) {
    std::vector<int32_t> out(pages.size(), -1);
    for (size_t i = size_t(std::max<int64_t>(first, 0)); i < pages.size(); ++i) {
        if (pages[i] < 0) continue;
        out[i] = take_page(group);
        pairs.insert(pairs.end(), {pages[i], out[i]});
    }
    return out;
}

void Session::copy_pages(const smla_cache& source, const smla_cache& target, std::vector<int32_t>& pairs) {
    if (pairs.empty()) return;
    const PlacedTensor placed =
        smla::place(context_.device(), make_tensor(pairs.data(), SMLA_I32, {int64_t(pairs.size()) / 2, 2}));
    smla_copy_pages_args args{};
    args.struct_size = sizeof args;
    args.source = source;
    args.target = target;
    args.pairs = placed.view;
    run_stage<Stage::copy_pages>(args, context_.env(workspace_.at_least(workspace_bytes_)));
    context_.device().wait(nullptr);  // before `pairs` is freed
}

std::unique_ptr<Session> Session::clone(const SessionOptions& options) const {
    for (int32_t r = 0; r < options_.max_requests; ++r) {
        const int32_t length = lengths_[size_t(r)];
        if (length == 0) continue;
        SMLA_CHECK(r < options.max_requests, "max_requests", options.max_requests,
                   text("at least ", r + 1, ", because request ", r, " has ", length, " tokens"));
        SMLA_CHECK(length <= options.max_tokens, "max_tokens", options.max_tokens,
                   text("at least ", length, " (the length of request ", r, ")"));
    }
    auto out = std::make_unique<Session>(context_, layer_, options);
    const size_t requests = std::min(lengths_.size(), out->lengths_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
        Group& to = out->groups_[g];
        std::vector<int32_t> pairs;
        for (size_t r = 0; r < requests; ++r) {
            // keeps the pages that the clone would have if its last step had max_step_tokens tokens
            const int64_t left = lengths_[r] - to.need.resident - options.max_step_tokens;
            const int64_t first = to.need.resident ? left / to.need.page_rows : 0;
            to.pages[r] = duplicate(to, groups_[g].pages[r], first, pairs);
        }
        out->copy_pages(groups_[g].cache, to.cache, pairs);
    }
    std::copy_n(lengths_.begin(), requests, out->lengths_.begin());
    topk();
    candidates();
    const auto copy = [](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
        if (to.size() < from.size()) to.resize(from.size());
        std::copy(from.begin(), from.end(), to.begin());
    };
    copy(topk_, out->topk_);
    copy(candidates_, out->candidates_);
    out->last_tokens_ = last_tokens_;
    return out;
}

}  // namespace smla
