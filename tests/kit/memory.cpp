#include "kit/memory.h"

#include "core/workspace.h"
#include "kit/mapped.h"

#include <smla/formats.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#if defined(__SANITIZE_ADDRESS__)
#define SMLA_KIT_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SMLA_KIT_ASAN
#endif
#endif
#ifdef SMLA_KIT_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace smla::kit {

// Pages between walls with, for each byte, its previous value and whether it may be written.
struct Storage {
    explicit Storage(size_t bytes) : pages(bytes), before(bytes), allowed(bytes) {}
    Walled pages;
    std::vector<uint8_t> before, allowed;
};

namespace {

// Unused storage by its size, a power of two.
class Storages {
public:
    static Storages& all() {
        static Storages* const storages = new Storages;  // never destroyed: static objects need it at exit
        return *storages;
    }
    std::unique_ptr<Storage> take(size_t bytes) {
        const size_t size = std::bit_ceil(std::max(bytes, kSmallest));
        auto& free = free_[size];
        if (free.empty()) return std::make_unique<Storage>(size);
        std::unique_ptr<Storage> out = std::move(free.back());
        free.pop_back();
        return out;
    }
    void give_back(std::unique_ptr<Storage> storage) {
        if (storage->pages.size() <= kLargest) free_[storage->pages.size()].push_back(std::move(storage));
    }

private:
    static constexpr size_t kSmallest = 4096, kLargest = size_t(1) << 22;
    std::map<size_t, std::vector<std::unique_ptr<Storage>>> free_;
};

constexpr size_t kGuard = 192;  // three cache lines: a kernel that rounds up to vectors writes there

// All blocks in use.
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

size_t extent(const Tensor& tensor) {
    size_t bytes = 0;
    return smla_tensor_bytes(&tensor, &bytes) == SMLA_OK ? bytes : 0;
}

size_t extent(const smla_cache& cache) {
    size_t bytes = 0;
    return smla_cache_bytes(&cache, &bytes) == SMLA_OK ? bytes : 0;
}

bool is_row(const smla_cache& cache, int64_t row) {
    const int64_t page_rows = cache.page_rows ? cache.page_rows : cache.page_tokens;
    return row >= 0 && row < cache.pages * page_rows && row % page_rows < cache.page_tokens;
}

GuardedMemory::GuardedMemory(bool walls) : walls_(walls) {}

GuardedMemory::~GuardedMemory() {
    for (Block& block : blocks_) {
        all_blocks().erase(block.begin);
        Storages::all().give_back(std::move(block.storage));
    }
}

uint8_t* GuardedMemory::add(size_t bytes, size_t skew, std::string what) {
    Block block;
    const size_t lines = round_up(skew + bytes, 64), behind = walls_ ? 0 : kGuard;
    block.storage = Storages::all().take(kGuard + lines + behind);
    const Walled& pages = block.storage->pages;
    uint8_t* const last = reinterpret_cast<uint8_t*>(pages.data()) + pages.size() - behind;
    block.begin = last - lines - kGuard;
    block.payload = kGuard + skew;
    block.payload_bytes = bytes;
    block.size = kGuard + (walls_ ? lines : skew + bytes + kGuard);
    block.what = std::move(what);
    std::fill_n(block.begin, block.size, kPoison);
    std::fill_n(block.storage->allowed.begin(), block.size, uint8_t(0));
    uint8_t* const data = block.begin + block.payload;
    all_blocks()[block.begin] = {{block.begin, block.size}, {data, bytes}};
    blocks_.push_back(std::move(block));
    return data;
}

std::span<uint8_t> GuardedMemory::Block::before() const { return {storage->before.data(), size}; }
std::span<uint8_t> GuardedMemory::Block::allowed() const { return {storage->allowed.data(), size}; }
bool GuardedMemory::Block::changed() const { return std::memcmp(begin, storage->before.data(), size) != 0; }

void GuardedMemory::close([[maybe_unused]] bool closed) const {
#ifdef SMLA_KIT_ASAN
    for (const Block& block : blocks_) {
        if (!closed) {
            __asan_unpoison_memory_region(block.begin, block.size);
            continue;
        }
        const size_t end = block.payload + block.payload_bytes;
        __asan_poison_memory_region(block.begin, block.payload);
        __asan_poison_memory_region(block.begin + end, block.size - end);
    }
#endif
}

GuardedMemory::Block& GuardedMemory::block_of(const void* data) {
    const auto* at = static_cast<const uint8_t*>(data);
    for (Block& block : blocks_)
        if (at >= block.begin && at < block.begin + std::max<size_t>(block.size, 1)) return block;
    fail(SMLA_INTERNAL, "kit", "an address outside", "memory of the problem");
}

void GuardedMemory::allow_bytes(const void* from, size_t count) {
    const Block& block = block_of(from);
    const auto at = size_t(static_cast<const uint8_t*>(from) - block.begin);
    std::fill_n(block.allowed().begin() + std::ptrdiff_t(at), count, uint8_t(1));
}

void GuardedMemory::allow_all_of(const void* data) {
    const Block& block = block_of(data);
    std::fill_n(block.allowed().begin() + std::ptrdiff_t(block.payload), block.payload_bytes, uint8_t(1));
}

void GuardedMemory::allow_nothing() {
    for (const Block& block : blocks_) std::ranges::fill(block.allowed(), uint8_t(0));
}

void GuardedMemory::allow(const Tensor& tensor) {
    if (extent(tensor) == 0) return;
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

void GuardedMemory::allow_written(const void* data, const std::function<void()>& write) {
    if (!data) return;
    const Block& block = block_of(data);
    for (const int fill : {0x00, 0xFF}) {  // one of two fills shows every written byte
        std::ranges::fill(block.bytes(), uint8_t(fill));
        write();
        for (size_t i = 0; i < block.size; ++i)
            if (block.begin[i] != fill) block.allowed()[i] = 1;
    }
    std::ranges::fill(block.bytes(), kPoison);
}

void GuardedMemory::remember() {
    for (const Block& block : blocks_) std::ranges::copy(block.bytes(), block.before().begin());
}

void GuardedMemory::reset() {  // keeps the addresses of the blocks
    for (const Block& block : blocks_) std::ranges::copy(block.before(), block.begin);
}

std::string GuardedMemory::forbidden_write() const {
    for (const Block& block : blocks_) {
        if (!block.changed()) continue;
        for (size_t i = 0; i < block.size; ++i)
            if (block.begin[i] != block.before()[i] && !block.allowed()[i])
                return text("wrote byte ", int64_t(i) - int64_t(block.payload), " of ", block.what,
                            ", which is not its to write");
    }
    return "";
}

bool GuardedMemory::changed() const {
    return std::ranges::any_of(blocks_, [](const Block& block) { return block.changed(); });
}

std::vector<uint8_t> GuardedMemory::image() const {
    std::vector<uint8_t> out;
    for (const Block& block : blocks_) {
        const std::vector<uint8_t> held = block.held();
        out.insert(out.end(), held.begin(), held.end());
    }
    return out;
}

std::vector<uint8_t> GuardedMemory::image(const smla_cache& cache) const {
    if (!cache.data) return {};
    return block_of(cache.data).held();
}

}  // namespace smla::kit
