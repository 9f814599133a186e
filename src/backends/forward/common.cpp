#include "backends/forward/forward.h"

namespace smla {

void check_rows_of_step(const char* field, const Tensor& tensor, int64_t tokens) {
    SMLA_CHECK(tensor.shape[0] >= tokens, text(field, ".shape[0]"), tensor.shape[0],
               text(tokens, " tokens or more"));
}

void check_cache(const char* field, const smla_cache& cache, smla_format wanted) {
    const Format* format = find_format(cache.format);
    SMLA_CHECK(cache.format == wanted, text(field, ".format"), format ? format->name : "none",
               find_format(wanted)->name);
}

void check_pages(const char* field, const smla_cache& cache, const CacheGroup& built) {
    const int32_t page = built.cache.page_tokens;
    SMLA_CHECK(page == 0 || cache.page_tokens == page, text(field, ".page_tokens"), cache.page_tokens,
               text(page, ", as the metadata was built"));
}

void zero_rows(const Env& env, const Tensor& tensor, int64_t n) {
    const size_t bytes = size_t(dtype_bits(tensor.dtype)) / 8, pitch = size_t(tensor.stride_elems[0]) * bytes;
    const int64_t inner = tensor.ndim > 1 ? tensor.shape[tensor.ndim - 1] : 1;
    const int64_t middle = tensor.ndim > 2 ? tensor.shape[1] : 1;
    if (n == 0) return;
    const bool dense = middle == 1 || tensor.stride_elems[1] == inner;
    for (int64_t j = 0; j < (dense ? 1 : middle); ++j)
        env.device->fill_rows(tensor.ndim > 2 ? address(tensor, 0, j) : tensor.data, pitch, 0,
                              size_t(inner * (dense ? middle : 1)) * bytes, size_t(n), env.stream);
}

}  // namespace smla
