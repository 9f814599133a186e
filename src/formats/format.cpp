#include "formats/format.h"

#include "formats/fits.h"

#include <cstring>
#include <limits>
#include <string_view>

namespace smla {

namespace {
constexpr const Format* kFormats[] = {
    &kRowF64,    &kRowF32,    &kRowBf16,      &kFp8_656,          &kFp8_576,   &kFp8_584,
    &kFp8_512,   &kFp8_528,   &kFp8_528_g32,  &kFp8_528_g32Split, &kNvfp4_288, &kNvfp4_288Split,
    &kNvfp4_384, &kNvfp4_352, &kIndexFp8_132, &kIndexMxfp4_68,    &kStateF32,  &kStateF64,
};

struct Alias {
    std::string_view name;
    const Format* format;
};
constexpr Alias kAliases[] = {
    {"bf16_576", &kRowBf16}, {"bf16_512", &kRowBf16}, {"bf16", &kRowBf16}, {"f32", &kRowF32}};

constexpr int64_t kMaxBytes = int64_t(1) << 56;
}  // namespace

std::string format_list(uint32_t allowed) {
    std::string out;
    for (const Format* format : kFormats)
        if (allowed & format_bit(format->id)) out += (out.empty() ? "" : ", ") + std::string(format->name);
    return out;
}

std::span<const Format* const> all_formats() { return kFormats; }

const Format* find_format(smla_format id) {
    for (const Format* format : kFormats)
        if (format->id == id) return format;
    return nullptr;
}

const Format* find_format(std::string_view name) {
    for (const Format* format : kFormats)
        if (name == format->name) return format;
    for (const Alias& alias : kAliases)
        if (name == alias.name) return alias.format;
    return nullptr;
}

static int32_t resolved_width(const Format& format, const smla_cache& cache) {
    return format.width ? format.width : cache.width;
}

size_t packed_page_bytes(const smla_cache& cache) {
    const Format& format = *find_format(cache.format);
    const int32_t width = resolved_width(format, cache);
    if (cache.row_stride_bytes) return size_t(cache.row_stride_bytes) * size_t(cache.page_tokens);
    return format.page_bytes(width, cache.page_tokens);
}

size_t cache_bytes(const smla_cache& cache) {
    if (cache.pages == 0) return 0;
    const size_t page = packed_page_bytes(cache);
    const size_t stride = cache.page_stride_bytes ? size_t(cache.page_stride_bytes) : page;
    return size_t(cache.pages - 1) * stride + std::min(page, stride);
}

// Returns the bytes of a page without padding. Padding is never accessed, so the next page may begin in it
// (fp8_584 as [pages,tokens,584] without gaps).
static int64_t record_bytes_of_page(const smla_cache& cache, int64_t record) {
    return (cache.row_stride_bytes ? cache.row_stride_bytes : record) * cache.page_tokens;
}

size_t touched_bytes(const smla_cache& cache) {
    if (cache.pages == 0) return 0;
    const Format& format = *find_format(cache.format);
    const auto record = int64_t(format.record_bytes(resolved_width(format, cache)));
    const size_t stride =
        cache.page_stride_bytes ? size_t(cache.page_stride_bytes) : packed_page_bytes(cache);
    return size_t(cache.pages - 1) * stride +
           std::min(size_t(record_bytes_of_page(cache, record)), packed_page_bytes(cache));
}

static void check_strides(const char* field, const smla_cache& cache, const Format& format, int32_t width) {
    const int64_t record = int64_t(format.record_bytes(width));
    if (format.packing == Packing::page)
        SMLA_CHECK(cache.row_stride_bytes == 0, text(field, ".row_stride_bytes"), cache.row_stride_bytes,
                   text("0, because ", format.name, " packs whole pages"));
    else
        SMLA_CHECK(cache.row_stride_bytes == 0 ||
                       (cache.row_stride_bytes >= record && cache.row_stride_bytes % format.alignment == 0 &&
                        cache.row_stride_bytes < (int64_t(1) << 31)),
                   text(field, ".row_stride_bytes"), cache.row_stride_bytes,
                   text("0, or at least ", record, ", below 2^31 and a multiple of ", format.alignment));
    const int64_t page = record_bytes_of_page(cache, record);
    SMLA_CHECK(cache.page_stride_bytes == 0 ||
                   (cache.page_stride_bytes >= page && cache.page_stride_bytes % format.alignment == 0 &&
                    cache.page_stride_bytes < kMaxBytes),
               text(field, ".page_stride_bytes"), cache.page_stride_bytes,
               text("0, or at least ", page, ", below 2^56 and a multiple of ", format.alignment));
    const int64_t stride =
        cache.page_stride_bytes ? cache.page_stride_bytes : int64_t(packed_page_bytes(cache));
    SMLA_CHECK(cache.pages == 0 || stride <= kMaxBytes / cache.pages, text(field, ".pages"), cache.pages,
               "a product of pages and page stride below 2^56");
}

std::string why_not_cache_width(const Format& format, int32_t width) {
    if (format.width)
        return width == 0 || width == format.width ? "" : text("0 or ", format.width, " for ", format.name);
    if (width >= 1 && width <= format.max_width && width % format.width_multiple == 0) return "";
    return text(format.width_multiple, " to ", format.max_width, " for ", format.name,
                format.width_multiple == 2 ? " (an even number)" : "");
}

// A missing scale is an error and never means 1, which would silently reduce accuracy (TRT-LLM #16916).
std::string why_not_scale(const Format& format, float scale) {
    if (format.scale != ScaleKind::per_tensor)
        return scale == 0 || scale == 1 ? ""
                                        : text("0 or 1, because ", format.name, " has no scale per cache");
    if (scale > 0 && scale < std::numeric_limits<float>::infinity()) return "";
    return text("a finite number above 0, because ", format.name, " has one scale per cache");
}

const float* scale_in_memory(const smla_cache& cache) {
    const Format* const format = find_format(cache.format);
    const bool counts = format && format->scale == ScaleKind::per_tensor;
    return counts && cache.device_type == SMLA_CPU ? cache.scale_device : nullptr;
}

static void check_scale(const char* field, const smla_cache& cache, const Format& format, bool reads) {
    const bool pointer = cache.scale_device && format.scale == ScaleKind::per_tensor;
    if (pointer && !(reads && scale_in_memory(cache))) return;
    const float scale = pointer ? *cache.scale_device : cache.scale;
    const std::string wanted = why_not_scale(format, scale);
    SMLA_CHECK(wanted.empty(), text(field, pointer ? ".scale_device" : ".scale"), double(scale), wanted);
}

void check_format(const char* field, const smla_cache& cache, uint32_t allowed) {
    const Format* format = find_format(cache.format);
    SMLA_CHECK(format && (allowed & format_bit(cache.format)), text(field, ".format"),
               format ? text(format->name) : text(cache.format), format_list(allowed));
}

void check_cache(const char* field, const smla_cache& cache, uint32_t allowed, const CheckContext& context) {
    check_format(field, cache, allowed);
    const Format* const format = find_format(cache.format);
    const std::string wanted_width = why_not_cache_width(*format, cache.width);
    SMLA_CHECK(wanted_width.empty(), text(field, ".width"), cache.width, wanted_width);
    check_device(field, cache.device_type, cache.device_index, context);
    SMLA_CHECK(cache.page_tokens >= 1, text(field, ".page_tokens"), cache.page_tokens, "1 or more");
    SMLA_CHECK(cache.page_rows == 0 || cache.page_rows >= cache.page_tokens, text(field, ".page_rows"),
               cache.page_rows, text("0, or at least page_tokens (", cache.page_tokens, ")"));
    SMLA_CHECK(cache.pages >= 0, text(field, ".pages"), cache.pages, "0 or more");
    const int64_t page_rows = cache.page_rows ? cache.page_rows : cache.page_tokens;
    constexpr int64_t kMaxRows = int64_t(1) << 31;
    SMLA_CHECK(cache.pages - 1 <= kMaxRows / page_rows &&
                   (cache.pages - 1) * page_rows + cache.page_tokens <= kMaxRows,
               text(field, ".pages"), cache.pages, "row numbers that fit in int32");
    const std::string bits = why_not_writer(*format, cache.writer);
    SMLA_CHECK(bits.empty(), text(field, ".writer"), cache.writer, bits);
    check_scale(field, cache, *format, context.needs_memory);
    const int32_t width = resolved_width(*format, cache);
    check_strides(field, cache, *format, width);
    SMLA_CHECK(cache.data || cache.pages == 0 || !context.needs_memory, text(field, ".data"), "null",
               text("memory of ", cache_bytes(cache), " bytes"));
    SMLA_CHECK(reinterpret_cast<uintptr_t>(cache.data) % format->alignment == 0, text(field, ".data"),
               text("address % ", format->alignment, " = ",
                    reinterpret_cast<uintptr_t>(cache.data) % format->alignment),
               text("an address aligned to ", format->alignment, " bytes"));
}

CacheView::CacheView(const smla_cache& cache)
    : format(find_format(cache.format)), data(static_cast<char*>(cache.data)) {
    width = resolved_width(*format, cache);
    page_tokens = cache.page_tokens;
    page_rows = cache.page_rows ? cache.page_rows : cache.page_tokens;
    pages = cache.pages;
    capacity = pages == 0 ? 0 : (pages - 1) * page_rows + page_tokens;
    page_stride = cache.page_stride_bytes ? cache.page_stride_bytes : int64_t(packed_page_bytes(cache));
    row_stride = cache.row_stride_bytes ? cache.row_stride_bytes : int64_t(format->record_bytes(width));
    scale = cache.scale;
    scale_device = scale_in_memory(cache);
    writer = cache.writer;
}

}  // namespace smla
