#include "api/guard.h"
#include "layers/session.h"

#include <smla/layer.h>

using namespace smla;

struct smla_layer {
    smla_context* context;
    std::unique_ptr<Layer> layer;
    PlanMaxima plan = plan_for(*layer);
    // Groups whose caches a step uses: an indexer may read keys that another layer writes.
    int32_t groups =
        plan.groups | (layer->config().selects(layer->layer_index()) ? int32_t(SMLA_GROUP_INDEX) : 0);
};

struct smla_session {
    std::unique_ptr<Session> session;
    const std::shared_ptr<SessionPlace> place = session->place();  // resizing keeps it
};

namespace {

static_assert(int(LayerKind::dsa) == SMLA_LAYER_DSA && int(LayerKind::dsa_shared) == SMLA_LAYER_DSA_SHARED &&
              int(LayerKind::sliding) == SMLA_LAYER_SLIDING &&
              int(LayerKind::compressed_sparse) == SMLA_LAYER_COMPRESSED_SPARSE &&
              int(LayerKind::heavily_compressed) == SMLA_LAYER_HEAVILY_COMPRESSED &&
              int(LayerKind::shared_sparse) == SMLA_LAYER_SHARED_SPARSE);

LayerPrecision read_precision(const smla_layer_args& args, smla_engine engine) {
    LayerPrecision out;
    SMLA_CHECK(args.activations == 0 || args.activations == SMLA_F32 || args.activations == SMLA_BF16 ||
                   args.activations == SMLA_F64,
               "args.activations", args.activations, "0 (f32), f32, bf16 or f64");
    if (args.activations == SMLA_F64) {
        SMLA_CHECK(engine == SMLA_ENGINE_REFERENCE, "args.activations", "f64",
                   "f32 or bf16 (only the reference engine supports f64)");
        SMLA_CHECK(args.queries == 0 || args.queries == SMLA_F64, "args.queries", dtype_name(args.queries),
                   "f64, as in args.activations");
        out.activations = out.queries = SMLA_F64;
        return out;
    }
    SMLA_CHECK(args.queries == 0 || args.queries == SMLA_F32 || args.queries == SMLA_BF16, "args.queries",
               args.queries, "0 (f32), f32 or bf16");
    if (args.queries) out.queries = args.queries;
    out.bf16_operands = args.activations == SMLA_BF16;
    return out;
}

// Throws unless the plan's slots and rows were computed for the cache's pages.
void check_pages(int32_t bit, const smla_cache& cache, const PlanPages& planned) {
    const auto field = [&](const char* name) { return text("step.", group_name(bit), ".cache.", name); };
    SMLA_CHECK(cache.page_tokens == planned.tokens, field("page_tokens"), cache.page_tokens,
               text(planned.tokens, " (page_tokens of the plan)"));
    const int32_t rows = cache.page_rows ? cache.page_rows : cache.page_tokens;
    SMLA_CHECK(rows == planned.rows, field("page_rows"), cache.page_rows,
               text(planned.rows, " (page_rows of the plan)"));
}

CacheGroup group_of(const smla_layer& on, const smla_layer_step& step, int32_t bit, const Tensor& slots,
                    const Plan& plan) {
    if (!(on.groups & bit)) return {{}, {}, slots};  // unused caches are not checked
    const smla_layer_cache& given = bit == SMLA_GROUP_PRIMARY      ? step.primary
                                    : bit == SMLA_GROUP_INDEX      ? step.index
                                    : bit == SMLA_GROUP_WINDOW     ? step.window
                                    : bit == SMLA_GROUP_COMPRESSED ? step.compressed
                                    : bit == SMLA_GROUP_STATE      ? step.state
                                                                   : step.index_state;
    if (given.cache.format != SMLA_FORMAT_NONE && plan.pages(bit).tokens)
        check_pages(bit, given.cache, plan.pages(bit));
    return {given.cache, given.block_table, slots};
}

LayerStep read_step(const smla_layer& on, const smla_layer_step& step, const CheckContext& context) {
    const AttentionConfig& config = on.layer->config();
    const Plan& plan = api::handle(step.plan, "step.plan").plan;
    const PlanFields& fields = plan.fields();
    check_plan("step.plan", plan.maxima(), on.plan);
    check_tensor("step.hidden", step.hidden, kFloats, {kAny, config.common.hidden_size}, context);
    check_rows("step.hidden", step.hidden);
    const int64_t tokens = step.hidden.shape[0], planned = fields.position.shape[0];
    SMLA_CHECK(tokens == planned, "step.hidden.shape[0]", tokens, text(planned, " (the tokens of the plan)"));
    check_tensor("step.out", step.out, kFloats, {tokens, config.common.hidden_size}, context);
    check_rows("step.out", step.out);
    check_forced_topk("step.forced_topk", *on.layer, step.forced_topk, tokens, context);
    if (config.indexer)
        check_optional("step.topk", step.topk, kInt32, {tokens, config.indexer->topk}, context);
    check_candidates(*on.layer, step.candidates, step.best_blocks, !present(step.forced_topk), tokens,
                     context);
    SMLA_CHECK(step.max_columns >= 0, "step.max_columns", step.max_columns, "0 or more");

    const int64_t ratio = std::max<int64_t>(config.compress_ratio(on.layer->layer_index()), 1);
    LayerStep out = planned_step(
        fields, [](const Tensor& field) { return field; },
        [&](int32_t bit, const Tensor& slots) { return group_of(on, step, bit, slots, plan); },
        step.max_columns ? step.max_columns : plan.maxima().max_seq_len / ratio);
    out.hidden = step.hidden;
    out.out = step.out;
    out.forced_topk = step.forced_topk;
    if (config.indexer) out.topk = step.topk;
    out.candidates = step.candidates;
    out.best_blocks = step.best_blocks;
    return out;
}

LayerPrecision read_weights(const smla_layer_args& args, LayerPrecision precision) {
    SMLA_CHECK(args.weights == SMLA_WEIGHTS_CONVERTED || args.weights == SMLA_WEIGHTS_AS_STORED,
               "args.weights", args.weights, "0 (converted) or 1 (as stored)");
    precision.as_stored = args.weights == SMLA_WEIGHTS_AS_STORED;
    return precision;
}

AttentionConfig read_config(const smla_layer_args& args) {
    SMLA_CHECK(!args.config || !args.config_json, "args.config_json", "a text in addition to args.config",
               "only one of the two");
    if (args.config_json) return parse_config(args.config_json, "args.config_json");
    SMLA_CHECK(args.config || args.checkpoint, "args.config", "null",
               "a path, or a text in args.config_json");
    return load_config(args.config ? args.config : args.checkpoint);
}

Checkpoint read_checkpoint(const smla_layer_args& args, Device& device) {
    SMLA_CHECK(args.tensor_count >= 0, "args.tensor_count", args.tensor_count, "0 or more");
    if (args.tensor_count == 0 && !args.tensors) {
        SMLA_CHECK(args.checkpoint, "args.checkpoint", "null", "a path, or tensors in args.tensors");
        return Checkpoint::open(args.checkpoint);
    }
    SMLA_CHECK(!args.checkpoint, "args.checkpoint", "a path in addition to args.tensors",
               "only one of the two");
    SMLA_CHECK(args.tensors, "args.tensors", "null", text("an array of ", args.tensor_count, " tensors"));
    std::vector<NamedTensor> list;
    for (int32_t i = 0; i < args.tensor_count; ++i) {
        const smla_named_tensor& each = args.tensors[i];
        SMLA_CHECK(each.name, text("args.tensors[", i, "].name"), "null", "a name");
        SMLA_CHECK(each.tensor.ndim >= 0 && each.tensor.ndim <= SMLA_MAX_NDIM,
                   text("args.tensors[", i, "].tensor.ndim"), each.tensor.ndim, text("0 to ", SMLA_MAX_NDIM));
        list.push_back({each.name, each.tensor});
        resolve_strides(list.back().tensor);
    }
    return Checkpoint::from_tensors(list, "args.tensors", device);
}

std::shared_ptr<SessionPlace> place_or_none(const smla_session* session) {
    return session ? session->place : nullptr;
}

// Marks the session whose entries another session reads as read during a call. Accepts null.
InUse reading(const std::shared_ptr<SessionPlace>& source, const char* field) {
    return InUse(source ? &source->users : nullptr, field, InUse::reads);
}

SessionOptions read_options(const smla_session_args& args, const Layer& layer) {
    SessionOptions out;
    const bool f64 = layer.precision().activations == SMLA_F64;
    out.caches.kv = args.kv_format ? args.kv_format : f64 ? SMLA_ROW_F64 : SMLA_ROW_F32;
    const bool plain = find_format(out.caches.kv) && (format_bit(out.caches.kv) & kRowFormats);
    out.caches.index = args.index_format ? args.index_format : plain ? out.caches.kv : SMLA_INDEX_FP8_132;
    if (args.page_tokens) out.caches.page_tokens = args.page_tokens;
    if (args.max_requests) out.max_requests = args.max_requests;
    if (args.max_tokens) out.max_tokens = args.max_tokens;
    if (args.max_step_tokens) out.max_step_tokens = args.max_step_tokens;
    out.caches.kv_scale = args.kv_scale;
    out.caches.kv_writer = args.kv_writer;
    out.stage_budget = args.stage_budget;
    out.rewind_tokens = args.rewind_tokens;
    out.entries_of = place_or_none(args.entries_of);
    return out;
}

smla_session_args as_args(const SessionOptions& options) {
    return {sizeof(smla_session_args),  options.caches.kv,        options.caches.index,
            options.caches.page_tokens, options.max_requests,     options.max_tokens,
            options.max_step_tokens,    options.caches.kv_scale,  options.stage_budget,
            options.rewind_tokens,      options.caches.kv_writer, nullptr};
}

// Names rejected session options as the caller knows them: args.FIELD.
template <class Make>
auto within_args(const Make& make) {
    try {
        return make();
    } catch (const Error& error) {
        if (error.status != SMLA_INVALID_ARGUMENT) throw;
        fail(error.status, "args." + error.field, error.got, error.wanted);
    }
}

// Clones `session`, whose value replaces each field of `args` that is 0. The copied rows are unchanged, so
// the formats stay the same.
std::unique_ptr<Session> clone(const Session& session, const smla_session_args* args) {
    smla_session_args as = as_args(session.options()), wanted{};
    if (args) wanted = api::read_args(args);
    const auto same = [](const char* field, auto given, auto has) {
        SMLA_CHECK(given == 0 || given == has, field, given, text("0 or ", has, " (as in the session)"));
    };
    same("args.kv_format", wanted.kv_format, as.kv_format);
    same("args.index_format", wanted.index_format, as.index_format);
    same("args.page_tokens", wanted.page_tokens, as.page_tokens);
    same("args.kv_scale", double(wanted.kv_scale), double(as.kv_scale));
    same("args.kv_writer", wanted.kv_writer, as.kv_writer);
    const auto take = [](auto& to, auto given) {
        if (given != 0) to = given;
    };
    take(as.max_requests, wanted.max_requests);
    take(as.max_tokens, wanted.max_tokens);
    take(as.max_step_tokens, wanted.max_step_tokens);
    take(as.stage_budget, wanted.stage_budget);
    take(as.rewind_tokens, wanted.rewind_tokens);
    SessionOptions options = read_options(as, session.layer());
    options.entries_of = wanted.entries_of ? place_or_none(wanted.entries_of) : session.options().entries_of;
    const InUse source = reading(options.entries_of, "args.entries_of");
    return within_args([&] { return session.clone(options); });
}

// Calls body(session) with the handle's session, marked as in use during the call.
template <InUse::As As, class Handle, class Body>
smla_status with_session(Handle* session, Body&& body) {
    return api::guard([&] {
        auto& on = api::handle(session, "session");
        const InUse use(&on.place->users, "session", As);
        body(*on.session);
    });
}

}  // namespace

