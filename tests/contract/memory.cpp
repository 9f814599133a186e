#include "memory.h"

#include "core/numbers.h"
#include "formats/format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

namespace contract {

namespace {
constexpr size_t kGuard = 128;

// Every block of all memory that lives.
std::map<const uint8_t*, BlockRanges>& all_blocks() {
    static std::map<const uint8_t*, BlockRanges> blocks;
    return blocks;
}

int64_t elements_spanned(const smla_tensor& tensor) {
    int64_t last = 0;
    for (int d = 0; d < tensor.ndim; ++d) {
        if (tensor.shape[d] == 0) return 0;
        last += (tensor.shape[d] - 1) * tensor.stride_elems[d];
    }
    return last + 1;
}

// Calls use(i, j, k, l) for every element of a tensor of up to four dimensions.
template <class Use>
void each_element(const smla_tensor& tensor, const Use& use) {
    int64_t n[SMLA_MAX_NDIM];
    for (int d = 0; d < SMLA_MAX_NDIM; ++d) n[d] = d < tensor.ndim ? tensor.shape[d] : 1;
    for (int64_t i = 0; i < n[0]; ++i)
        for (int64_t j = 0; j < n[1]; ++j)
            for (int64_t k = 0; k < n[2]; ++k)
                for (int64_t l = 0; l < n[3]; ++l)
                    use(i * tensor.stride_elems[0] + j * tensor.stride_elems[1] + k * tensor.stride_elems[2] +
                        l * tensor.stride_elems[3]);
}

void set_at(const smla_tensor& tensor, int64_t element, double value) {
    auto* base = static_cast<uint8_t*>(tensor.data);
    if (tensor.dtype == SMLA_E4M3) {
        base[element] = smla::f32_to_e4m3(float(value));
    } else if (tensor.dtype == SMLA_E2M1) {
        const int shift = int(element & 1) * 4;
        base[element / 2] =
            uint8_t((base[element / 2] & ~(15 << shift)) | smla::f32_to_e2m1(float(value)) << shift);
    } else {
        smla_tensor one =
            smla::make_tensor(base + element * smla::dtype_bits(tensor.dtype) / 8, tensor.dtype, {1});
        smla::store_row(one, static_cast<char*>(one.data), 1, &value);
    }
}

int64_t at(const smla_tensor& tensor, int64_t i, int64_t j, int64_t k) {
    int64_t element = i * tensor.stride_elems[0];
    if (tensor.ndim > 1) element += j * tensor.stride_elems[1];
    if (tensor.ndim > 2) element += k * tensor.stride_elems[2];
    return element;
}
}  // namespace

uint8_t* Memory::add(size_t bytes) {
    Block& block = blocks_.emplace_back();
    block.bytes.assign(bytes + 2 * kGuard, kPoison);
    block.allowed.assign(block.bytes.size(), false);
    const uintptr_t address = reinterpret_cast<uintptr_t>(block.bytes.data()) + 64;
    block.payload = block.bytes.data() + 64 + (64 - address % 64) % 64;
    block.payload_bytes = bytes;
    all_blocks()[block.bytes.data()] = {{block.bytes.data(), block.bytes.size()}, {block.payload, bytes}};
    return block.payload;
}

Memory::~Memory() {
    for (const Block& block : blocks_) all_blocks().erase(block.bytes.data());
}

BlockRanges block_around(const void* address) {
    const auto* at = static_cast<const uint8_t*>(address);
    auto after = all_blocks().upper_bound(at);
    if (after == all_blocks().begin()) return {};
    const BlockRanges& block = std::prev(after)->second;
    return at < block.whole.begin + block.whole.bytes ? block : BlockRanges{};
}

smla_tensor Memory::tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, int64_t gap,
                           int64_t step) {
    smla_tensor out{};
    out.dtype = dtype;
    out.ndim = int32_t(shape.size());
    int64_t stride = step;
    for (int d = out.ndim - 1; d >= 0; --d) {
        out.shape[d] = shape.begin()[d];
        out.stride_elems[d] = stride;
        stride = stride * out.shape[d] + (d == 0 ? 0 : gap);
    }
    out.data = add(size_t(elements_spanned(out) * smla::dtype_bits(dtype) + 7) / 8);
    return out;
}

