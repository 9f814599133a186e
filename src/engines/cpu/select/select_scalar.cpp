#include "engines/cpu/select/kernel.h"
#include "engines/cpu/select/rank_key.h"

namespace smla {

namespace {

constexpr int kBlock = 16;  // columns that one test excludes

int64_t append(const float* values, int64_t n, int32_t first, float floor, float* out, int32_t* columns) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {  // no branch, because the columns that pass are random
        out[count] = values[i];
        columns[count] = first + int32_t(i);
        count += values[i] >= floor;
    }
    return count;
}

int64_t filter(const float* values, int64_t n, int32_t first, float floor, float* out, int32_t* columns) {
    int64_t count = 0, i = 0;
    for (; i + kBlock <= n; i += kBlock) {
        int any = 0;
        for (int lane = 0; lane < kBlock; ++lane) any |= values[i + lane] >= floor;
        if (any) count += append(values + i, kBlock, first + int32_t(i), floor, out + count, columns + count);
    }
    return count + append(values + i, n - i, first + int32_t(i), floor, out + count, columns + count);
}

void keys(const float* values, int64_t n, int32_t* keys) {
    for (int64_t i = 0; i < n; ++i) keys[i] = rank_key(values[i]);
}

int64_t count(const int32_t* keys, int64_t n, int32_t least) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += keys[i] >= least;
    return count;
}

int64_t keep(const int32_t* keys, int64_t n, int32_t kth, int64_t ties, float* values, int32_t* columns) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
        const bool tie = keys[i] == kth && ties > 0;
        ties -= tie;
        values[kept] = values[i];
        columns[kept] = columns[i];
        kept += tie || keys[i] > kth;
    }
    return kept;
}

}  // namespace

extern const SelectKernel kSelectScalar = {.name = "cpu_scalar_threshold_select",
                                           .isa = SMLA_ISA_SCALAR,
                                           .filter = filter,
                                           .keys = keys,
                                           .count = count,
                                           .keep = keep};

}  // namespace smla
