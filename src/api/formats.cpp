#include "api/guard.h"
#include "formats/format.h"

#include <smla/formats.h>

using namespace smla;

namespace {

static_assert(int(Packing::row) == SMLA_PACKING_ROW && int(Packing::page) == SMLA_PACKING_PAGE);
static_assert(int(ScaleKind::none) == SMLA_SCALE_NONE && int(ScaleKind::per_tensor) == SMLA_SCALE_PER_CACHE &&
              int(ScaleKind::f32_tile) == SMLA_SCALE_F32 && int(ScaleKind::e8m0_tile) == SMLA_SCALE_E8M0 &&
              int(ScaleKind::e4m3_tile) == SMLA_SCALE_E4M3);

constexpr uint32_t kAnyDtype = ~0u;

// Checks only format and shape, because sizes may be requested before there is memory or a scale.
smla_cache check_shape(const char* field, smla_cache cache) {
    cache.data = nullptr;
    cache.scale = 1;
    cache.scale_device = nullptr;
    check_cache(field, cache, kKvFormats | kIndexFormats | kStateFormats, CheckContext{}.shapes_only());
    return cache;
}

}  // namespace

extern "C" {

smla_status smla_format_get_info(smla_format format, int32_t width, smla_format_info* info) {
    return api::guard([&] {
        const Format* const found = find_format(format);
        SMLA_CHECK(found, "format", format, "a record format");
        if (std::string wanted = why_not_cache_width(*found, width); !wanted.empty())
            fail(SMLA_INVALID_ARGUMENT, "width", text(width), wanted);
        const int32_t values = found->width ? found->width : width;
        api::give("info", info,
                  {.struct_size = sizeof *info,
                   .format = format,
                   .name = found->name,
                   .width = values,
                   .max_width = found->max_width,
                   .width_multiple = found->width_multiple,
                   .packing = int32_t(found->packing),
                   .scale = int32_t(found->scale),
                   .values_per_scale = found->values_per_scale,
                   .alignment_bytes = int32_t(found->alignment),
                   .token_bytes = int32_t(found->record_bytes(values)),
                   .page_multiple_bytes = found->page_multiple});
    });
}

smla_status smla_format_by_name(const char* name, smla_format* format) {
    return api::guard([&] {
        SMLA_CHECK(name, "name", "null", "the name of a record format");
        SMLA_CHECK(format, "format", "null", "a pointer that receives the format");
        const Format* const found = find_format(std::string_view(name));
        SMLA_CHECK(found, "name", name, "one of " + format_list(kKvFormats | kIndexFormats | kStateFormats));
        *format = found->id;
    });
}

smla_status smla_cache_bytes(const smla_cache* cache, size_t* bytes) {
    return api::guard([&] {
        SMLA_CHECK(cache, "cache", "null", "a cache");
        SMLA_CHECK(bytes, "bytes", "null", "a pointer that receives the size");
        *bytes = cache_bytes(check_shape("cache", *cache));
    });
}

smla_status smla_tensor_bytes(const smla_tensor* tensor, size_t* bytes) {
    return api::guard([&] {
        const Tensor given = api::read_tensor(tensor, "tensor");
        SMLA_CHECK(bytes, "bytes", "null", "a pointer that receives the size");
        *bytes = 0;
        if (!present(given)) return;
        const int64_t any[] = {kAny, kAny, kAny, kAny};
        const auto ndim = size_t(std::clamp(given.ndim, 1, SMLA_MAX_NDIM));
        check_tensor("tensor", given, kAnyDtype, std::span(any, ndim), CheckContext{}.shapes_only());
        *bytes = span_bytes(given);
    });
}

}  // extern "C"
