#include "api/stage_args.h"
#include "engines/error_word.h"
#include "engines/run.h"
#include "ops/check_data.h"

#include <smla/stages.h>

#include <nlohmann/json.hpp>

using namespace smla;
using api::read_call, api::with_stage;

namespace {

// Stages have the same numbers in the C header and in the X-list.
#define SMLA_SAME(name, number) static_assert(int(Stage::name) == number);
SMLA_SAME(norm, SMLA_STAGE_NORM)
SMLA_SAME(quant_index_q, SMLA_STAGE_QUANT_INDEX_Q)
SMLA_SAME(compress, SMLA_STAGE_COMPRESS)
SMLA_SAME(score, SMLA_STAGE_SCORE)
SMLA_SAME(attend, SMLA_STAGE_ATTEND)
SMLA_SAME(out_project, SMLA_STAGE_OUT_PROJECT)
#undef SMLA_SAME
static_assert(kStageCount == SMLA_STAGE_COUNT);

static_assert(int(FieldKind::tensor) == SMLA_FIELD_TENSOR && int(FieldKind::cache) == SMLA_FIELD_CACHE &&
              int(FieldKind::scalar) == SMLA_FIELD_NUMBER);

template <Stage S>
smla_status call(smla_context* context, const ArgsOf<S>* args, smla_workspace workspace, smla_stream stream) {
    return api::guard([&] {
        run_stage<S>(read_call<S>(args), api::checked(context).env(api::read_workspace(workspace), stream));
    });
}

// Runs a stage in a workspace that must have all bytes of the fastest plan within the budget.
template <Stage S>
void run_sized(const void* args, const Env& env, size_t budget) {
    const ArgsOf<S> call = read_call<S>(args);
    const auto planned = plan_stage<S>(call, env);  // also checks the arguments
    const size_t bytes = stage_workspace<S>(call, env, budget);
    // During capture, a caller may be unable to provide zeroed counters, which calls without scratch do not
    // need.
    const bool has_scratch = bytes > kWorkspaceHeader;
    if (env.workspace.bytes < bytes && (has_scratch || !env.device->capturing(env.stream)))
        fail(SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes", text(env.workspace.bytes),
             text("at least ", bytes));
    launch_stage<S>(*planned, call, env);
}

// Returns the arguments after checking everything except memory.
template <Stage S>
ArgsOf<S> described(const Context& context, const void* args) {
    const ArgsOf<S> copy = read_call<S>(args);
    OpOf<S>::check(copy, context.env({}).checks().shapes_only());
    return copy;
}

// Scans integers on the host, after copying a device's integers to it.
template <class Args>
void check_values(Device& device, Args& args) {
    refuse_capture(device, nullptr);
    std::vector<std::unique_ptr<char[]>> memory;
    if (device.type() != SMLA_CPU)
        visit(
            args,
            [&](Tensor& tensor) {
                if (present(tensor) && (kInts & dtype_bit(tensor.dtype)))
                    tensor = fetch(device, tensor, nullptr, memory.emplace_back());
            },
            [](smla_cache&) {});
    check_data(args);
}

template <Stage S>
std::string explanation(const Context& context, const void* args) {
    nlohmann::json rows = nlohmann::json::array();
    const Env env = context.env({});
    const std::string another = text("the context allows only ", env.demanded[size_t(S)]);
    for (const Verdict& each : explain_stage<S>(described<S>(context, args), env)) {
        const bool excluded = each.refusal.empty() && !env.allows(S, each.kernel);
        rows.push_back({{"kernel", each.kernel},
                        {"refusal", excluded ? another : each.refusal},
                        {"chosen", each.chosen}});
        if (!each.lower_priority.empty()) rows.back()["lower_priority"] = each.lower_priority;
    }
    return nlohmann::json{{"stage", stage_name(S)}, {"runs_on", context.description()}, {"candidates", rows}}
        .dump();
}

std::span<const StageField> fields_of_named(smla_stage stage) {
    return with_stage(stage, []<Stage S>() { return fields_of<ArgsOf<S>>(); });
}

int32_t field_at(std::span<const StageField> fields, size_t offset) {
    for (size_t i = 0; i < fields.size(); ++i)
        if (fields[i].offset == offset) return int32_t(i);
    return -1;
}

}  // namespace

