// Checks of a session: of its options, and of each step before anything is written.
#include "layers/session.h"

namespace smla {

namespace {

bool readable(const Tensor& tensor) { return present(tensor) && tensor.device_type == SMLA_CPU; }

}  // namespace

void Session::check_options() const {
    SMLA_CHECK(options_.max_requests >= 1, "max_requests", options_.max_requests, "1 or more");
    SMLA_CHECK(options_.max_tokens >= 1, "max_tokens", options_.max_tokens, "1 or more");
    SMLA_CHECK(options_.max_step_tokens >= 1, "max_step_tokens", options_.max_step_tokens, "1 or more");
    SMLA_CHECK(options_.caches.page_tokens >= 1, "page_tokens", options_.caches.page_tokens, "1 or more");
    SMLA_CHECK(options_.rewind_tokens >= 0, "rewind_tokens", options_.rewind_tokens, "0 or more");
    check_entries_of();
    constexpr int64_t kMaxRows = int64_t(1) << 31;  // int32 row numbers; bytes fit size_t
    for (const CacheNeed& need : needs_) {
        const int64_t rows = need.pages(options_.max_tokens, options_.max_step_tokens) * need.page_rows;
        SMLA_CHECK(rows <= kMaxRows / options_.max_requests, "max_requests", options_.max_requests,
                   text("at most ", kMaxRows / rows, ", because each request has ", rows, " rows of ",
                        need.name, " and a cache at most ", kMaxRows));
    }
}

// A layer that reads another layer's entries needs that layer's session with the same requests. Each step
// repeats this check, because the session may have been resized or destroyed.
void Session::check_entries_of() const {
    if (!reads_entries()) {
        SMLA_CHECK(!options_.entries_of, "entries_of", "a session",
                   "none, because the layer reads no entries of another layer");
        return;
    }
    const auto wanted = [&] {
        return text("the session of layer ", sources_.entries, ", whose entries are read by layer ",
                    layer_.layer_index());
    };
    SMLA_CHECK(options_.entries_of, "entries_of", "none", wanted());
    const Session* const source = options_.entries_of->session;
    SMLA_CHECK(source, "entries_of", "a session that was destroyed", wanted());
    SMLA_CHECK(source->layer_.layer_index() == sources_.entries, "entries_of",
               text("a session of layer ", source->layer_.layer_index()), wanted());
    SMLA_CHECK(&source->context_ == &context_, "entries_of", "a session of another context",
               "a session of the same context");
    SMLA_CHECK(source->options_.max_requests >= options_.max_requests, "entries_of",
               text("a session for ", source->options_.max_requests, " requests"),
               text("a session for at least ", options_.max_requests));
    SMLA_CHECK(source->options_.max_tokens >= options_.max_tokens, "entries_of",
               text("a session for ", source->options_.max_tokens, " tokens"),
               text("a session for at least ", options_.max_tokens));
}

int64_t Session::step_tokens(const Step& step) const {
    int64_t tokens = 0;
    for (const StepRequest& request : step.requests) tokens += request.tokens;
    return tokens;
}

void Session::check(const Step& step) const {
    SMLA_CHECK(int64_t(step.requests.size()) <= options_.max_requests, "step.requests", step.requests.size(),
               text("at most ", options_.max_requests));
    std::vector<bool> seen(size_t(options_.max_requests));
    for (size_t i = 0; i < step.requests.size(); ++i) {
        const StepRequest& request = step.requests[i];
        SMLA_CHECK(request.request >= 0 && request.request < options_.max_requests,
                   text("step.requests[", i, "].request"), request.request,
                   text("0 to ", options_.max_requests - 1));
        SMLA_CHECK(!seen[size_t(request.request)], text("step.requests[", i, "].request"),
                   text(request.request, " twice"), "each request once");
        seen[size_t(request.request)] = true;
        const int64_t length = int64_t(lengths_[size_t(request.request)]) + request.tokens;
        SMLA_CHECK(
            request.tokens >= 0 && length <= options_.max_tokens, text("step.requests[", i, "].tokens"),
            request.tokens,
            text("0 to ", options_.max_tokens - lengths_[size_t(request.request)],
                 " (the rest of max_tokens, ", options_.max_tokens, "); resize the session for more tokens"));
    }
    const int64_t tokens = step_tokens(step), hidden = layer_.config().common.hidden_size;
    SMLA_CHECK(tokens <= options_.max_step_tokens, "step.requests", text(tokens, " tokens"),
               text("at most ", options_.max_step_tokens));
    check_tensor("step.hidden", step.hidden, kFloats, {tokens, hidden});
    check_rows("step.hidden", step.hidden);
    check_tensor("step.out", step.out, kFloats, {tokens, hidden});
    check_rows("step.out", step.out);
    if (check_optional("step.rope_positions", step.rope_positions, kInts, {tokens}) &&
        readable(step.rope_positions))
        check_positions("step.rope_positions", step.rope_positions, tokens);
    check_forced_entries(step, tokens);
    check_sources(step, tokens);
}

// Throws unless the layers that this layer reads have run the same step.
void Session::check_sources(const Step& step, int64_t tokens) const {
    check_candidates(layer_, step.candidates, {}, !present(step.forced_topk), tokens);
    check_entries_of();
    if (!reads_entries()) return;
    for (const StepRequest& request : step.requests) {
        const int64_t wanted = int64_t(lengths_[size_t(request.request)]) + request.tokens;
        const int64_t got = entries_of().length(request.request);
        SMLA_CHECK(got == wanted, text("step.requests: request ", request.request),
                   text(got, " tokens in layer ", sources_.entries),
                   text(wanted, ", because the layer that writes the entries must run the step first"));
    }
}

// Attention does not check forced entries, which must not include keys of later tokens.
void Session::check_forced_entries(const Step& step, int64_t tokens) const {
    const AttentionConfig& config = layer_.config();
    check_forced_topk("step.forced_topk", layer_, step.forced_topk, tokens);
    if (!present(step.forced_topk)) return;
    const int64_t columns = step.forced_topk.shape[1];
    SMLA_CHECK(columns <= config.indexer->topk, "step.forced_topk.shape[1]", columns,
               text("at most index_topk", config.dsa && config.dsa->pool ? " / index_kpool (" : " (",
                    config.indexer->topk, ")"));
    if (!readable(step.forced_topk)) return;
    const int64_t ratio = std::max<int64_t>(config.compress_ratio(layer_.layer_index()), 1);
    int64_t t = 0;
    for (const StepRequest& request : step.requests)
        for (int32_t i = 0; i < request.tokens; ++i, ++t) {
            const int64_t sees = (int64_t(lengths_[size_t(request.request)]) + i + 1) / ratio;
            for (int64_t c = 0; c < columns; ++c) {
                const int64_t entry = load_int(step.forced_topk, t, c);
                SMLA_CHECK(entry >= -1 && entry < sees, text("step.forced_topk[", t, ",", c, "]"), entry,
                           text("-1, or one of the first ", sees,
                                ratio == 1   ? " positions"
                                : config.dsa ? " pools"
                                             : " entries",
                                " (visible to the token)"));
            }
        }
}

}  // namespace smla
