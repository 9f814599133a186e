// Pseudo-random numbers of a token, which depend only on its key.
#pragma once

#include <cstdint>

namespace smla::cli {

inline uint64_t mixed(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
// Returns 64 bits for number `i` of a token's input `what`.
inline uint64_t drawn(uint64_t key, uint64_t what, uint64_t i) {
    return mixed(key ^ mixed(what * 1000003 + i));
}

}  // namespace smla::cli
