#include "kit/hostile_memory.h"

#include "core/workspace.h"

#include <algorithm>

namespace smla::kit {

// Returns a multiple of 64 bytes half of the time, otherwise the promised alignment; before a wall, the
// offset at which a block of `bytes` ends at the wall.
size_t HostileMemory::skew(size_t alignment, size_t bytes) {
    const size_t to_the_wall = (64 - bytes % 64) % 64;
    if (walls() && !aligned_ && to_the_wall % alignment == 0) return to_the_wall;
    if (aligned_ || random_.chance(0.5)) return 0;
    return size_t(random_.between(0, int64_t(63 / alignment))) * alignment;
}

Tensor HostileMemory::tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, Inner inner) {
    Tensor out{};
    out.dtype = dtype;
    out.ndim = int32_t(shape.size());
    const size_t bits = size_t(dtype_bits(dtype));
    const size_t unit = aligned_ ? 512 / bits : dtype == SMLA_E2M1 ? 2 : 1;  // elements of a row and a gap
    const bool apart = inner == Inner::any && !aligned_ && random_.chance(0.25);
    int64_t stride = apart ? random_.between(2, 3) : 1;
    for (int d = out.ndim - 1; d >= 0; --d) {
        out.shape[d] = shape.begin()[d];
        out.stride_elems[d] = stride;
        stride = std::max<int64_t>(stride * out.shape[d], 1);
        if (random_.chance(0.3)) stride += int64_t(unit) * random_.between(1, 20);
        stride = int64_t(round_up(size_t(stride), unit));
    }
    const size_t bytes = span_bytes(out);
    out.data = add(bytes, skew(std::max<size_t>(bits / 8, 1), bytes), describe(out));
    return out;
}

smla_cache HostileMemory::cache(const CacheShape& shape) {
    const Format& format = *find_format(shape.format);
    const auto unit = int64_t(aligned_ ? 64 : format.alignment);
    smla_cache out{};
    out.format = shape.format;
    out.width = format.width && random_.chance(0.5) ? 0 : int32_t(shape.width);
    out.page_tokens = shape.page_tokens;
    out.pages = shape.pages;
    if (random_.chance(0.25))
        out.page_rows = out.page_tokens * int32_t(random_.between(1, 3)) + int32_t(random_.between(0, 5));
    if (format.packing == Packing::row && random_.chance(0.25))
        out.row_stride_bytes = int64_t(round_up(format.record_bytes(int32_t(shape.width)), size_t(unit))) +
                               unit * random_.between(0, 16);
    if (random_.chance(0.4))
        out.page_stride_bytes =
            int64_t(round_up(packed_page_bytes(out), size_t(unit))) + unit * random_.between(0, 64);
    if (format.writers && random_.chance(0.5)) out.writer = format.writers & int32_t(random_.between(1, 31));
    if (format.scale == ScaleKind::per_tensor) out.scale = float(random_.uniform(0.005, 0.05));
    const size_t bytes = cache_bytes(out);
    out.data = add(bytes, skew(format.alignment, bytes), text("cache ", format.name));
    return out;
}

}  // namespace smla::kit