extern "C" {

smla_status smla_layer_create(smla_context* context, const smla_layer_args* args, smla_layer** out) {
    return api::create(out, "a pointer that receives the layer", [&] {
        const smla_layer_args copy = api::read_args(args);
        Context& on = api::checked(context);
        const LayerPrecision precision = read_weights(copy, read_precision(copy, on.engine()));
        const Checkpoint checkpoint = read_checkpoint(copy, on.device());
        return new smla_layer{context,
                              open_layer(checkpoint, read_config(copy), copy.layer, precision, on.device())};
    });
}

void smla_layer_destroy(smla_layer* layer) { delete layer; }

smla_status smla_layer_get_info(const smla_layer* layer, smla_layer_info* info) {
    return api::guard([&] {
        const smla_layer& on = api::handle(layer, "layer");
        smla_layer_info out = describe_layer(on.layer->config(), on.layer->layer_index());
        out.weight_bytes = on.layer->weight_bytes();
        out.borrowed_bytes = on.layer->borrowed_bytes();
        api::give("info", info, out);
    });
}

smla_status smla_config_layer_info(const smla_layer_args* args, smla_layer_info* info) {
    return api::guard([&] {
        const smla_layer_args copy = api::read_args(args);
        api::give("info", info, describe_layer(read_config(copy), copy.layer));
    });
}

smla_status smla_config_rope_frequencies(const smla_layer_args* args, int32_t count, double* frequencies) {
    return api::guard([&] {
        const smla_layer_args copy = api::read_args(args);
        const AttentionConfig config = read_config(copy);
        config.check_computed(copy.layer);
        const std::vector<double> all = rope_frequencies(config.common.rope_dim, config.rope(copy.layer));
        SMLA_CHECK(count == int32_t(all.size()), "count", count, text(all.size(), " (rope_width / 2)"));
        SMLA_CHECK(frequencies || all.empty(), "frequencies", "null",
                   text("an array of ", all.size(), " numbers"));
        std::copy(all.begin(), all.end(), frequencies);
    });
}

smla_status smla_layer_workspace_size(const smla_layer* layer, const smla_layer_step* step,
                                      size_t stage_budget, size_t* bytes) {
    return api::guard([&] {
        const smla_layer& on = api::handle(layer, "layer");
        SMLA_CHECK(bytes, "bytes", "null", "a pointer that receives the size");
        const smla_layer_step copy = api::read_args(step, "step");
        const InUse plan = api::reading(copy.plan, "step.plan");
        *bytes = layer_workspace(*on.layer, on.context->context.env({}),
                                 read_step(on, copy, CheckContext{}.shapes_only()), stage_budget, nullptr);
    });
}

smla_status smla_layer_forward(const smla_layer* layer, const smla_layer_step* step, size_t stage_budget,
                               smla_workspace workspace, smla_stream stream) {
    return api::guard([&] {
        const smla_layer& on = api::handle(layer, "layer");
        const Env env = on.context->context.env({}, stream);
        const smla_layer_step copy = api::read_args(step, "step");
        const InUse plan = api::reading(copy.plan, "step.plan");
        run_layer(*on.layer, env, read_step(on, copy, env.checks()), api::read_workspace(workspace),
                  stage_budget, nullptr, nullptr);
    });
}

smla_status smla_session_create(const smla_layer* layer, const smla_session_args* args, smla_session** out) {
    return api::create(out, "a pointer that receives the session", [&] {
        const smla_layer& on = api::handle(layer, "layer");
        const SessionOptions options = read_options(api::read_args(args), *on.layer);
        const InUse source = reading(options.entries_of, "args.entries_of");
        return within_args([&] {
            return new smla_session{std::make_unique<Session>(on.context->context, *on.layer, options)};
        });
    });
}

void smla_session_destroy(smla_session* session) { delete session; }

smla_status smla_session_get_args(const smla_session* session, smla_session_args* args) {
    return with_session<InUse::reads>(
        session, [&](const Session& on) { api::give("args", args, as_args(on.options())); });
}

smla_status smla_session_forward(smla_session* session, const smla_session_step* step) {
    return with_session<InUse::changes>(session, [&](Session& on) {
        const InUse source = reading(on.options().entries_of, "session.entries_of");
        const smla_session_step copy = api::read_args(step, "step");
        SMLA_CHECK(copy.request_count >= 0, "step.request_count", copy.request_count, "0 or more");
        SMLA_CHECK(copy.requests || copy.request_count == 0, "step.requests", "null",
                   text("an array of ", copy.request_count, " requests"));
        Session::Step inner;
        inner.requests = {copy.requests, size_t(copy.request_count)};
        inner.hidden = copy.hidden;
        inner.out = copy.out;
        inner.rope_positions = copy.rope_positions;
        inner.forced_topk = copy.forced_topk;
        inner.candidates = copy.candidates;
        on.forward(inner);
    });
}

smla_status smla_session_topk(const smla_session* session, smla_tensor* out) {
    return with_session<InUse::changes>(session, [&](const Session& on) {  // may fetch the numbers
        SMLA_CHECK(out, "out", "null", "a pointer that receives the tensor");
        *out = on.topk();
    });
}

smla_status smla_session_candidates(const smla_session* session, smla_tensor* out) {
    return with_session<InUse::changes>(session, [&](const Session& on) {
        SMLA_CHECK(out, "out", "null", "a pointer that receives the tensor");
        *out = on.candidates();
    });
}

smla_status smla_session_length(const smla_session* session, int32_t request, int32_t* tokens) {
    return with_session<InUse::reads>(session, [&](const Session& on) {
        SMLA_CHECK(tokens, "tokens", "null", "a pointer that receives the length");
        on.check_request("request", request);
        *tokens = on.length(request);
    });
}

smla_status smla_session_end_request(smla_session* session, int32_t request) {
    return with_session<InUse::changes>(session, [&](Session& on) { on.end_request(request); });
}

smla_status smla_session_truncate(smla_session* session, int32_t request, int32_t tokens) {
    return with_session<InUse::changes>(session, [&](Session& on) { on.truncate(request, tokens); });
}

smla_status smla_session_copy_request(smla_session* session, int32_t source, int32_t target) {
    return with_session<InUse::changes>(session, [&](Session& on) { on.copy_request(source, target); });
}

smla_status smla_session_reorder(smla_session* session, const int32_t* sources, int32_t count) {
    return with_session<InUse::changes>(session, [&](Session& on) {
        SMLA_CHECK(count >= 0, "count", count, "0 or more");
        SMLA_CHECK(sources || count == 0, "sources", "null", text("an array of ", count, " requests"));
        on.reorder({sources, size_t(count)});
    });
}

smla_status smla_session_clone(const smla_session* session, const smla_session_args* args,
                               smla_session** out) {
    return with_session<InUse::changes>(session, [&](const Session& on) {  // uses its staging buffer
        SMLA_CHECK(out, "out", "null", "a pointer that receives the session");
        *out = nullptr;
        *out = new smla_session{clone(on, args)};
    });
}

smla_status smla_session_resize(smla_session* session, const smla_session_args* args) {
    return with_session<InUse::changes>(session, [&](Session& on) {
        SMLA_CHECK(args, "args", "null", "the maxima");
        std::unique_ptr<Session> resized = clone(on, args);
        resized->replace(on);
        session->session = std::move(resized);
    });
}

smla_status smla_session_bytes(const smla_session* session, size_t* cache_bytes, size_t* workspace_bytes) {
    return with_session<InUse::reads>(session, [&](const Session& on) {
        if (cache_bytes) *cache_bytes = on.cache_bytes();
        if (workspace_bytes) *workspace_bytes = on.workspace_bytes();
    });
}

}  // extern "C"
