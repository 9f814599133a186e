#include "ops/copy_pages/copy_pages.h"

namespace smla {

void CopyPagesOp::check(const Args& args) {
    SMLA_CHECK(args.reserved == 0, "args.reserved", args.reserved, "0");
    constexpr uint32_t any = kKvFormats | kIndexFormats | kStateFormats;
    check_cache("args.source", args.source, any);
    check_cache("args.target", args.target, any);
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
    check_tensor("args.pairs", args.pairs, kInt32, {kAny, 2});
}

}  // namespace smla