smla_cache Memory::cache(const CacheShape& shape) {
    smla_cache out{};
    const smla::Format& format = *smla::find_format(shape.format);
    out.format = shape.format;
    out.width = format.width ? 0 : shape.width;
    out.page_tokens = shape.page_tokens;
    out.page_rows = shape.page_rows;
    out.pages = shape.pages;
    out.page_stride_bytes = int64_t(smla::packed_page_bytes(out)) + shape.page_gap;
    out.scale = format.scale == smla::ScaleKind::per_tensor ? 0.02f : 0.f;
    out.data = add(shape.pages == 0 ? 0 : size_t(shape.pages * out.page_stride_bytes));
    return out;
}

void Memory::allow_bytes(const void* from, size_t count) {
    const auto* first = static_cast<const uint8_t*>(from);
    for (Block& block : blocks_)
        if (first >= block.bytes.data() && first < block.bytes.data() + block.bytes.size())
            std::fill_n(block.allowed.begin() + (first - block.bytes.data()), count, true);
}

void Memory::allow(const smla_tensor& tensor) {
    const auto* base = static_cast<const uint8_t*>(tensor.data);
    const int bits = smla::dtype_bits(tensor.dtype);
    each_element(tensor, [&](int64_t element) {
        allow_bytes(base + element * bits / 8, size_t(std::max(bits / 8, 1)));
    });
}

// Where a record lies, from the tables of the formats in docs, not from the library's code.
void Memory::allow_record(const smla_cache& cache, int64_t row) {
    if (!is_row(cache, row)) return;
    const int64_t page_rows = cache.page_rows ? cache.page_rows : cache.page_tokens;
    const int64_t n = cache.page_tokens, i = row % page_rows;
    const auto* page = static_cast<const uint8_t*>(cache.data) + row / page_rows * cache.page_stride_bytes;
    const auto split = [&](int64_t values, int64_t scales) {
        allow_bytes(page + i * values, size_t(values));
        allow_bytes(page + n * values + i * scales, size_t(scales));
    };
    const int64_t width = cache.width;
    switch (cache.format) {
        case SMLA_ROW_F64:
        case SMLA_STATE_F64: return allow_bytes(page + i * 8 * width, size_t(8 * width));
        case SMLA_ROW_F32:
        case SMLA_STATE_F32: return allow_bytes(page + i * 4 * width, size_t(4 * width));
        case SMLA_ROW_BF16: return allow_bytes(page + i * 2 * width, size_t(2 * width));
        case SMLA_FP8_656: return allow_bytes(page + i * 656, 656);
        case SMLA_FP8_576: return allow_bytes(page + i * 576, 576);
        case SMLA_FP8_512: return allow_bytes(page + i * 512, 512);
        case SMLA_FP8_528: return allow_bytes(page + i * 528, 528);
        case SMLA_FP8_584: return split(576, 8);
        case SMLA_INDEX_FP8_132: return split(128, 4);
        case SMLA_INDEX_MXFP4_68: return split(64, 4);
        default: FAIL() << "no such format " << cache.format;
    }
}

void Memory::remember() {
    for (Block& block : blocks_) block.before = block.bytes;
}

void Memory::reset() {  // the blocks keep their addresses
    for (Block& block : blocks_) std::copy(block.before.begin(), block.before.end(), block.bytes.begin());
}

std::vector<uint8_t> Memory::image() const {
    std::vector<uint8_t> out;
    for (const Block& block : blocks_)
        out.insert(out.end(), block.payload, block.payload + block.payload_bytes);
    return out;
}

