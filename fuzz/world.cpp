#include "world.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace smla::fuzz {

namespace {

bool alike(const char* a, const char* b, smla_dtype dtype, double tolerance) {
    const Tensor x = make_tensor(a, dtype, {1}), y = make_tensor(b, dtype, {1});
    const double u = load_one<double>(x, 0), v = load_one<double>(y, 0);
    return u == v || (std::isnan(u) && std::isnan(v)) || std::fabs(u - v) <= tolerance;
}

}  // namespace

uint32_t seed_of(const uint8_t* data, size_t size) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 16777619u;
    return hash;
}

World::World(const uint8_t* data, size_t size) : choose(data, size), random_(seed_of(data, size)) {}

char* World::take(size_t bytes, smla_dtype dtype, double tolerance) {
    buffers_.push_back({std::unique_ptr<char[]>(new char[bytes]), bytes, dtype, tolerance});
    for (size_t i = 0; i < bytes; ++i) buffers_.back().data[i] = char(random());
    return buffers_.back().data.get();
}

// Rows may be further apart than they are long.
Tensor World::tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, double tolerance) {
    Tensor out = make_tensor(static_cast<void*>(nullptr), dtype, shape);
    if (out.ndim > 1 && choose.below(4) == 0) {
        const int64_t gap = choose.between(1, 3) * (dtype == SMLA_E2M1 ? 2 : 1);
        int64_t stride = shape.begin()[out.ndim - 1] + gap;
        for (int i = out.ndim - 2; i >= 0; --i) {
            out.stride_elems[i] = stride;
            stride *= out.shape[i];
        }
    }
    int64_t last = element_count(out) > 0 ? 1 : 0;
    for (int i = 0; last > 0 && i < out.ndim; ++i) last += (out.shape[i] - 1) * out.stride_elems[i];
    out.data = take(size_t((last * dtype_bits(dtype) + 7) / 8), dtype, tolerance);
    tensors_.push_back(out);
    return out;
}

template <class Next>
void World::fill(const Tensor& tensor, const Next& next) {
    Buffer& buffer = buffers_.back();
    const int64_t count = int64_t(buffer.bytes) * 8 / dtype_bits(tensor.dtype);
    for (int64_t i = 0; i < count; ++i) {
        const float value = next();
        char* at = buffer.data.get() + i * dtype_bits(tensor.dtype) / 8;
        const Tensor one = make_tensor(at, tensor.dtype, {1});
        if (tensor.dtype == SMLA_E4M3) *at = char(f32_to_e4m3(value));
        else if (tensor.dtype == SMLA_E2M1) *at = char(random());
        else if (tensor.dtype == SMLA_E8M0) *at = char(125 + random() % 5);
        else store_row(one, at, 1, &value);
    }
}

Tensor World::values(smla_dtype dtype, std::initializer_list<int64_t> shape) {
    const Tensor out = tensor(dtype, shape, 0);
    fill(out, [&] { return (float(random() % 16) - 8) / 4; });
    return out;
}

Tensor World::powers(smla_dtype dtype, std::initializer_list<int64_t> shape) {
    const Tensor out = tensor(dtype, shape, 0);
    fill(out, [&] { return std::ldexp(random() % 2 ? 1.f : -1.f, int(random() % 3) - 1); });
    return out;
}

Tensor World::hostile(smla_dtype dtype, std::initializer_list<int64_t> shape) {
    const Tensor out = tensor(dtype, shape, 0);
    const bool mild = choose.flag();
    fill(out, [&]() -> float {
        if (mild || random() % 8) return (float(random() % 16) - 8) / 4;
        constexpr float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.f, -0.f, 3e38f, 1e-45f};
        return special[random() % 8];
    });
    return out;
}

Tensor World::indices(smla_dtype dtype, std::initializer_list<int64_t> shape, int64_t low, int64_t high) {
    const Tensor out = tensor(dtype, shape, 0);
    Buffer& buffer = buffers_.back();
    const int kind = int(choose.below(4));  // 0, 1: all good; 2: some outside; 3: anything
    const auto next = [&]() -> int64_t {
        const uint32_t dice = random() % 16;
        if (kind == 3 && dice < 4) return int64_t(uint64_t(random()) << 32 | random()) >> (random() % 64);
        if (kind >= 2 && dice < 8) return low - 2 + int64_t(random() % uint64_t(high - low + 5));
        return low + int64_t(random() % uint64_t(std::max<int64_t>(high - low + 1, 1)));
    };
    for (size_t at = 0; at + size_t(dtype_bits(dtype) / 8) <= buffer.bytes;
         at += size_t(dtype_bits(dtype) / 8)) {
        const int64_t value = next();
        const int32_t narrow = int32_t(value);
        if (dtype == SMLA_I64) std::memcpy(buffer.data.get() + at, &value, 8);
        else std::memcpy(buffer.data.get() + at, &narrow, 4);
    }
    return out;
}

