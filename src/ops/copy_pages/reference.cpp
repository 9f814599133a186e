// The specification of copy_pages: copies the records of a page, but no bytes between rows or pages.
#include "core/interrupt.h"
#include "ops/ops.h"

#include <cstring>

namespace smla {

template <>
std::span<const StageField> fields_of<smla_copy_pages_args>() {
    using namespace fields;
    using Args = smla_copy_pages_args;
    static constexpr StageField table[] = {
        cache(SMLA_FIELD(source), kKvFormats | kIndexFormats | kStateFormats),
        cache(SMLA_FIELD(target), kKvFormats | kIndexFormats | kStateFormats).written(),
        in(SMLA_FIELD(pairs), kInt32, "N 2"),
    };
    return table;
}

void CopyPagesOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.reserved == 0, "args.reserved", args.reserved, "0");
    check_fields(args, context);
    const CacheView source(args.source), target(args.target);
    SMLA_CHECK(target.format == source.format, "args.target.format", target.format->name,
               text(source.format->name, " (the format of source)"));
    SMLA_CHECK(target.width == source.width, "args.target.width", target.width,
               text(source.width, " (the width of source)"));
    SMLA_CHECK(target.page_tokens == source.page_tokens, "args.target.page_tokens", target.page_tokens,
               text(source.page_tokens, " (the page size of source)"));
    // Scales behind pointers may be on a device, so the caller must keep them equal.
    const bool host_scales = !args.source.scale_device && !args.target.scale_device;
    SMLA_CHECK(source.format->scale != ScaleKind::per_tensor || !host_scales || source.scale == target.scale,
               "args.target.scale", double(target.scale),
               text(double(source.scale), " (the scale of source)"));
}

namespace {
// Uses memmove, because pages of two caches with gaps may overlap.
void copy_page(const CacheView& source, const CacheView& target, int64_t from, int64_t to) {
    const char* in = source.data + from * source.page_stride;
    char* out = target.data + to * target.page_stride;
    if (in == out) return;
    const int64_t record = int64_t(source.format->record_bytes(source.width));
    const bool dense = source.format->packing == Packing::page ||
                       (source.row_stride == record && target.row_stride == record);
    if (dense) {
        std::memmove(out, in, size_t(record * source.page_tokens));
        return;
    }
    for (int64_t token = 0; token < source.page_tokens; ++token)
        std::memmove(out + token * target.row_stride, in + token * source.row_stride, size_t(record));
}
}  // namespace

void CopyPagesOp::reference(const Args& args, int64_t begin, int64_t end) {
    const CacheView source(args.source), target(args.target);
    for (int64_t i = begin; i < end; ++i) {
        stop_point();
        const int64_t from = load_int(args.pairs, i, 0), to = load_int(args.pairs, i, 1);
        const bool inside = from >= 0 && from < source.pages && to >= 0 && to < target.pages;
        if (inside) copy_page(source, target, from, to);
    }
}

}  // namespace smla
