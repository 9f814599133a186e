// A fuzzer's input as a sequence of choices; random ones when it has ended, so that short inputs decide all.
#pragma once

#include "kit/random.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace smla::fuzz {

class Choices {
public:
    Choices(const uint8_t* data, size_t size) : data_(data), size_(size), random_(hash(data, size)) {}
    uint8_t byte() { return at_ < size_ ? data_[at_++] : uint8_t(random_.next()); }
    int64_t below(int64_t n) {
        if (n <= 1) return 0;
        int64_t value = byte();
        if (n > 256) value = value << 8 | byte();
        return value % n;
    }
    int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
    bool flag() { return byte() & 1; }
    template <class T>
    T any(std::initializer_list<T> list) {
        return list.begin()[below(int64_t(list.size()))];
    }

private:
    static uint64_t hash(const uint8_t* data, size_t size) {  // FNV-1a
        uint64_t out = 0xcbf29ce484222325u;
        for (size_t i = 0; i < size; ++i) out = (out ^ data[i]) * 0x100000001b3u;
        return out;
    }

    const uint8_t* data_;
    size_t size_, at_ = 0;
    kit::Random random_;
};

}  // namespace smla::fuzz
