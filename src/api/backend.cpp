#include "api/call.h"
#include "backends/gate.h"
#include "backends/metadata/metadata.h"
#include "backends/registry.h"

#include <smla/backend.h>

#include <nlohmann/json.hpp>

using namespace smla;

struct smla_backend {
    smla_context* context;
    BackendInstance instance;
};

struct smla_backend_metadata {
    std::unique_ptr<Metadata> metadata;
    mutable Users users;
};

namespace {

BackendConfig read_config(const smla_backend_args* args) { return resolve_config(api::read_args(args)); }

nlohmann::json as_json(const BackendChoice& choice) {
    nlohmann::json candidates = nlohmann::json::array();
    for (const BackendVerdict& verdict : choice.verdicts)
        candidates.push_back({{"backend", verdict.backend->name},
                              {"chosen", verdict.backend == choice.backend},
                              {"can_serve", verdict.refusals.empty()},
                              {"refusals", verdict.refusals},
                              {"original", verdict.published}});
    return {{"backend", choice.backend ? nlohmann::json(choice.backend->name) : nlohmann::json()},
            {"forced", !choice.forced.empty()},
            {"engine", choice.engine.name},
            {"engine_refusal", choice.engine.refusal},
            {"candidates", candidates}};
}

void refuse_output_quant(const ForwardArgs& args) {
    const std::pair<const char*, const Tensor&> scales[] = {
        {"args.output_scale", args.output_scale}, {"args.output_block_scale", args.output_block_scale}};
    for (const auto& [field, scale] : scales)
        if (present(scale))
            fail(SMLA_UNSUPPORTED, field, describe(scale),
                 "absent (fused output quantization is not supported)");
}

void forward(const smla_backend& backend, const ForwardArgs& args, const Workspace& workspace,
             smla_stream stream) {
    const InUse use = api::reading(args.metadata, "args.metadata");
    backend.instance.run(backend.context->context.env({}, stream),
                         args.metadata ? args.metadata->metadata.get() : nullptr, args, workspace);
}

class ForwardCall final : public smla_call {
public:
    ForwardCall(const smla_backend& backend, const ForwardArgs& args, const size_t* moving, int32_t count)
        : smla_call(forward_places(), &args, moving, count), backend_(backend), args_(args) {
        SMLA_CHECK(args.metadata, "args.metadata", "null", "the metadata of the steps");
        bytes = backend.instance.workspace(backend.context->context.env({}), args);
    }
    void run(const void* const* addresses, const Workspace& workspace, smla_stream stream) const override {
        ForwardArgs args = args_;
        place(&args, addresses);
        forward(backend_, args, workspace, stream);
    }

private:
    const smla_backend& backend_;
    ForwardArgs args_;
};

}  // namespace

