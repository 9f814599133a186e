#include "ops/copy_pages/copy_pages.h"

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
               text("the format of source: ", source.format->name));
    SMLA_CHECK(target.width == source.width, "args.target.width", target.width,
               text("the width of source: ", source.width));
    SMLA_CHECK(target.page_tokens == source.page_tokens, "args.target.page_tokens", target.page_tokens,
               text("the page size of source: ", source.page_tokens));
    // Scales behind pointers may be on a device; those are the caller's to keep equal.
    const bool host_scales = !args.source.scale_device && !args.target.scale_device;
    SMLA_CHECK(source.format->scale != ScaleKind::per_tensor || !host_scales || source.scale == target.scale,
               "args.target.scale", double(target.scale),
               text("the scale of source: ", double(source.scale)));
}

}  // namespace smla
