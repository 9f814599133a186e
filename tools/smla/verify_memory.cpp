#include "verify_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace smla::cli {

namespace {

constexpr size_t kGuard = 192;  // three cache lines: a kernel that rounds up to vectors hits it

int64_t element(const Tensor& tensor, int64_t i, int64_t j, int64_t k, int64_t l) {
    return i * tensor.stride_elems[0] + j * tensor.stride_elems[1] + k * tensor.stride_elems[2] +
           l * tensor.stride_elems[3];
}

}  // namespace

uint64_t Random::next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t Random::between(int64_t low, int64_t high) {
    const uint64_t count = uint64_t(high - low) + 1;
    return low + int64_t(uint64_t((unsigned __int128)(next()) * count >> 64));
}

int64_t Random::log_between(int64_t low, int64_t high) {
    const double value = std::exp(uniform(std::log(double(low)), std::log(double(high) + 1)));
    return std::clamp(int64_t(value), low, high);
}

double Random::normal() {  // Box and Muller
    return std::sqrt(-2 * std::log(1 - uniform(0, 1))) * std::cos(6.283185307179586 * uniform(0, 1));
}

void* HostileMemory::add(size_t bytes, size_t alignment, std::string what) {
    Block& block = *blocks_.emplace_back(std::make_unique<Block>());
    block.bytes.assign(bytes + 2 * kGuard + 128, kPoison);
    block.what = std::move(what);
    const size_t address = reinterpret_cast<uintptr_t>(block.bytes.data()) + kGuard;
    // aligned to 64 bytes as often as only to what the caller promises
    const size_t offset =
        random_.chance(0.5) ? 0 : size_t(random_.between(0, int64_t(63 / alignment))) * alignment;
    block.payload = kGuard + (64 - address % 64) % 64 + offset;
    block.bytes.resize(block.payload + bytes + kGuard);
    block.allowed.assign(block.bytes.size(), 0);
    return block.bytes.data() + block.payload;
}

Tensor HostileMemory::tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, Inner inner) {
    Tensor out{};
    out.dtype = dtype;
    out.ndim = int32_t(shape.size());
    const int64_t unit = dtype == SMLA_E2M1 ? 2 : 1;  // rows of e2m1 begin at a byte
    int64_t stride = inner == Inner::any && random_.chance(0.25) ? random_.between(2, 3) : 1, last = 0;
    for (int d = out.ndim - 1; d >= 0; --d) {
        out.shape[d] = shape.begin()[d];
        out.stride_elems[d] = stride;
        last += std::max<int64_t>(out.shape[d] - 1, 0) * stride;
        stride = std::max<int64_t>(stride * out.shape[d], 1);
        if (random_.chance(0.3)) stride += unit * random_.between(1, 20);
        stride = (stride + unit - 1) / unit * unit;
    }
    const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    const size_t bits = size_t(dtype_bits(dtype)), bytes = empty ? 0 : (size_t(last + 1) * bits + 7) / 8;
    out.data = add(bytes, std::max<size_t>(bits / 8, 1), describe(out));
    return out;
}

smla_cache HostileMemory::cache(const CacheShape& shape) {
    const Format& format = *find_format(shape.format);
    smla_cache out{};
    out.format = shape.format;
    out.width = format.width && random_.chance(0.5) ? 0 : int32_t(shape.width);
    out.page_tokens = shape.page_tokens;
    out.pages = shape.pages;
    if (random_.chance(0.25))
        out.page_rows = out.page_tokens * int32_t(random_.between(1, 3)) + int32_t(random_.between(0, 5));
    if (format.packing == Packing::row && random_.chance(0.25)) {
        const int64_t record = int64_t(format.record_bytes(int32_t(shape.width))), unit = format.alignment;
        out.row_stride_bytes = (record + unit - 1) / unit * unit + unit * random_.between(0, 16);
    }
    if (random_.chance(0.4)) {
        const int64_t page = int64_t(packed_page_bytes(out)), unit = format.alignment;
        out.page_stride_bytes = (page + unit - 1) / unit * unit + unit * random_.between(0, 64);
    }
    if (format.scale == ScaleKind::per_tensor) out.scale = float(random_.uniform(0.005, 0.05));
    out.data = add(cache_bytes(out), format.alignment, text("cache ", format.name));
    return out;
}

HostileMemory::Block& HostileMemory::block_of(const void* data) {
    const auto* at = static_cast<const uint8_t*>(data);
    for (const auto& block : blocks_)
        if (at >= block->bytes.data() && at < block->bytes.data() + block->bytes.size()) return *block;
    fail(SMLA_INTERNAL, "verify", "an address outside", "memory of the problem");
}

void HostileMemory::allow_bytes(const void* from, size_t count) {
    Block& block = block_of(from);
    const size_t at = size_t(static_cast<const uint8_t*>(from) - block.bytes.data());
    std::fill_n(block.allowed.begin() + std::ptrdiff_t(at), count, uint8_t(1));
}

void HostileMemory::allow(const Tensor& tensor) {
    if (!present(tensor) || element_count(tensor) == 0) return;
    const auto bits = size_t(dtype_bits(tensor.dtype));
    each_index(tensor, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        const size_t at = size_t(element(tensor, i, j, k, l)) * bits / 8;
        allow_bytes(static_cast<const uint8_t*>(tensor.data) + at, std::max<size_t>(bits / 8, 1));
    });
}

