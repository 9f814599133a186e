#include "layers/session.h"

#include "engines/plan.h"

#include <algorithm>

namespace smla {

namespace {

Tensor numbers(std::vector<int32_t>& values) {
    return make_tensor(values.data(), SMLA_I32, {int64_t(values.size())});
}

}  // namespace

Session::Session(Context& context, const Layer& layer, const SessionOptions& options)
    : context_(context), layer_(layer), options_(options), staging_(context), workspace_(context) {
    sources_ = layer.config().sources(layer.layer_index());
    options_.caches.f64 = layer.precision().activations == SMLA_F64;
    needs_ = cache_needs(layer.config(), layer.layer_index(), options_.caches);
    for (CacheNeed& need : needs_)
        if (need.resident) need.resident += options_.rewind_tokens;
    check_options();
    std::mt19937_64 random(options.page_seed);
    groups_.reserve(needs_.size());
    for (const CacheNeed& need : needs_) create_group(need, random);
    if (reads_entries())
        for (const int32_t bit : {SMLA_GROUP_COMPRESSED, SMLA_GROUP_INDEX})
            if (const Group* const group = entries_of().find_group(bit))
                read_groups_.push_back({bit, make_table(group->need)});
    lengths_.assign(size_t(options.max_requests), 0);
    query_start_loc_.resize(size_t(options.max_requests) + 1);
    seq_lens_.resize(size_t(options.max_requests));
    if (layer.config().indexer)
        topk_.resize(size_t(options.max_step_tokens) * size_t(layer.config().indexer->topk));

    const AttentionConfig& config = layer.config();
    if (names_candidates())
        candidates_.resize(size_t(options.max_step_tokens) *
                           size_t(config.hybrid->sharing->candidate_blocks));
    PlanMaxima maxima = plan_for(layer);
    maxima.max_tokens = options.max_step_tokens;
    maxima.max_requests = options.max_requests;
    maxima.max_seq_len = options.max_tokens;
    plan_ = std::make_unique<Plan>(maxima, plan_place(context));

    const Step largest = largest_step();
    workspace_bytes_ = largest_workspace(largest);
    workspace_.at_least(workspace_bytes_);
    reserve_staging(largest);
}

Session::~Session() {
    if (place_->session == this) place_->session = nullptr;
}

void Session::replace(Session& other) {
    place_ = other.place_;
    place_->session = this;
}

// Returns the largest step as shapes without memory.
Session::Step Session::largest_step() const {
    const AttentionConfig& config = layer_.config();
    Step largest;
    largest.hidden = make_tensor(static_cast<void*>(nullptr), layer_.precision().activations,
                                 {options_.max_step_tokens, config.common.hidden_size});
    largest.out = largest.hidden;
    if (sources_.selection >= 0 && sources_.selection != layer_.layer_index())
        largest.forced_topk = make_tensor(static_cast<void*>(nullptr), SMLA_I32,
                                          {options_.max_step_tokens, config.indexer->topk});
    if (reads_candidates())
        largest.candidates =
            make_tensor(static_cast<void*>(nullptr), SMLA_I32,
                        {options_.max_step_tokens, config.hybrid->sharing->candidate_blocks});
    return largest;
}

// Stages convert dtypes other than f32, so the scratch depends on the dtypes of hidden and out.
size_t Session::largest_workspace(Step largest) {
    constexpr smla_dtype kEach[] = {SMLA_F32, SMLA_BF16, SMLA_F16, SMLA_F64};
    const Env env = context_.env({});
    size_t bytes = 0;
    for (const smla_dtype hidden : kEach)
        for (const smla_dtype out : kEach) {
            largest.hidden.dtype = hidden;
            largest.out.dtype = out;
            bytes = std::max(
                bytes, layer_workspace(layer_, env, layer_step(largest), options_.stage_budget, nullptr));
        }
    return bytes;
}

// Reserves room for all host tensors of the largest step.
void Session::reserve_staging(const Step& largest) {
    const auto room = [](const Tensor& tensor) {
        return present(tensor) ? round_up(span_bytes(tensor), Staging::kAlignment) : 0;
    };
    const Tensor positions = make_tensor(static_cast<void*>(nullptr), SMLA_I64, {options_.max_step_tokens});
    size_t bytes = 2 * room(largest.hidden);
    if (layer_.config().indexer) {  // forced selection, and the layer's own
        const int64_t columns = layer_.config().indexer->topk;
        bytes += 2 * room(make_tensor(topk_.data(), SMLA_I32, {options_.max_step_tokens, columns}));
    }
    if (names_candidates()) bytes += room(host_candidates(options_.max_step_tokens));
    bytes += room(largest.candidates) + room(positions);
    size_t lists = room(numbers(query_start_loc_)) + room(numbers(seq_lens_));
    for (const Group& group : groups_) lists += room(group.table.placed);
    for (const ReadGroup& group : read_groups_) lists += room(group.table.placed);
    staging_.reserve(lists, bytes);
}

// Builds the plan on the layer's device.
void Session::build_plan(const Step& step) {
    const int64_t requests = int64_t(step.requests.size());
    PlanBatch batch{};
    batch.struct_size = sizeof batch;
    query_start_loc_[0] = 0;
    for (int64_t r = 0; r < requests; ++r) {
        const StepRequest& request = step.requests[size_t(r)];
        query_start_loc_[size_t(r) + 1] = query_start_loc_[size_t(r)] + request.tokens;
        seq_lens_[size_t(r)] = lengths_[size_t(request.request)] + request.tokens;
    }
    batch.query_start_loc =
        slice(staging_.put_numbers(numbers(query_start_loc_), requests + 1), 0, 0, requests + 1);
    batch.seq_lens = slice(staging_.put_numbers(numbers(seq_lens_), requests), 0, 0, requests);
    batch.rope_positions = staging_.put(step.rope_positions);
    batch.tokens = std::max<int64_t>(query_start_loc_[size_t(requests)], 1);
    const auto view_of = [&](const StepTable& table, const Group& group) {
        PlanGroup view{};
        view.block_table = slice(table.placed, 0, 0, requests);
        view.page_tokens = group.need.page_rows;
        return view;
    };
    for (ReadGroup& read : read_groups_) {
        const Group& group = *entries_of().find_group(read.bit);
        place_table(read.table, group, step.requests);
        if (read.bit == SMLA_GROUP_COMPRESSED) batch.compressed = view_of(read.table, group);
    }
    for (Group& group : groups_) {
        for (const StepRequest& request : step.requests) fit_pages(group, request);
        place_table(group.table, group, step.requests);
        const PlanGroup view = view_of(group.table, group);
        switch (group.need.group) {
            case SMLA_GROUP_PRIMARY: batch.primary = view; break;
            case SMLA_GROUP_WINDOW: batch.window = view; break;
            case SMLA_GROUP_COMPRESSED: batch.compressed = view; break;
            case SMLA_GROUP_INDEX: batch.index = view; break;
            case SMLA_GROUP_STATE: batch.state = view; break;
            case SMLA_GROUP_INDEX_STATE: batch.index_state = view; break;
        }
    }
    staging_.send();
    plan_->build(batch);
}

Session::StepTable Session::make_table(const CacheNeed& need) const {
    StepTable out;
    out.columns = ceil_div(std::max<int64_t>(need.rows(options_.max_tokens), 1), need.page_rows);
    out.blocks.resize(size_t(options_.max_requests) * size_t(out.columns));
    out.placed = make_tensor(out.blocks.data(), SMLA_I32, {options_.max_requests, out.columns});
    return out;
}

void Session::place_table(StepTable& table, const Group& group, std::span<const StepRequest> requests) {
    int32_t* row = table.blocks.data();
    for (const StepRequest& request : requests) {
        const std::vector<int32_t>& pages = group.pages[size_t(request.request)];
        std::fill(std::copy(pages.begin(), pages.end(), row), row + table.columns, -1);
        row += table.columns;
    }
    const Tensor host = make_tensor(table.blocks.data(), SMLA_I32, {options_.max_requests, table.columns});
    table.placed = staging_.put_numbers(host, int64_t(requests.size()));
}

const Session::Group* Session::find_group(int32_t bit) const {
    for (const Group& group : groups_)
        if (group.need.group == bit) return &group;
    return nullptr;
}

CacheGroup Session::cache_group(int32_t bit, const Tensor& slots) const {
    if (const Group* group = find_group(bit)) return {group->cache, group->table.placed, slots};
    for (const ReadGroup& read : read_groups_)
        if (read.bit == bit) return {entries_of().find_group(bit)->cache, read.table.placed, {}};
    return {};
}

LayerStep Session::layer_step(const Step& step) {
    const int64_t tokens = step.hidden.shape[0];
    const PlanFields& fields = plan_->fields();
    const auto cut = [&](const Tensor& field) { return present(field) ? slice(field, 0, 0, tokens) : field; };
    const int64_t ratio = std::max<int64_t>(layer_.config().compress_ratio(layer_.layer_index()), 1);
    const auto group = [&](int32_t bit, const Tensor& slots) { return cache_group(bit, slots); };
    LayerStep out = planned_step(fields, cut, group, options_.max_tokens / ratio);
    out.hidden = staging_.put(step.hidden);
    out.out = staging_.room(step.out);
    out.forced_topk = staging_.put(step.forced_topk);
    out.topk = staging_.room(host_topk(tokens));
    out.candidates = staging_.put(step.candidates);
    out.best_blocks = staging_.room(host_candidates(tokens));
    return out;
}

void Session::forward(const Step& step) {
    check(step);
    last_tokens_ = 0;
    staging_.begin_step();
    build_plan(step);
    LayerStep inner = layer_step(step);
    int64_t longest = 1;  // most columns that a token of this step can score
    for (size_t r = 0; r < step.requests.size(); ++r) longest = std::max<int64_t>(longest, seq_lens_[r]);
    // Rounding keeps the bound the same for many steps, which therefore share plans.
    constexpr int64_t kColumns = 1024;
    inner.batch.max_columns = std::min(inner.batch.max_columns, ceil_div(longest, kColumns) * kColumns);
    const Env env = context_.env({});
    size_t bytes = workspace_bytes_;
    if (step.tap)
        bytes =
            layer_workspace(layer_, env, inner, options_.stage_budget, step.tap);  // a tap takes activations
    run_layer(layer_, env, inner, workspace_.at_least(bytes), options_.stage_budget, &records, step.tap);
    staging_.get(inner.out, step.out);
    placed_topk_ = inner.topk;
    placed_candidates_ = inner.best_blocks;
    for (const StepRequest& request : step.requests) lengths_[size_t(request.request)] += request.tokens;
    last_tokens_ = step.hidden.shape[0];
}

Tensor Session::fetched(Tensor& placed, const Tensor& host) const {
    if (present(placed) && last_tokens_ > 0) staging_.get(placed, host);
    placed = {};
    return host;
}

Tensor Session::topk() const { return fetched(placed_topk_, host_topk(last_tokens_)); }

Tensor Session::host_topk(int64_t tokens) const {
    if (sources_.selection != layer_.layer_index()) return {};
    return make_tensor(topk_.data(), SMLA_I32, {tokens, layer_.config().indexer->topk});
}

Tensor Session::candidates() const { return fetched(placed_candidates_, host_candidates(last_tokens_)); }

Tensor Session::host_candidates(int64_t tokens) const {
    if (!names_candidates()) return {};
    return make_tensor(candidates_.data(), SMLA_I32,
                       {tokens, layer_.config().hybrid->sharing->candidate_blocks});
}

size_t Session::cache_bytes() const {
    size_t bytes = 0;
    for (const Group& group : groups_) bytes += smla::cache_bytes(group.cache);
    return bytes;
}

}  // namespace smla
