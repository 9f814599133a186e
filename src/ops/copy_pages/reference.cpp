// The specification of copy_pages: the records of a page, byte by byte; never what lies between rows or
// pages.
#include "core/interrupt.h"
#include "ops/copy_pages/copy_pages.h"

#include <cstring>

namespace smla {

namespace {
// memmove: pages of two caches with gaps may overlap.
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