void HostileMemory::allow(const Tensor& tensor, int64_t i, int64_t j, int64_t count) {
    for (int64_t at = j; at < j + count; ++at)
        allow_bytes(address(tensor, i, at), size_t(dtype_bits(tensor.dtype)) / 8);
}

void HostileMemory::allow_written(const smla_cache& cache, const std::function<void()>& write) {
    Block& block = block_of(cache.data);
    for (const int fill : {0x00, 0xFF}) {  // a byte written with what was there shows against the other
        std::fill(block.bytes.begin(), block.bytes.end(), uint8_t(fill));
        write();
        for (size_t i = 0; i < block.bytes.size(); ++i)
            if (block.bytes[i] != fill) block.allowed[i] = 1;
    }
    std::fill(block.bytes.begin(), block.bytes.end(), kPoison);
}

void HostileMemory::remember() {
    for (const auto& block : blocks_) block->before = block->bytes;
}

void HostileMemory::reset() {  // the blocks keep their addresses
    for (const auto& block : blocks_)
        std::copy(block->before.begin(), block->before.end(), block->bytes.begin());
}

std::string HostileMemory::forbidden_write() const {
    for (const auto& block : blocks_) {
        if (block->bytes == block->before) continue;
        for (size_t i = 0; i < block->bytes.size(); ++i)
            if (block->bytes[i] != block->before[i] && !block->allowed[i])
                return text("wrote byte ", int64_t(i) - int64_t(block->payload), " of ", block->what,
                            ", which is not its to write");
    }
    return "";
}

std::vector<uint8_t> HostileMemory::image() const {
    std::vector<uint8_t> out;
    for (const auto& block : blocks_) out.insert(out.end(), block->bytes.begin(), block->bytes.end());
    return out;
}

std::vector<uint8_t> HostileMemory::image(const smla_cache& cache) const {
    return block_of(cache.data).bytes;
}

void set_value(const Tensor& tensor, int64_t i, int64_t j, int64_t k, int64_t l, double value) {
    const int64_t at = element(tensor, i, j, k, l);
    auto* bytes = static_cast<uint8_t*>(tensor.data);
    switch (tensor.dtype) {
        case SMLA_E4M3: bytes[at] = f32_to_e4m3(float(value)); break;
        case SMLA_E8M0: bytes[at] = ceil_e8m0(float(value)); break;
        case SMLA_E2M1: {
            const int shift = int(at & 1) * 4;
            bytes[at / 2] = uint8_t((bytes[at / 2] & ~(15 << shift)) | f32_to_e2m1(float(value)) << shift);
            break;
        }
        default: {
            char* to = reinterpret_cast<char*>(bytes) + at * dtype_bits(tensor.dtype) / 8;
            store_row(tensor, to, 1, &value);
        }
    }
}

void set_int(const Tensor& tensor, int64_t i, int64_t j, int64_t value) {
    char* at = address(tensor, i, j);
    const auto narrow = int32_t(value);
    if (tensor.dtype == SMLA_I64) std::memcpy(at, &value, sizeof value);
    else std::memcpy(at, &narrow, sizeof narrow);
}

void fill_normal(const Tensor& tensor, Random& random, double spread) {
    each_index(tensor, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        const bool scale = tensor.dtype == SMLA_E8M0;
        set_value(tensor, i, j, k, l,
                  scale ? std::exp2(double(random.between(-3, 3))) : spread * random.normal());
    });
}

void fill_constant(const Tensor& tensor, double value) {
    each_index(tensor,
               [&](int64_t i, int64_t j, int64_t k, int64_t l) { set_value(tensor, i, j, k, l, value); });
}

Doubles Doubles::like(const Tensor& shape) {
    Doubles out;
    if (!present(shape)) return out;
    out.values.assign(size_t(element_count(shape)) + 1, std::numeric_limits<double>::quiet_NaN());
    out.tensor_ = make_tensor(out.values.data(), SMLA_F64, {1});
    out.tensor_.ndim = shape.ndim;
    int64_t stride = 1;
    for (int d = shape.ndim - 1; d >= 0; --d) {
        out.tensor_.shape[d] = shape.shape[d];
        out.tensor_.stride_elems[d] = stride;
        stride *= shape.shape[d];
    }
    out.values.resize(size_t(element_count(shape)));
    return out;
}

Doubles::Doubles(const Tensor& from) {
    *this = like(from);
    if (!present(from)) return;
    size_t at = 0;
    each_index(tensor_, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        const auto bits = size_t(dtype_bits(from.dtype));
        const char* base = static_cast<const char*>(from.data);
        const int64_t index = element(from, i, j, k, l);
        if (from.dtype == SMLA_E2M1) {
            const auto byte = uint8_t(base[index / 2]);
            values[at++] = double(e2m1_to_f32(index & 1 ? byte >> 4 : byte & 15));
            return;
        }
        if (from.dtype == SMLA_I32 || from.dtype == SMLA_I64) values[at++] = double(load_int(from, i, j));
        else load_row(from, base + size_t(index) * bits / 8, 1, &values[at++]);
    });
}

void Doubles::make_absolute() {
    for (double& value : values) value = std::fabs(value);
}

}  // namespace smla::cli
