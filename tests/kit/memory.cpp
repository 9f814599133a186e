#include "kit/memory.h"

#include <algorithm>
#include <map>

namespace smla::kit {

namespace {

constexpr size_t kGuard = 192;  // three cache lines: a kernel that rounds up to vectors hits it

// Every block of all memory that lives.
std::map<const uint8_t*, BlockRanges>& all_blocks() {
    static std::map<const uint8_t*, BlockRanges> blocks;
    return blocks;
}

}  // namespace

BlockRanges block_around(const void* address) {
    const auto* at = static_cast<const uint8_t*>(address);
    const auto after = all_blocks().upper_bound(at);
    if (after == all_blocks().begin()) return {};
    const BlockRanges& block = std::prev(after)->second;
    return at < block.whole.begin + block.whole.bytes ? block : BlockRanges{};
}

bool is_row(const smla_cache& cache, int64_t row) {
    const int64_t page_rows = cache.page_rows ? cache.page_rows : cache.page_tokens;
    return row >= 0 && row < cache.pages * page_rows && row % page_rows < cache.page_tokens;
}

GuardedMemory::~GuardedMemory() {
    for (const auto& block : blocks_) all_blocks().erase(block->bytes.data());
}

uint8_t* GuardedMemory::add(size_t bytes, size_t skew, std::string what) {
    Block& block = *blocks_.emplace_back(std::make_unique<Block>());
    block.bytes.assign(bytes + 2 * kGuard + 128, kPoison);
    const size_t address = reinterpret_cast<uintptr_t>(block.bytes.data()) + kGuard;
    block.payload = kGuard + (64 - address % 64) % 64 + skew;
    block.payload_bytes = bytes;
    block.bytes.resize(block.payload + bytes + kGuard);
    block.allowed.assign(block.bytes.size(), 0);
    block.what = std::move(what);
    uint8_t* const data = block.bytes.data() + block.payload;
    all_blocks()[block.bytes.data()] = {{block.bytes.data(), block.bytes.size()}, {data, bytes}};
    return data;
}

GuardedMemory::Block& GuardedMemory::block_of(const void* data) {
    const auto* at = static_cast<const uint8_t*>(data);
    for (const auto& block : blocks_)
        if (at >= block->bytes.data() && at < block->bytes.data() + block->bytes.size()) return *block;
    fail(SMLA_INTERNAL, "kit", "an address outside", "memory of the problem");
}

void GuardedMemory::allow_bytes(const void* from, size_t count) {
    Block& block = block_of(from);
    const size_t at = size_t(static_cast<const uint8_t*>(from) - block.bytes.data());
    std::fill_n(block.allowed.begin() + std::ptrdiff_t(at), count, uint8_t(1));
}

void GuardedMemory::allow(const Tensor& tensor) {
    if (!present(tensor) || element_count(tensor) == 0) return;
    const auto bits = size_t(dtype_bits(tensor.dtype));
    const auto* base = static_cast<const uint8_t*>(tensor.data);
    each_element(tensor, [&](int64_t element) {
        allow_bytes(base + size_t(element) * bits / 8, std::max<size_t>(bits / 8, 1));
    });
}

void GuardedMemory::allow(const Tensor& tensor, int64_t i, int64_t j, int64_t count) {
    for (int64_t at = j; at < j + count; ++at)
        allow_bytes(address(tensor, i, at), size_t(dtype_bits(tensor.dtype)) / 8);
}

void GuardedMemory::allow_record(const smla_cache& cache, int64_t row) {
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
        case SMLA_FP8_528_G32: return allow_bytes(page + i * 528, 528);
        case SMLA_NVFP4_288: return allow_bytes(page + i * 288, 288);
        case SMLA_NVFP4_352: return allow_bytes(page + i * 352, 352);
        case SMLA_FP8_584: return split(576, 8);
        case SMLA_FP8_528_G32_SPLIT: return split(512, 16);
        case SMLA_NVFP4_288_SPLIT: return split(256, 32);
        case SMLA_NVFP4_384: return split(352, 32);
        case SMLA_INDEX_FP8_132: return split(128, 4);
        case SMLA_INDEX_MXFP4_68: return split(64, 4);
        default: fail(SMLA_INTERNAL, "cache.format", text(cache.format), "a format of docs/formats.md");
    }
}

void GuardedMemory::allow_written(const smla_cache& cache, const std::function<void()>& write) {
    Block& block = block_of(cache.data);
    for (const int fill : {0x00, 0xFF}) {  // a byte written with what was there shows against the other
        std::fill(block.bytes.begin(), block.bytes.end(), uint8_t(fill));
        write();
        for (size_t i = 0; i < block.bytes.size(); ++i)
            if (block.bytes[i] != fill) block.allowed[i] = 1;
    }
    std::fill(block.bytes.begin(), block.bytes.end(), kPoison);
}

void GuardedMemory::remember() {
    for (const auto& block : blocks_) block->before = block->bytes;
}

void GuardedMemory::reset() {  // the blocks keep their addresses
    for (const auto& block : blocks_)
        std::copy(block->before.begin(), block->before.end(), block->bytes.begin());
}

std::string GuardedMemory::forbidden_write() const {
    for (const auto& block : blocks_) {
        if (block->bytes == block->before) continue;
        for (size_t i = 0; i < block->bytes.size(); ++i)
            if (block->bytes[i] != block->before[i] && !block->allowed[i])
                return text("wrote byte ", int64_t(i) - int64_t(block->payload), " of ", block->what,
                            ", which is not its to write");
    }
    return "";
}

bool GuardedMemory::changed() const {
    return std::any_of(blocks_.begin(), blocks_.end(),
                       [](const auto& block) { return block->bytes != block->before; });
}

std::vector<uint8_t> GuardedMemory::image() const {
    std::vector<uint8_t> out;
    for (const auto& block : blocks_) {
        const auto first = block->bytes.begin() + std::ptrdiff_t(block->payload);
        out.insert(out.end(), first, first + std::ptrdiff_t(block->payload_bytes));
    }
    return out;
}

std::vector<uint8_t> GuardedMemory::image(const smla_cache& cache) const {
    const Block& block = block_of(cache.data);
    const auto first = block.bytes.begin() + std::ptrdiff_t(block.payload);
    return {first, first + std::ptrdiff_t(block.payload_bytes)};
}

}  // namespace smla::kit
