#include "model.h"

#include "backends/device.h"
#include "backends/step.h"

#include <algorithm>
#include <cmath>

namespace smla::cli {

namespace {

constexpr int32_t kHeads = 2, kTopk = 16;

uint64_t mixed(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
// Number `i` of a token's input `what`, in [-1, 1).
float noise(uint64_t key, uint64_t what, uint64_t i) {
    return float(int64_t(mixed(key ^ mixed(what * 1000003 + i)) >> 40)) * 0x1p-23f - 1.f;
}

// Entries of one token are no pool.
bool has_state(const ServeSpec& spec) { return spec.ratio > 1; }

BackendArgs serve_args(const ServeSpec& spec) {
    BackendArgs args{};
    args.struct_size = sizeof args;
    args.family = spec.backend->family;
    args.dtype = SMLA_F32;
    args.kv_cache_dtype = spec.kv_dtype.c_str();
    args.heads = kHeads;
    args.topk = kTopk;
    args.ratio = spec.ratio;
    args.max_tokens = spec.max_tokens;
    args.max_requests = spec.max_requests;
    args.max_seq_len = spec.max_seq_len;
    args.speculative_tokens = spec.speculative_tokens;
    args.plan_groups = has_state(spec) ? SMLA_GROUP_STATE : 0;
    args.kv_scale = 0.01;  // of per-tensor caches: values up to 1 stay within 448
    args.softmax_scale = args.family == SMLA_FAMILY_DSA ? std::pow(192, -0.5) : std::pow(512, -0.5);
    return args;
}

// Rows of [T, ...] from each token's key.
void fill_rows(Tensor& tensor, const std::vector<ServeSlice>& slices, uint64_t what, Memory& memory) {
    memory.back(tensor);
    const int64_t each = tensor.stride_elems[0];
    float* at = static_cast<float*>(tensor.data);
    for (const ServeSlice& slice : slices)
        for (const uint64_t key : slice.keys)
            for (int64_t i = 0; i < each; ++i) *at++ = noise(key, what, uint64_t(i));
}

// On the context's device.
BackendInstance instance_on(Context& context, const ServeSpec& spec) {
    BackendArgs args = serve_args(spec);
    if (context.device().type() != SMLA_CPU) args.device = device_info(context.device());
    BackendInstance out(*spec.backend, resolve_config(args));
    if (context.device().type() != SMLA_CPU) out.context = &context;
    return out;
}

Tensor floats(std::initializer_list<int64_t> shape) {
    return make_tensor(static_cast<void*>(nullptr), SMLA_F32, shape);
}

}  // namespace

std::vector<ServeGroup> ServeModel::groups(const ServeSpec& spec) {
    if (spec.backend->family == SMLA_FAMILY_DSA) return {{SMLA_GROUP_PRIMARY, 64, 1}};
    std::vector<ServeGroup> out{
        {SMLA_GROUP_WINDOW, find_family(spec.backend->family)->window_page_tokens, 1}};
    if (spec.ratio)
        out.push_back({SMLA_GROUP_COMPRESSED, spec.backend->page_tokens / spec.ratio, spec.ratio});
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
    const BackendArgs& args = on_.config.args;
    for (size_t g = 0; g < groups_.size(); ++g) {
        const ServeGroup& group = groups_[g];
        const bool state = group.bit == SMLA_GROUP_STATE;
        const smla_format format = state                                ? SMLA_STATE_F32
                                   : group.bit == SMLA_GROUP_COMPRESSED ? on_.entry_format
                                                                        : on_.format;
        caches_.push_back(cache_of(format, state ? 2 * compressor_width() : on_.config.head_size(),
                                   int64_t(pages[g]) * group.page_rows, group.page_rows));
        if (find_format(format)->scale == ScaleKind::per_tensor) caches_.back().scale = float(args.kv_scale);
        fixed_.back(caches_.back());
        tables_.emplace_back(size_t(spec.max_requests * group.pages(spec.max_seq_len + 256)));
    }
    starts_.resize(size_t(spec.max_requests) + 1);
    lengths_.resize(size_t(spec.max_requests));
    make_weights();
    for (smla_cache& each : caches_) placed_.take(each);
    for (Tensor* each : {&w_uk_t_, &w_uv_, &sink_, &ape_, &norm_, &frequencies_}) placed_.take(*each);
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

smla_cache& ServeModel::cache(int32_t bit) {
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
    const Env env = context_.env({});
    const auto write = [&](Runner& run) { write_entries(run, batch, step); };
    Runner sizing(env, 0, nullptr);
    write(sizing);
    run_step(env, nullptr, 0, workspace_.at_least(sizing.total_bytes()), nullptr, nullptr, write);
}

ForwardArgs ServeModel::inputs(const std::vector<ServeSlice>& slices, Memory& memory) {
    const BackendArgs& model = on_.config.args;
    const int64_t tokens = metadata_->plan().size().tokens;
    const bool hybrid = on_.config.hybrid();
    ForwardArgs args{};
    args.q = floats({tokens, kHeads, hybrid ? model.head_dim : model.nope_dim + model.rope_dim});
    fill_rows(args.q, slices, 11, memory);
    args.k_c = floats({tokens, hybrid ? model.head_dim : model.kv_lora_rank});
    fill_rows(args.k_c, slices, 12, memory);
    args.kv_cache =
        cache(hybrid ? spec_.ratio ? SMLA_GROUP_COMPRESSED : SMLA_GROUP_WINDOW : SMLA_GROUP_PRIMARY);
    if (hybrid) {
        args.swa_cache = cache(SMLA_GROUP_WINDOW);
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
    if (!reads_selection(on_.config.kind())) return args;
    // what an indexer would have selected of what the token sees
    args.topk_indices = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {tokens, kTopk});
    memory.back(args.topk_indices);
    int32_t* at = static_cast<int32_t*>(args.topk_indices.data);
    for (const ServeSlice& slice : slices)
        for (size_t i = 0; i < slice.keys.size(); ++i) {
            const int64_t seen = slice.computed + int64_t(i) + 1,
                          columns = hybrid ? seen / spec_.ratio : seen;
            for (int32_t j = 0; j < kTopk; ++j)
                *at++ = j < columns ? int32_t(mixed(slice.keys[i] + uint64_t(j)) % uint64_t(columns)) : -1;
        }
    return args;
}

std::vector<float> ServeModel::step(const std::vector<ServeSlice>& slices) {
    PlanBatch batch{};
    fill_batch(slices, batch);
    metadata_->build(batch);
    Memory memory;
    PlacedMemory placed(context_.device());  // of this step
    if (spec_.ratio) close_entries(slices, memory, placed);
    ForwardArgs args = inputs(slices, memory);
    for (Tensor* each : {&args.q, &args.k_c, &args.k_pe, &args.topk_indices, &args.out}) placed.take(*each);
    const Env env = context_.env({});
    on_.run(env, metadata_.get(), args, workspace_.at_least(on_.workspace(env, args)));
    std::vector<float> out(size_t(element_count(args.out)));
    context_.device().download(out.data(), args.out.data, out.size() * sizeof(float), nullptr);
    return out;
}

}  // namespace smla::cli
