#include "api/guard.h"

using namespace smla;

namespace {
// Version step at which the ABI may change: a major version, or before 1.0 a minor version.
constexpr int32_t kAbiStep = SMLA_VERSION_MAJOR > 0 ? 10000 : 100;

Device& checked_copy(smla_context* context, const void* to, const void* from, size_t bytes,
                     smla_stream stream) {
    Device& device = api::checked(context).device();
    SMLA_CHECK(to || bytes == 0, "to", "null", text("a buffer of ", bytes, " bytes"));
    SMLA_CHECK(from || bytes == 0, "from", "null", text("a buffer of ", bytes, " bytes"));
    refuse_capture(device, stream);
    return device;
}
}  // namespace

extern "C" {

smla_status smla_context_create(const smla_context_args* args, smla_context** out) {
    return api::create(out, "a pointer that receives the context", [&] {
        const smla_context_args copy = api::read_args(args);
        constexpr int32_t least = SMLA_VERSION / kAbiStep * kAbiStep, most = least + kAbiStep - 1;
        SMLA_CHECK(copy.version >= least && copy.version <= most, "args.version", copy.version,
                   text(least, " to ", most, " (SMLA_VERSION in this library's headers)"));
        return new smla_context{Context(copy)};
    });
}

void smla_context_destroy(smla_context* context) { delete context; }

smla_status smla_context_device(const smla_context* context, smla_device_type* device_type,
                                int32_t* device_index) {
    return api::guard([&] {
        const Device& device = api::handle(context, "context").context.device();
        SMLA_CHECK(device_type, "device_type", "null", "a pointer that receives the type");
        SMLA_CHECK(device_index, "device_index", "null", "a pointer that receives the index");
        *device_type = device.type();
        *device_index = device.index();
    });
}

smla_status smla_allocate(smla_context* context, size_t bytes, void** out) {
    return api::create(out, "a pointer that receives the address",
                       [&] { return api::checked(context).allocate(bytes); });
}

void smla_release(smla_context* context, void* memory) {
    if (context) context->context.release(memory);
}

smla_status smla_upload(smla_context* context, void* to, const void* from, size_t bytes, smla_stream stream) {
    return api::guard([&] {
        Device& device = checked_copy(context, to, from, bytes, stream);
        device.upload(to, from, bytes, stream);
    });
}

smla_status smla_download(smla_context* context, void* to, const void* from, size_t bytes,
                          smla_stream stream) {
    return api::guard([&] {
        Device& device = checked_copy(context, to, from, bytes, stream);
        device.download(to, from, bytes, stream);
        device.wait(stream);
    });
}

const char* smla_context_description(const smla_context* context) {
    return context ? context->context.description().c_str() : "";
}

}  // extern "C"
