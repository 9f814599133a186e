#include "api/call.h"

#include "api/stage_args.h"
#include "engines/run.h"

using namespace smla;

namespace {

// An address in the arguments of a call.
struct Address {
    std::string name;
    bool is_given = false;
    bool is_of_nothing = false;  // whether its tensor or cache has no elements
};

bool is_empty(const Tensor& tensor) {
    const std::span<const int64_t> shape(tensor.shape, size_t(std::clamp(tensor.ndim, 0, SMLA_MAX_NDIM)));
    return std::ranges::find(shape, 0) != shape.end();
}

Address find_address(std::span<const StageField> fields, const void* args, size_t offset) {
    for (const StageField& field : fields) {
        const std::string name = field.name.c_str();
        if (field.kind == FieldKind::cache) {
            const auto& cache = field_of<smla_cache>(args, field);
            if (offset == field.offset + offsetof(smla_cache, scale_device))
                return {name + ".scale_device", cache.scale_device != nullptr};
            if (offset == field.offset)
                return {name + ".data", cache.format != SMLA_FORMAT_NONE, cache.pages == 0};
        } else if (offset == field.offset) {
            if (field.kind == FieldKind::scalar) return {name, field_of<const void*>(args, field) != nullptr};
            const auto& tensor = field_of<Tensor>(args, field);
            return {name + ".data", present(tensor), is_empty(tensor)};
        }
    }
    return {};
}

template <Stage S>
class StageCall final : public smla_call {
public:
    StageCall(Context& context, const ArgsOf<S>& args, const size_t* moving, int32_t count, size_t budget)
        : smla_call(fields_of<ArgsOf<S>>(), &args, moving, count), context_(context), args_(args) {
        const Env env = context.env({});
        OpOf<S>::check(args, env.checks());
        bytes = stage_workspace<S>(args, env, budget);
        prepared_ = prepare_call<S>(args, env, bytes);
    }
    void run(const void* const* addresses, const Workspace& workspace, smla_stream stream) const override {
        ArgsOf<S> args = args_;
        place(&args, addresses);
        run_prepared<S>(prepared_, args, context_.env(workspace, stream));
    }

private:
    Context& context_;
    ArgsOf<S> args_;
    PreparedCall<S> prepared_;
};

}  // namespace

smla_call::smla_call(std::span<const StageField> fields, const void* args, const size_t* moving,
                     int32_t count) {
    SMLA_CHECK(count >= 0, "moving_count", count, "0 or more");
    SMLA_CHECK(moving || count == 0, "moving", "null", text("an array of ", count, " offsets"));
    for (int32_t i = 0; i < count; ++i) {
        const auto field = [&] { return text("moving[", i, "]"); };
        const Address found = find_address(fields, args, moving[i]);
        SMLA_CHECK(!found.name.empty(), field(), moving[i], "the offset of a pointer in the arguments");
        SMLA_CHECK(found.is_given, field(), text("the offset of ", found.name, ", which is null"),
                   "the offset of a pointer that is set");
        for (const Moving& other : moving_)
            SMLA_CHECK(other.offset != moving[i], field(),
                       text("the offset of ", found.name, ", which is listed twice"), "each offset once");
        moving_.push_back({moving[i], found.name, found.is_of_nothing});
    }
}

void smla_call::place(void* args, const void* const* addresses) const {
    SMLA_CHECK(addresses || moving_.empty(), "addresses", "null",
               text("an array of ", moving_.size(), " addresses"));
    for (size_t i = 0; i < moving_.size(); ++i) {
        const Moving& each = moving_[i];
        SMLA_CHECK(addresses[i] || each.may_be_null, text("addresses[", i, "]"), "null",
                   text("the address of ", each.name));
        std::memcpy(static_cast<char*>(args) + each.offset, &addresses[i], sizeof addresses[i]);
    }
}

extern "C" {

smla_status smla_call_create(smla_context* context, smla_stage stage, const void* args, const size_t* moving,
                             int32_t moving_count, size_t budget, smla_call** out) {
    return api::create(out, "a pointer that receives the call", [&] {
        Context& on = api::checked(context);
        return api::with_stage(stage, [&]<Stage S>() -> smla_call* {
            return new StageCall<S>(on, api::read_call<S>(args), moving, moving_count, budget);
        });
    });
}

smla_status smla_call_bytes(const smla_call* call, size_t* bytes) {
    return api::guard([&] {
        SMLA_CHECK(bytes, "bytes", "null", "a pointer that receives the size");
        *bytes = api::handle(call, "call").bytes;
    });
}

smla_status smla_call_run(const smla_call* call, const void* const* addresses, smla_workspace workspace,
                          smla_stream stream) {
    return api::guard(
        [&] { api::handle(call, "call").run(addresses, api::read_workspace(workspace), stream); });
}

void smla_call_destroy(smla_call* call) { delete call; }

}  // extern "C"
