#include "backends/forward/forward.h"

#include <algorithm>

namespace smla {

Tensor RowsOfStep::in(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner) const {
    int64_t shape[SMLA_MAX_NDIM] = {kAny};
    std::copy(inner.begin(), inner.end(), shape + 1);
    check_tensor(field, tensor, allowed, {shape, inner.size() + 1}, context_);
    SMLA_CHECK(tensor.shape[0] >= tokens_, text(field, ".shape[0]"), tensor.shape[0],
               text("at least ", tokens_, " tokens"));
    return slice(tensor, 0, 0, tokens_);
}

Tensor RowsOfStep::optional_in(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner) const {
    return present(tensor) ? in(field, tensor, allowed, inner) : tensor;
}

Tensor RowsOfStep::out(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner,
                       bool is_rows) const {
    const Tensor rows = in(field, tensor, allowed, inner);
    if (is_rows) check_rows(field, rows);
    check_apart(field, rows);
    return rows;
}

Tensor RowsOfStep::optional_out(const char* field, const Tensor& tensor, uint32_t allowed,
                                Inner inner) const {
    return present(tensor) ? out(field, tensor, allowed, inner, false) : tensor;
}

smla_cache cache_of_step(const BackendInstance& on, const char* field, const smla_cache& given,
                         smla_format wanted, const CacheGroup& built, const CheckContext& context) {
    const Format* format = find_format(given.format);
    SMLA_CHECK(given.format == wanted, text(field, ".format"), format ? format->name : "none",
               find_format(wanted)->name);
    smla_cache out = given;
    if (format->scale == ScaleKind::per_tensor && given.scale == 0 && !given.scale_device)
        out.scale = float(on.config.args.kv_scale);
    check_cache(field, out, format_bit(wanted), context);
    SMLA_CHECK(CacheView(out).width == on.config.head_size(), text(field, ".width"), given.width,
               text(on.config.head_size(), " (the width of the layer)"));
    const int32_t page = built.cache.page_tokens;
    if (page == 0) return out;
    SMLA_CHECK(given.page_tokens == page, text(field, ".page_tokens"), given.page_tokens,
               text(page, " (page_tokens of the metadata)"));
    out.page_rows = built.cache.page_rows ? built.cache.page_rows : page;
    SMLA_CHECK(given.page_rows == 0 || given.page_rows == out.page_rows, text(field, ".page_rows"),
               given.page_rows, text("0 or ", out.page_rows, " (page_rows of the metadata)"));
    return out;
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
