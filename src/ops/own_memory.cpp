#include "ops/own_memory.h"

namespace smla {

Extent extent_of(const Tensor& tensor) {
    if (!present(tensor) || !tensor.data) return {};
    const auto begin = uintptr_t(tensor.data);
    const size_t bytes = span_bytes(tensor), bits = size_t(dtype_bits(tensor.dtype));
    return {begin, begin + bytes, bytes > (size_t(element_count(tensor)) * bits + 7) / 8};
}

Extent extent_of(const smla_cache& cache) {
    if (cache.format == SMLA_FORMAT_NONE || !cache.data) return {};
    const auto begin = uintptr_t(cache.data);
    return {begin, begin + cache_bytes(cache), cache.page_stride_bytes || cache.row_stride_bytes};
}

void check_own(const char* field, const Extent& output, const Extent& other) {
    if (output.begin >= other.end || other.begin >= output.end) return;
    const Extent &holed = output.gaps ? output : other, &whole = output.gaps ? other : output;
    const bool ends = holed.begin >= whole.begin || holed.end <= whole.end;
    const bool meet = output.begin == other.begin || (!whole.gaps && (!holed.gaps || ends));
    SMLA_CHECK(!meet, field, "memory that another argument or the workspace has", "its own");
}

bool same_elements(const Tensor& a, const Tensor& b) {
    bool same = a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim;
    for (int i = 0; same && i < a.ndim; ++i) same = a.shape[i] <= 1 || a.stride_elems[i] == b.stride_elems[i];
    return same;
}

}  // namespace smla