testing::AssertionResult Memory::only_allowed_changed() const {
    for (size_t b = 0; b < blocks_.size(); ++b)
        for (size_t i = 0; i < blocks_[b].bytes.size(); ++i)
            if (blocks_[b].bytes[i] != blocks_[b].before[i] && !blocks_[b].allowed[i])
                return testing::AssertionFailure()
                       << "block " << b << " byte "
                       << std::ptrdiff_t(i) - (blocks_[b].payload - blocks_[b].bytes.data())
                       << " was written";
    return testing::AssertionSuccess();
}

testing::AssertionResult Memory::nothing_changed() const {
    for (size_t b = 0; b < blocks_.size(); ++b)
        if (blocks_[b].bytes != blocks_[b].before)
            return testing::AssertionFailure() << "block " << b << " was written";
    return testing::AssertionSuccess();
}

void set(const smla_tensor& tensor, int64_t i, int64_t j, int64_t k, double value) {
    set_at(tensor, at(tensor, i, j, k), value);
}

double get(const smla_tensor& tensor, int64_t i, int64_t j, int64_t k) {
    return smla::load_one<double>(tensor, i, j, k);
}

void set_int(const smla_tensor& tensor, int64_t i, int64_t j, int64_t value) {
    const int64_t element = at(tensor, i, j, 0);
    if (tensor.dtype == SMLA_I64) static_cast<int64_t*>(tensor.data)[element] = value;
    else static_cast<int32_t*>(tensor.data)[element] = int32_t(value);
}

int64_t get_int(const smla_tensor& tensor, int64_t i, int64_t j) { return smla::load_int(tensor, i, j); }

void zero(const smla_tensor& tensor) {
    const int64_t bytes = smla::dtype_bits(tensor.dtype) / 8;
    each_element(tensor, [&](int64_t element) {
        std::memset(static_cast<char*>(tensor.data) + element * bytes, 0, size_t(bytes));
    });
}

bool has_nan(const smla_tensor& tensor) {
    if (tensor.dtype > SMLA_E8M0 || tensor.dtype == SMLA_E2M1) return false;
    bool nan = false;
    each_element(tensor, [&](int64_t element) {
        const auto* at = static_cast<const char*>(tensor.data) + element * smla::dtype_bits(tensor.dtype) / 8;
        double value;
        smla::load_row(tensor, at, 1, &value);
        nan = nan || std::isnan(value);
    });
    return nan;
}

void fill_normal(const smla_tensor& tensor, std::mt19937& rng, double size) {
    std::normal_distribution<double> normal(0, size);
    each_element(tensor, [&](int64_t element) { set_at(tensor, element, normal(rng)); });
}

void fill_int(const smla_tensor& tensor, const std::function<int64_t(int64_t, int64_t)>& value) {
    for (int64_t i = 0; i < tensor.shape[0]; ++i)
        for (int64_t j = 0; j < (tensor.ndim > 1 ? tensor.shape[1] : 1); ++j)
            set_int(tensor, i, j, value(i, j));
}

int64_t capacity(const smla_cache& cache) { return smla::CacheView(cache).capacity; }

bool is_row(const smla_cache& cache, int64_t row) {
    const int64_t page_rows = cache.page_rows ? cache.page_rows : cache.page_tokens;
    return row >= 0 && row < cache.pages * page_rows && row % page_rows < cache.page_tokens;
}

std::vector<double> read_record(const smla_cache& cache, int64_t row) {
    const smla::CacheView view(cache);
    std::vector<double> out(static_cast<size_t>(view.width));
    view.decode(row, out.data());
    return out;
}

void write_record(const smla_cache& cache, int64_t row, const std::vector<double>& values) {
    const smla::CacheView view(cache);
    const std::vector<float> rounded(values.begin(), values.end());
    view.encode(row, rounded.data());
}

void write_normal(const smla_cache& cache, int64_t row, std::mt19937& rng) {
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<size_t>(smla::CacheView(cache).width));
    for (double& v : values) v = normal(rng);
    write_record(cache, row, values);
}

}  // namespace contract
