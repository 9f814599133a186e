// Interface of a select kernel of one instruction set: passes over a few thousand to a few million scores.
#pragma once

#include <smla/context.h>

#include <cstddef>
#include <cstdint>

namespace smla {

constexpr int kFilterSlack = 16;  // entries after the last one that `filter` and `keep` may write

struct SelectKernel {
    const char* name;
    smla_isa isa;

    // Appends values >= floor and their columns, first + i; returns their number. A NaN floor passes none.
    int64_t (*filter)(const float* values, int64_t n, int32_t first, float floor, float* out,
                      int32_t* columns);
    // keys[i] = rank_key(values[i])
    void (*keys)(const float* values, int64_t n, int32_t* keys);
    // Returns how many keys are >= least.
    int64_t (*count)(const int32_t* keys, int64_t n, int32_t least);
    // Keeps the entries with keys above `kth` and the first `ties` with this key, in order and in place.
    int64_t (*keep)(const int32_t* keys, int64_t n, int32_t kth, int64_t ties, float* values,
                    int32_t* columns);
};

extern const SelectKernel kSelectScalar;
#if defined(__x86_64__)
extern const SelectKernel kSelectAvx2, kSelectAvx512;
#endif

}  // namespace smla
