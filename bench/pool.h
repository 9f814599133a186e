// Clocks, huge pages and a cache of random rows, for benchmarks.
#pragma once

#include "core/huge_pages.h"
#include "formats/format.h"

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <vector>

namespace smla::bench {

constexpr int64_t kPoolRows = 131072;  // 86 MB of fp8_656: far beyond any L3

// On one thread, processor time: other load does not touch it.
inline double now_ms(bool processor_time) {
    timespec time;
    clock_gettime(processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return double(time.tv_sec) * 1e3 + double(time.tv_nsec) * 1e-6;
}

// Memory in huge pages, as a serving process keeps its cache: with small ones each row costs a page walk.
class HugePages {
public:
    explicit HugePages(size_t bytes) : data_(allocate_block(bytes, kHugePage)) {
        std::memset(data_, 0, bytes);
    }
    ~HugePages() { std::free(data_); }
    HugePages(const HugePages&) = delete;
    void* data() const { return data_; }

private:
    void* data_;
};

struct Pool {
    smla_cache cache{};
    std::unique_ptr<HugePages> bytes;

    Pool(smla_format format, int width, int64_t rows) {
        const Format& f = *find_format(format);
        cache.format = format;
        cache.width = f.width ? 0 : width;
        cache.page_tokens = 64;
        cache.pages = rows / 64;
        if (f.scale == ScaleKind::per_tensor) cache.scale = 0.01f;
        bytes = std::make_unique<HugePages>(cache_bytes(cache));
        cache.data = bytes->data();
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        std::vector<float> values(size_t(width) * 97);
        for (float& v : values) v = normal(random);
        const CacheView view(cache);
        for (int64_t r = 0; r < rows; ++r) view.encode(r, values.data() + (r % 97) * width);
    }
};

}  // namespace smla::bench
