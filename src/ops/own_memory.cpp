#include "ops/own_memory.h"

namespace smla {

namespace {

bool meet(const Extent& output, const Extent& other) {
    if (output.begin >= other.end || other.begin >= output.end) return false;
    const Extent &holed = output.gaps ? output : other, &whole = output.gaps ? other : output;
    const bool ends = holed.begin >= whole.begin || holed.end <= whole.end;
    return output.begin == other.begin || (!whole.gaps && (!holed.gaps || ends));
}

bool same_elements(const Tensor& a, const Tensor& b) {
    bool same = a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim;
    for (int i = 0; same && i < a.ndim; ++i) same = a.shape[i] <= 1 || a.stride_elems[i] == b.stride_elems[i];
    return same;
}

}  // namespace

void Extents::add(const void* what, const Extent& extent) {
    if (extent.begin == extent.end) return;
    if (count_ == kMost) fail(SMLA_INTERNAL, "Extents", text(count_ + 1), text("at most ", kMost));
    given_[count_++] = {what, extent};
}

void Extents::add(const Tensor& tensor) {
    if (!present(tensor) || !tensor.data) return;
    const auto begin = uintptr_t(tensor.data);
    const size_t bytes = span_bytes(tensor), bits = size_t(dtype_bits(tensor.dtype));
    add(&tensor, {begin, begin + bytes, bytes > (size_t(element_count(tensor)) * bits + 7) / 8});
}

void Extents::add(const smla_cache& cache) {
    if (cache.format == SMLA_FORMAT_NONE || !cache.data) return;
    const auto begin = uintptr_t(cache.data);
    add(&cache, {begin, begin + cache_bytes(cache), cache.page_stride_bytes || cache.row_stride_bytes});
}

void Extents::add(const Workspace& scratch) {
    const auto begin = uintptr_t(scratch.data);
    add(&scratch, {begin, begin + scratch.bytes, false});
}

void Extents::check_own(const char* field, const Tensor& output, const Tensor* in_place_of) const {
    const Given* mine = given_;
    while (mine != given_ + count_ && mine->what != &output) ++mine;
    if (mine == given_ + count_) return;  // absent
    for (const Given* other = given_; other != given_ + count_; ++other) {
        if (other == mine || !meet(mine->extent, other->extent)) continue;
        if (other->what == in_place_of && same_elements(*in_place_of, output)) continue;
        fail(SMLA_INVALID_ARGUMENT, field, "memory that another argument or the workspace has", "its own");
    }
}

}  // namespace smla
