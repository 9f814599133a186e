#include "model.h"

#include "backends/device.h"
#include "backends/step.h"
#include "noise.h"

#include <algorithm>
#include <cmath>

namespace smla::cli {

namespace {

constexpr int32_t kHeads = 2;

// Returns number `i` of a token's input `what`, in [-1, 1).
float noise(uint64_t key, uint64_t what, uint64_t i) {
    return float(int64_t(drawn(key, what, i) >> 40)) * 0x1p-23f - 1.f;
}

// An entry of a single token pools nothing, so ratio 1 needs no state.
bool has_state(const ServeSpec& spec) { return spec.ratio > 1; }

BackendArgs serve_args(const ServeSpec& spec) {
    BackendArgs args{};
    args.struct_size = sizeof args;
    args.family = spec.backend->family;
    args.dtype = SMLA_F32;
    args.kv_cache_dtype = spec.kv_dtype.c_str();
    args.device = spec.device;
    args.heads = kHeads;
    args.topk = kServeTopk;
    args.ratio = spec.ratio;
    args.max_tokens = spec.max_tokens;
    args.max_requests = spec.max_requests;
    args.max_seq_len = spec.max_seq_len;
    args.speculative_tokens = spec.speculative_tokens;
    args.plan_groups = (has_state(spec) ? SMLA_GROUP_STATE : 0) | (spec.indexed ? SMLA_GROUP_INDEX : 0);
    args.softmax_scale = args.family == SMLA_FAMILY_DSA ? std::pow(192, -0.5) : std::pow(512, -0.5);
    return args;
}

// Fills rows of [T,...] with number(key, i) of each token.
template <class Number>
void fill_rows(Tensor& tensor, const std::vector<ServeSlice>& slices, Memory& memory, const Number& number) {
    memory.back(tensor);
    const int64_t each = tensor.stride_elems[0];
    float* at = static_cast<float*>(tensor.data);
    for (const ServeSlice& slice : slices)
        for (const uint64_t key : slice.keys)
            for (int64_t i = 0; i < each; ++i) *at++ = number(key, i);
}
void fill_rows(Tensor& tensor, const std::vector<ServeSlice>& slices, uint64_t what, Memory& memory) {
    fill_rows(tensor, slices, memory, [&](uint64_t key, int64_t i) { return noise(key, what, uint64_t(i)); });
}

// Copies a tensor to the context's device.
BackendInstance instance_on(Context& context, const ServeSpec& spec) {
    BackendInstance out(*spec.backend, resolve_config(serve_args(spec)));
    if (context.device().type() != SMLA_CPU) out.context = &context;
    return out;
}

Tensor floats(std::initializer_list<int64_t> shape) {
    return make_tensor(static_cast<void*>(nullptr), SMLA_F32, shape);
}
Tensor integers(std::initializer_list<int64_t> shape) {
    return make_tensor(static_cast<void*>(nullptr), SMLA_I32, shape);
}

}  // namespace

std::vector<ServeGroup> ServeModel::groups(const ServeSpec& spec) {
    if (spec.backend->family == SMLA_FAMILY_DSA) return {{SMLA_GROUP_PRIMARY, 64, 1}};
    std::vector<ServeGroup> out{
        {SMLA_GROUP_WINDOW, find_family(spec.backend->family)->window_page_tokens, 1}};
    if (spec.ratio)
        out.push_back({SMLA_GROUP_COMPRESSED, spec.backend->page_tokens / spec.ratio, spec.ratio});
    if (spec.indexed) out.push_back({SMLA_GROUP_INDEX, spec.backend->page_tokens / spec.ratio, spec.ratio});
    if (has_state(spec)) out.push_back({SMLA_GROUP_STATE, spec.ratio == 4 ? 4 : 8, 1});
    return out;
}

bool ServeModel::has_group(int32_t bit) const {
    return std::any_of(groups_.begin(), groups_.end(),
                       [&](const ServeGroup& each) { return each.bit == bit; });
}

// V4's groups of four overlap: a token's row has a half for its own group and one for the next.
int64_t ServeModel::compressor_width() const {
    return int64_t(spec_.ratio == 4 ? 2 : 1) * on_.config.args.head_dim;
}

ServeModel::ServeModel(Context& context, const ServeSpec& spec, const std::vector<int32_t>& pages)
    : context_(context),
      spec_(spec),
      groups_(groups(spec)),
      on_(instance_on(context, spec)),
      metadata_(on_.metadata()),
      placed_(context.device()),
      workspace_(context) {
    make_caches(pages);
    starts_.resize(size_t(spec.max_requests) + 1);
    lengths_.resize(size_t(spec.max_requests));
    make_weights();
    for (std::vector<smla_cache>* all : {&caches_, &windows_})
        for (smla_cache& each : *all) placed_.take(each);
    for (Tensor* each : {&w_uk_t_, &w_uv_, &sink_, &ape_, &norm_, &frequencies_}) placed_.take(*each);
}

void ServeModel::make_caches(const std::vector<int32_t>& pages) {
    for (size_t g = 0; g < groups_.size(); ++g) {
        const ServeGroup& group = groups_[g];
        smla_format format = on_.format;
        int64_t width = on_.config.head_size();
        if (group.bit == SMLA_GROUP_COMPRESSED) format = on_.entry_format;
        if (group.bit == SMLA_GROUP_INDEX) format = SMLA_INDEX_MXFP4_68, width = kIndexWidth;
        if (group.bit == SMLA_GROUP_STATE) format = SMLA_STATE_F32, width = 2 * compressor_width();
        const auto made = [&] {
            smla_cache out = cache_of(format, width, int64_t(pages[g]) * group.page_rows, group.page_rows);
            if (find_format(format)->scale == ScaleKind::per_tensor)
                out.scale = 0.01f;  // values up to 1 stay within 448
            fixed_.back(out);
            return out;
        };
        caches_.push_back(made());
        for (int32_t layer = 1; layer < layers() && group.bit == SMLA_GROUP_WINDOW; ++layer)
            windows_.push_back(made());
        tables_.emplace_back(size_t(spec_.max_requests * group.pages(spec_.max_seq_len + 256)));
    }
}

void ServeModel::make_weights() {
    const BackendArgs& args = on_.config.args;
    Filler filler(fixed_, context_.pool(), 3);
    const auto weight = [&](Tensor& tensor, std::initializer_list<int64_t> shape, float spread) {
        tensor = floats(shape);
        filler.values(tensor, spread);
    };
    if (args.family == SMLA_FAMILY_DSA) {
        weight(w_uk_t_, {kHeads, args.nope_dim, args.kv_lora_rank}, 0.1f);
        weight(w_uv_, {kHeads, args.kv_lora_rank, args.v_head_dim}, 0.1f);
        width_ = int64_t(kHeads) * args.v_head_dim;
        return;
    }
    weight(sink_, {kHeads}, 1);
    width_ = int64_t(kHeads) * args.head_dim;
    if (!spec_.ratio) return;
    if (args.family == SMLA_FAMILY_HYBRID) weight(ape_, {spec_.ratio, compressor_width()}, 1);
    weight(norm_, {args.head_dim}, 1);
    frequencies_ = make_tensor(static_cast<void*>(nullptr), SMLA_F64, {32});
    fixed_.back(frequencies_);
    for (int i = 0; i < 32; ++i) static_cast<double*>(frequencies_.data)[i] = std::pow(160000.0, -i / 32.0);
}

smla_cache& ServeModel::cache(int32_t bit, int32_t layer) {
    if (bit == SMLA_GROUP_WINDOW && layer > 0) return windows_[size_t(layer - 1)];
    for (size_t g = 0; g < groups_.size(); ++g)
        if (groups_[g].bit == bit) return caches_[g];
    fail(SMLA_INTERNAL, "serve", text(bit), "a group of the model");
}

Tensor ServeModel::table(int32_t bit, int64_t requests) const {
    for (size_t g = 0; g < groups_.size(); ++g)
        if (groups_[g].bit == bit)
            return make_tensor(tables_[g].data(), SMLA_I32,
                               {requests, groups_[g].pages(spec_.max_seq_len + 256)});
    return {};
}

void ServeModel::fill_batch(const std::vector<ServeSlice>& slices, PlanBatch& batch) {
    const int64_t requests = int64_t(slices.size());
    for (int64_t r = 0; r < requests; ++r) {
        const ServeSlice& slice = slices[size_t(r)];
        starts_[size_t(r) + 1] = starts_[size_t(r)] + int32_t(slice.keys.size());
        lengths_[size_t(r)] = slice.computed + int32_t(slice.keys.size());
        for (size_t g = 0; g < groups_.size(); ++g) {
            const int64_t columns = groups_[g].pages(spec_.max_seq_len + 256);
            int32_t* row = tables_[g].data() + r * columns;
            std::fill(row, row + columns, -1);
            std::copy((*slice.pages)[g].begin(), (*slice.pages)[g].end(), row);
        }
    }
    batch.struct_size = sizeof batch;
    batch.query_start_loc = make_tensor(starts_.data(), SMLA_I32, {requests + 1});
    batch.seq_lens = make_tensor(lengths_.data(), SMLA_I32, {requests});
    for (const ServeGroup& group : groups_) {
        PlanGroup view{};
        view.block_table = table(group.bit, requests);
        view.page_tokens = group.page_rows;
        if (group.bit == SMLA_GROUP_PRIMARY) batch.primary = view;
        else if (group.bit == SMLA_GROUP_WINDOW) batch.window = view;
        else if (group.bit == SMLA_GROUP_COMPRESSED) batch.compressed = view;
        else if (group.bit == SMLA_GROUP_INDEX) batch.index = view;
        else batch.state = view;
    }
}

// The entries that the step's tokens close, as a layer's compressor writes them: the source layer's of V4.1.
void ServeModel::close_entries(const std::vector<ServeSlice>& slices, Memory& memory, PlacedMemory& placed) {
    const PlanFields& plan = metadata_->plan().fields();
    const int64_t tokens = metadata_->plan().size().tokens, width = compressor_width();
    StepBatch batch;
    batch.request_of_token = plan.request_of_token;
    batch.position = plan.position;
    HybridStep step;
    step.ratio = spec_.ratio;
    step.eps = 1e-6;
    step.frequencies = frequencies_;
    step.entries.group.cache = cache(SMLA_GROUP_COMPRESSED);
    step.entries.group.slots = plan.compressed_slot;
    Compressor& from = step.compressor;
    from.norm_weight = norm_;
    from.kv = floats({tokens, width});
    fill_rows(from.kv, slices, 21, memory);
    if (has_group(SMLA_GROUP_STATE)) {
        from.score = floats({tokens, width});
        fill_rows(from.score, slices, 22, memory);
        from.ape = ape_;
        from.state.cache = cache(SMLA_GROUP_STATE);
        from.state.block_table = table(SMLA_GROUP_STATE, int64_t(slices.size()));
        from.state.slots = plan.state_slot;
    }
    for (Tensor* each : {&batch.request_of_token, &batch.position, &step.entries.group.slots, &from.kv,
                         &from.score, &from.state.block_table, &from.state.slots})
        placed.take(*each);
    run_stages([&](Runner& run) { write_entries(run, batch, step); });
}

// What runs outside of the backend, as an engine's other operators do.
void ServeModel::run_stages(const std::function<void(Runner&)>& stages) {
    const Env env = context_.env({});
    Runner sizing(env, 0, nullptr);
    stages(sizing);
    run_step(env, nullptr, 0, workspace_.at_least(sizing.total_bytes()), nullptr, nullptr, stages);
}

// Returns the keys of the entries that the step's tokens complete.
void ServeModel::write_index_keys(const std::vector<ServeSlice>& slices, Memory& memory,
                                  PlacedMemory& placed) {
    Tensor keys = floats({metadata_->plan().size().tokens, kIndexWidth});
    fill_rows(keys, slices, memory, index_key);
    Tensor slots = metadata_->plan().fields().index_slot;
    for (Tensor* each : {&keys, &slots}) placed.take(*each);
    run_stages([&](Runner& run) {
        run.run<Stage::write_index>({.head = keys, .slots = slots, .cache = cache(SMLA_GROUP_INDEX)});
    });
}

// What an index source selects: the first everywhere, with the best blocks into `blocks`; the others in them.
Tensor ServeModel::select(const std::vector<ServeSlice>& slices, int32_t source, Tensor& blocks,
                          Memory& memory, PlacedMemory& placed) {
    const PlanFields& plan = metadata_->plan().fields();
    const int64_t tokens = metadata_->plan().size().tokens;
    StepBatch batch;
    batch.request_of_token = plan.request_of_token;
    batch.max_columns = spec_.max_seq_len / spec_.ratio;
    Tensor ends = plan.visible_entries, selected = integers({tokens, kServeTopk});
    memory.back(selected);
    Indexer in{.q = floats({tokens, kIndexHeads, kIndexWidth}),
               .w = floats({tokens, kIndexHeads}),
               .factor = 1,
               .amax_floor = 1e-4,
               .topk = kServeTopk,
               .keys = {.cache = cache(SMLA_GROUP_INDEX),
                        .block_table = table(SMLA_GROUP_INDEX, int64_t(slices.size()))},
               .block_size = kBlockSize};
    fill_rows(in.q, slices, memory, [&](uint64_t key, int64_t i) { return index_query(key, source, i); });
    fill_rows(in.w, slices, memory, [&](uint64_t key, int64_t i) { return index_weight(key, source, i); });
    if (source == 0) {
        blocks = integers({tokens, kBlocks});
        memory.back(blocks);
        placed.take(blocks);
    }
    (source == 0 ? in.best_blocks : in.blocks) = blocks;
    for (Tensor* each : {&batch.request_of_token, &ends, &selected, &in.q, &in.w, &in.keys.block_table})
        placed.take(*each);
    run_stages([&](Runner& run) { run_indexer(run, batch, in, ends, selected); });
    return selected;
}

ForwardArgs ServeModel::inputs(const std::vector<ServeSlice>& slices, int32_t layer, Memory& memory) {
    const uint64_t own = 1000 * uint64_t(layer);  // numbers that generate this layer's inputs
    const BackendArgs& model = on_.config.args;
    const int64_t tokens = metadata_->plan().size().tokens;
    const bool hybrid = on_.config.hybrid();
    ForwardArgs args{};
    args.q = floats({tokens, kHeads, hybrid ? model.head_dim : model.nope_dim + model.rope_dim});
    fill_rows(args.q, slices, own + 11, memory);
    args.k_c = floats({tokens, hybrid ? model.head_dim : model.kv_lora_rank});
    fill_rows(args.k_c, slices, own + 12, memory);
    args.kv_cache =
        cache(hybrid ? spec_.ratio ? SMLA_GROUP_COMPRESSED : SMLA_GROUP_WINDOW : SMLA_GROUP_PRIMARY);
    if (hybrid) {
        args.swa_cache = cache(SMLA_GROUP_WINDOW, layer);
        args.sink = sink_;
        args.out = floats({tokens, kHeads, model.head_dim});
    } else {
        args.k_pe = floats({tokens, model.rope_dim});
        fill_rows(args.k_pe, slices, 13, memory);
        args.w_uk_t = w_uk_t_;
        args.w_uv = w_uv_;
        args.out = floats({tokens, width_});
    }
    memory.back(args.out);
    return args;
}

// What each token attends to, of the text that it sees: given, or drawn.
Tensor ServeModel::lists(const std::vector<ServeSlice>& slices, int32_t layer, Memory& memory) const {
    const int32_t ratio = on_.config.hybrid() ? spec_.ratio : 1;
    Tensor out = integers({metadata_->plan().size().tokens, kServeTopk});
    memory.back(out);
    int32_t* at = static_cast<int32_t*>(out.data);
    for (const ServeSlice& slice : slices) {
        if (slice.lists) {
            const int32_t* from = (*slice.lists)[size_t(layer)].data() + int64_t(slice.computed) * kServeTopk;
            at = std::copy(from, from + slice.keys.size() * kServeTopk, at);
            continue;
        }
        for (size_t i = 0; i < slice.keys.size(); ++i) {
            const int64_t columns = (slice.computed + int64_t(i) + 1) / ratio;
            for (int32_t j = 0; j < kServeTopk; ++j)
                *at++ = j < columns ? int32_t(mixed(slice.keys[i] + uint64_t(j)) % uint64_t(columns)) : -1;
        }
    }
    return out;
}

std::vector<float> ServeModel::step(const std::vector<ServeSlice>& slices) {
    PlanBatch batch{};
    fill_batch(slices, batch);
    metadata_->build(batch);
    Memory memory;
    PlacedMemory placed(context_.device());  // of this step
    const bool selects = spec_.indexed && !slices[0].lists;
    if (spec_.ratio) close_entries(slices, memory, placed);
    if (selects) write_index_keys(slices, memory, placed);
    const int64_t tokens = metadata_->plan().size().tokens;
    std::vector<float> out(size_t(tokens * width())), rows(size_t(tokens * width_));
    Tensor blocks;  // of the first layer, for those after it
    for (int32_t layer = 0; layer < layers(); ++layer) {
        ForwardArgs args = inputs(slices, layer, memory);
        if (selects) args.topk_indices = select(slices, layer, blocks, memory, placed);
        else if (reads_selection(on_.config.kind())) args.topk_indices = lists(slices, layer, memory);
        for (Tensor* each : {&args.q, &args.k_c, &args.k_pe, &args.out}) placed.take(*each);
        if (!selects) placed.take(args.topk_indices);
        const Env env = context_.env({});
        on_.run(env, metadata_.get(), args, workspace_.at_least(on_.workspace(env, args)));
        context_.device().download(rows.data(), args.out.data, rows.size() * sizeof(float), nullptr);
        for (int64_t t = 0; t < tokens; ++t)
            std::copy_n(rows.begin() + t * width_, width_, out.begin() + t * width() + layer * width_);
    }
    return out;
}

}  // namespace smla::cli