extern "C" {

smla_status smla_stage_field_count(smla_stage stage, int32_t* count) {
    return api::guard([&] {
        SMLA_CHECK(count, "count", "null", "a pointer that receives the number of fields");
        *count = int32_t(fields_of_named(stage).size());
    });
}

smla_status smla_stage_get_field(smla_stage stage, int32_t index, smla_stage_field* out) {
    return api::guard([&] {
        const auto fields = fields_of_named(stage);
        SMLA_CHECK(
            index >= 0 && size_t(index) < fields.size(), "index", index,
            text("0 to ", fields.size() - 1, " (the fields of ", stage_name(Stage(stage)).data(), ")"));
        const StageField& field = fields[size_t(index)];
        api::give(
            "field", out,
            {.struct_size = sizeof *out,
             .kind = int32_t(field.kind),
             .name = field.name.member().data(),
             .shape = field.shape.data() ? field.shape.data() : "",
             .offset = field.offset,
             .types = field.allowed,
             .flags = (field.is_written ? SMLA_FIELD_WRITTEN : 0) |
                      (field.is_optional ? SMLA_FIELD_OPTIONAL : 0) | (field.is_rows ? SMLA_FIELD_ROWS : 0),
             .in_place_of = field_at(fields, field.in_place_of),
             .with_cache = field_at(fields, field.with_cache),
             .double_as = field_at(fields, field.double_as),
             .given_with = field_at(fields, field.follows),
             .given_dtype = field.follows_dtype,
             .reserved = 0});
    });
}

smla_status smla_workspace_size(smla_context* context, smla_stage stage, const void* args, size_t budget,
                                size_t* bytes) {
    return api::guard([&] {
        const Context& on = api::checked(context);
        SMLA_CHECK(bytes, "bytes", "null", "a pointer that receives the size");
        *bytes = with_stage(
            stage, [&]<Stage S>() { return stage_workspace<S>(described<S>(on, args), on.env({}), budget); });
    });
}

smla_status smla_run_stage(smla_context* context, smla_stage stage, const void* args, size_t budget,
                           smla_workspace workspace, smla_stream stream) {
    return api::guard([&] {
        const Context& on = api::checked(context);
        const Env env = on.env(api::read_workspace(workspace), stream);
        with_stage(stage, [&]<Stage S>() { run_sized<S>(args, env, budget); });
    });
}

smla_status smla_prepare(smla_context* context, smla_stage stage, const void* args) {
    return api::guard([&] {
        const Context& on = api::checked(context);
        with_stage(stage, [&]<Stage S>() { prepare_stage<S>(described<S>(on, args), on.env({})); });
    });
}

smla_status smla_workspace_init(smla_context* context, smla_workspace workspace, smla_stream stream) {
    return api::guard([&] {
        if (workspace.bytes < kWorkspaceHeader)
            fail(SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes", text(workspace.bytes),
                 text("at least ", kWorkspaceHeader, " (the counters and the error word)"));
        api::checked(context).init_workspace(api::read_workspace(workspace), stream);
    });
}

smla_status smla_read_error(smla_context* context, smla_workspace workspace, smla_stream stream,
                            smla_error_word* out) {
    return api::guard([&] {
        const Context& on = api::checked(context);
        SMLA_CHECK(out, "out", "null", "a pointer that receives the error word");
        *out = take_error(on.device(), api::read_workspace(workspace), stream);
    });
}

smla_status smla_explain_stage(smla_context* context, smla_stage stage, const void* args, char* buffer,
                               size_t* bytes) {
    return api::guard([&] {
        const Context& on = api::checked(context);
        const std::string json = with_stage(stage, [&]<Stage S>() { return explanation<S>(on, args); });
        api::give_text(json, buffer, bytes);
    });
}

smla_status smla_check_stage(smla_context* context, smla_stage stage, const void* args) {
    return api::guard([&] {
        const Context& on = api::checked(context);
        with_stage(stage, [&]<Stage S>() {
            ArgsOf<S> copy = read_call<S>(args);
            OpOf<S>::check(copy, on.env({}).checks());
            check_own_memory(copy, {});
            check_values(on.device(), copy);
        });
    });
}

// smla_norm, smla_rope, smla_project, ... smla_attend, smla_merge, ...: one function per stage.
#define SMLA_CALL(name, args_type)                                                                  \
    smla_status smla_##name(smla_context* context, const args_type* args, smla_workspace workspace, \
                            smla_stream stream) {                                                   \
        return call<Stage::name>(context, args, workspace, stream);                                 \
    }
SMLA_STAGES(SMLA_CALL)
#undef SMLA_CALL

}  // extern "C"