extern "C" {

smla_status smla_describe_device(const char* name, smla_device_info* out) {
    return api::guard([&] {
        SMLA_CHECK(name, "name", "null", "the name of a device");
        api::give("out", out, describe_device(name));
    });
}

smla_status smla_backend_list(const char* const** names, int32_t* count) {
    return api::guard([&] {
        SMLA_CHECK(names, "names", "null", "a pointer that receives the names");
        SMLA_CHECK(count, "count", "null", "a pointer that receives the number of names");
        *names = backend_names().data();
        *count = int32_t(backend_names().size());
    });
}

smla_status smla_backend_why_not(const char* name, const smla_backend_args* args, int32_t original,
                                 char* buffer, size_t* bytes) {
    return api::guard([&] {
        SMLA_CHECK(name, "name", "null", "the name of a backend");
        SMLA_CHECK(original == 0 || original == 1, "original", original, "0 or 1");
        const Backend& backend = find_backend(name);
        const BackendConfig config = read_config(args);
        const auto reasons = original ? published_refusals(backend, config) : why_not(backend, config);
        api::give_text(joined(reasons, "\n"), buffer, bytes);
    });
}

smla_status smla_backend_select(const smla_backend_args* args, const char* wanted, char* buffer,
                                size_t* bytes) {
    return api::guard([&] {
        api::give_text(as_json(select_backend(read_config(args), wanted ? wanted : "")).dump(), buffer,
                       bytes);
    });
}

smla_status smla_backend_create(smla_context* context, const char* name, const smla_backend_args* args,
                                smla_backend** out) {
    return api::create(out, "a pointer that receives the backend", [&] {
        Context& on = api::checked(context);
        smla_backend_args copy = api::read_args(args);
        if (copy.device.struct_size == 0) copy.device = device_info(on.device());
        auto made = std::make_unique<smla_backend>(
            smla_backend{context, choose_backend(resolve_config(copy), name ? name : "")});
        const DeviceInfo& device = made->instance.config.args.device;
        SMLA_CHECK(device.type == on.device().type(), "args.device", device_name(device),
                   text("the device of the context (", on.description(), ")"));
        made->instance.context = &on;
        return made.release();
    });
}

void smla_backend_destroy(smla_backend* backend) { delete backend; }

smla_status smla_backend_get_info(const smla_backend* backend, smla_backend_info* info) {
    return api::guard([&] {
        const BackendInstance& on = api::handle(backend, "backend").instance;
        api::give("info", info,
                  {.struct_size = sizeof *info,
                   .family = on.backend->family,
                   .name = on.backend->name,
                   .kv_cache_dtype = find_format(on.format)->name,
                   .format = on.format,
                   .head_size = on.config.head_size(),
                   .page_tokens = on.config.args.page_tokens,
                   .window_page_tokens = on.config.hybrid() ? on.config.args.window_page_tokens : 0,
                   .reorder_threshold = on.threshold(),
                   .padded_heads = padded_heads(*on.backend, on.config),
                   .graph_support = on.backend->graph_support,
                   .compressed_format = on.entry_format});
    });
}

smla_status smla_backend_cache_shape(const smla_backend* backend, int32_t group, int64_t pages,
                                     smla_cache_shape* out) {
    return api::guard(
        [&] { api::give("out", out, api::handle(backend, "backend").instance.cache_shape(group, pages)); });
}

smla_status smla_backend_metadata_create(const smla_backend* backend, smla_backend_metadata** out) {
    return api::create(out, "a pointer that receives the metadata", [&] {
        const BackendInstance& on = api::handle(backend, "backend").instance;
        return new smla_backend_metadata{on.metadata()};
    });
}

void smla_backend_metadata_destroy(smla_backend_metadata* metadata) { delete metadata; }

smla_status smla_backend_metadata_build(smla_backend_metadata* metadata, const smla_plan_batch* batch) {
    return api::guard([&] {
        smla_backend_metadata& on = api::handle(metadata, "metadata");
        const InUse use(&on.users, "metadata", InUse::changes);
        on.metadata->build(api::read_args(batch, "batch"));
    });
}

smla_status smla_backend_metadata_field(const smla_backend_metadata* metadata, const char* name,
                                        smla_tensor* out) {
    return api::guard([&] {
        const InUse use = api::reading(metadata, "metadata");
        api::give_field(*api::handle(metadata, "metadata").metadata, name, out);
    });
}

smla_status smla_backend_metadata_fields(const smla_backend_metadata* metadata, const char* const** names,
                                         int32_t* count) {
    return api::guard([&] { api::give_names(*api::handle(metadata, "metadata").metadata, names, count); });
}

smla_status smla_backend_workspace_size(const smla_backend* backend, const smla_backend_forward_args* args,
                                        size_t* bytes) {
    return api::guard([&] {
        const smla_backend& on = api::handle(backend, "backend");
        SMLA_CHECK(bytes, "bytes", "null", "a pointer that receives the size");
        const ForwardArgs copy = api::read_args(args);
        refuse_output_quant(copy);
        const InUse use = api::reading(copy.metadata, "args.metadata");
        *bytes = on.instance.workspace(on.context->context.env({}), copy);
    });
}

smla_status smla_backend_forward(const smla_backend* backend, const smla_backend_forward_args* args,
                                 smla_workspace workspace, smla_stream stream) {
    return api::guard([&] {
        const smla_backend& on = api::handle(backend, "backend");
        const ForwardArgs copy = api::read_args(args);
        refuse_output_quant(copy);
        forward(on, copy, api::read_workspace(workspace), stream);
    });
}

smla_status smla_backend_call_create(const smla_backend* backend, const smla_backend_forward_args* args,
                                     const size_t* moving, int32_t moving_count, smla_call** out) {
    return api::create(out, "a pointer that receives the call", [&] {
        const smla_backend& on = api::handle(backend, "backend");
        const ForwardArgs copy = api::read_args(args);
        refuse_output_quant(copy);
        return new ForwardCall(on, copy, moving, moving_count);
    });
}

}  // extern "C"