Tensor World::prefix_sums(int64_t requests, int64_t last) {
    const Tensor out = indices(SMLA_I32, {requests + 1}, 0, last);
    if (choose.below(4) == 0) return out;
    int32_t* at = static_cast<int32_t*>(out.data);
    std::sort(at, at + requests + 1);
    if (choose.flag()) at[0] = 0;
    return out;
}

Tensor World::output(smla_dtype dtype, std::initializer_list<int64_t> shape, double tolerance) {
    return tensor(dtype, shape, tolerance);
}

smla_cache World::cache(smla_format format, int32_t width) {
    const Format& layout = *find_format(format);
    smla_cache out{};
    out.format = format;
    out.width = layout.width == 0 || choose.flag() ? width : 0;
    out.page_tokens = int32_t(choose.any({1, 2, 3, 4, 8, 16}));
    out.pages = choose.between(0, 5);
    if (choose.below(4) == 0) out.page_rows = out.page_tokens + int32_t(choose.between(0, 5));
    if (choose.below(4) == 0 && layout.packing == Packing::row)
        out.row_stride_bytes =
            int64_t(layout.record_bytes(width) + layout.alignment * size_t(choose.below(4)));
    if (layout.writers) out.writer = layout.writers & int32_t(choose.below(4));
    if (layout.scale == ScaleKind::per_tensor) out.scale = choose.any({1.f, 0.25f, 2.f});
    if (choose.below(4) == 0) {
        const int64_t rows = out.row_stride_bytes ? out.row_stride_bytes * out.page_tokens
                                                  : int64_t(layout.page_bytes(width, out.page_tokens));
        out.page_stride_bytes = rows + int64_t(layout.alignment) * choose.below(4);
    }
    out.data = take(cache_bytes(out), SMLA_U8, 0);
    if (cache_bytes(out) == 0) out.data = nullptr;
    const CacheView view(out);
    std::vector<float> row(static_cast<size_t>(width));
    for (int64_t at = 0; at < view.capacity && out.data; ++at) {
        if (view.hole(at)) continue;
        for (float& value : row) value = (float(random() % 16) - 8) / 4;
        view.encode(at, row.data());
    }
    caches_.push_back(out);
    return out;
}

void World::ignore(const void* data) {
    for (Buffer& buffer : buffers_)
        if (buffer.data.get() == data) buffer.tolerance = -1;
}
void World::ignore(const Tensor& tensor) { ignore(tensor.data); }
void World::ignore(const smla_cache& cache) { ignore(cache.data); }

bool World::same(const World& a, const World& b) {
    FUZZ_ASSERT(a.buffers_.size() == b.buffers_.size());
    for (size_t i = 0; i < a.buffers_.size(); ++i) {
        const Buffer &x = a.buffers_[i], &y = b.buffers_[i];
        FUZZ_ASSERT(x.bytes == y.bytes);
        if (x.tolerance < 0 || x.bytes == 0 || std::memcmp(x.data.get(), y.data.get(), x.bytes) == 0)
            continue;
        const size_t width = size_t(std::max(dtype_bits(x.dtype), 8)) / 8;
        for (size_t at = 0; at + width <= x.bytes; at += width) {
            const char *u = x.data.get() + at, *v = y.data.get() + at;
            if (std::memcmp(u, v, width) == 0) continue;
            const bool floats = (kFloats & dtype_bit(x.dtype)) != 0;
            if (floats && alike(u, v, x.dtype, x.tolerance)) continue;
            std::fprintf(stderr, "buffer %zu (%s, %zu bytes) differs at element %zu", i, dtype_name(x.dtype),
                         x.bytes, at / width);
            if (floats)
                std::fprintf(stderr, ": %.9g and %.9g, tolerance %g",
                             load_one<double>(make_tensor(u, x.dtype, {1}), 0),
                             load_one<double>(make_tensor(v, x.dtype, {1}), 0), x.tolerance);
            std::fprintf(stderr, "\n");
            return false;
        }
    }
    return true;
}

}  // namespace smla::fuzz
