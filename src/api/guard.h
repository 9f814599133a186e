// The boundary of the C ABI: exceptions become a status and the thread's last error.
#pragma once

#include "api/tensors.h"
#include "core/in_use.h"
#include "core/interrupt.h"
#include "core/status.h"
#include "engines/context.h"
#include "ops/field.h"
#include "plan/plan.h"

#include <smla/formats.h>
#include <smla/stages.h>
#include <smla/types.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

struct smla_context {
    smla::Context context;
};

struct smla_plan {
    smla::Plan plan;
    mutable smla::Users users;
};

namespace smla::api {

void clear_error() noexcept;
smla_status record_error(smla_status status, std::string_view field, std::string_view got,
                         std::string_view wanted) noexcept;

template <class Body>
smla_status guard(Body&& body) {
    try {
        clear_error();
        begin_call();
        body();
        return SMLA_OK;
    } catch (const Error& error) {
        return record_error(error.status, error.field, error.got, error.wanted);
    } catch (const std::bad_alloc&) {
        return record_error(SMLA_OUT_OF_MEMORY, "memory", "std::bad_alloc", "enough host memory");
    } catch (const std::exception& error) {
        return record_error(SMLA_INTERNAL, "smla", error.what(), "no exception; please report this bug");
    }
}

template <class Handle>
Handle& handle(Handle* pointer, const char* name) {
    SMLA_CHECK(pointer, name, "null", text("a ", name));
    return *pointer;
}

// Sets *out to the result of make(), or to null if that throws. `wanted`: purpose of `out` for errors.
template <class Out, class Make>
smla_status create(Out* out, const char* wanted, const Make& make) {
    return guard([&] {
        SMLA_CHECK(out, "out", "null", wanted);
        *out = nullptr;
        *out = make();
    });
}

// Copies text of any length to the caller's buffer[*bytes]. *bytes becomes the length with the final zero
// even if the buffer is too small, so that a second call can provide a larger one.
inline void give_text(const std::string& given, char* buffer, size_t* bytes) {
    SMLA_CHECK(bytes, "bytes", "null", "a pointer to the size of the buffer");
    const size_t room = *bytes, needed = given.size() + 1;
    *bytes = needed;
    if (!buffer) return;
    SMLA_CHECK(room >= needed, "bytes", room, text("at least ", needed));
    std::memcpy(buffer, given.c_str(), needed);
}

// Marks a plan or metadata, if not null, as read during a call.
template <class Handle>
InUse reading(const Handle* pointer, const char* field) {
    return InUse(pointer ? &pointer->users : nullptr, field, InUse::reads);
}

inline Context& checked(smla_context* context) { return handle(context, "context").context; }

// Nested structs cannot grow: their struct_size is this library's, or 0 if the caller left it unset.
inline void check_nested_size(const char* field, uint32_t given, size_t wanted) {
    SMLA_CHECK(given == 0 || given == wanted, field, given, text("0 or ", wanted));
}
template <class Args>
void check_nested_sizes(const Args&) {}
inline void check_nested_sizes(const smla_score_select_args& args) {
    check_nested_size("args.score.struct_size", args.score.struct_size, sizeof args.score);
    check_nested_size("args.select.struct_size", args.select.struct_size, sizeof args.select);
}

inline void check_nested_sizes(const smla_backend_args& args) {
    check_nested_size("args.device.struct_size", args.device.struct_size, sizeof args.device);
}

// Returns the caller's struct in this library's size, with zeros in the fields that it lacks. A larger struct
// is accepted if all fields unknown to this library are zero. `name` is the parameter's name in the header.
template <class Args>
Args read_args(const Args* args, const char* name = "args") {
    SMLA_CHECK(args, name, "null", "the arguments");
    const size_t given = args->struct_size;
    const auto size = [&] { return text(name, ".struct_size"); };
    SMLA_CHECK(given >= sizeof(uint32_t) * 2 && given <= (size_t(1) << 16), size(), given, sizeof(Args));
    const char* bytes = reinterpret_cast<const char*>(args);
    for (size_t i = sizeof(Args); i < given; ++i)
        SMLA_CHECK(bytes[i] == 0, size(),
                   text(given, ", with a nonzero field that this library does not know"), sizeof(Args));
    Args out{};
    std::memcpy(&out, bytes, given < sizeof(Args) ? given : sizeof(Args));
    check_nested_sizes(out);
    if constexpr (requires { out.reserved; })
        SMLA_CHECK(out.reserved == 0, text(name, ".reserved"), out.reserved, "0");
    if constexpr (requires { each_tensor(out, [](Tensor&) {}); })
        each_tensor(out, [](Tensor& tensor) { resolve_strides(tensor); });
    return out;
}

// Returns the caller's tensor; null is an error.
inline Tensor read_tensor(const smla_tensor* tensor, const char* name) {
    SMLA_CHECK(tensor, name, "null", "a tensor");
    Tensor out = *tensor;
    resolve_strides(out);
    return out;
}

// Size of each output struct in the first version that had it, which programs of that version provide. The
// value stays when the struct grows.
template <class Out>
constexpr size_t kFirstSize = 0;
template <>
inline constexpr size_t kFirstSize<smla_device_info> = 24;
template <>
inline constexpr size_t kFirstSize<smla_backend_info> = 56;
template <>
inline constexpr size_t kFirstSize<smla_cache_shape> = 48;
template <>
inline constexpr size_t kFirstSize<smla_format_info> = 56;
template <>
inline constexpr size_t kFirstSize<smla_layer_info> = 104;
template <>
inline constexpr size_t kFirstSize<smla_session_args> = 56;
template <>
inline constexpr size_t kFirstSize<smla_stage_field> = 64;

// Copies the part of `value` that fits the caller's struct_size to the caller's struct. struct_size is
// unchanged.
template <class Out>
void give(const char* name, Out* out, const Out& value) {
    static_assert(kFirstSize<Out> > 0 && kFirstSize<Out> <= sizeof(Out));
    SMLA_CHECK(out, name, "null", "a struct to fill in");
    const uint32_t room = out->struct_size;
    SMLA_CHECK(room >= kFirstSize<Out>, text(name, ".struct_size"), room, text(kFirstSize<Out>, " or more"));
    std::memcpy(static_cast<void*>(out), &value, std::min<size_t>(room, sizeof(Out)));
    out->struct_size = room;
}

// Finds a field of a plan or of a backend's metadata by name.
template <class Fields>
void give_field(const Fields& fields, const char* name, smla_tensor* out) {
    SMLA_CHECK(name, "name", "null", "the name of a field");
    SMLA_CHECK(out, "out", "null", "a pointer that receives the field");
    if (const Tensor* const field = fields.find(name)) {
        *out = *field;
        return;
    }
    fail(SMLA_INVALID_ARGUMENT, "name", name, "one of " + joined(fields.names()));
}
template <class Fields>
void give_names(const Fields& fields, const char* const** names, int32_t* count) {
    SMLA_CHECK(names, "names", "null", "a pointer that receives the names");
    SMLA_CHECK(count, "count", "null", "a pointer that receives the number of names");
    *names = fields.names().data();
    *count = int32_t(fields.names().size());
}

inline Workspace read_workspace(const smla_workspace& workspace) {
    SMLA_CHECK(workspace.data || workspace.bytes == 0, "workspace.data", "null",
               text("memory of ", workspace.bytes, " bytes"));
    SMLA_CHECK(reinterpret_cast<uintptr_t>(workspace.data) % kCacheLine == 0, "workspace.data",
               text("address % 64 = ", reinterpret_cast<uintptr_t>(workspace.data) % kCacheLine),
               "an address aligned to 64 bytes");
    return {workspace.data, workspace.bytes};
}

}  // namespace smla::api
