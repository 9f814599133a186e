// The k best of a stream of scores in column order, exactly, in a buffer that is a little larger than k. Only
// scores above a floor enter. When the buffer fills up, the best k of it stay and the k-th becomes the floor.
// What is in the buffer is in column order throughout, so the lowest columns win ties and the result needs no
// sorting.
#pragma once

#include "core/workspace.h"
#include "engines/cpu/select/kernel.h"

namespace smla {

// A key that exactly k of n keys reach, 1 <= k <= n; where ties leave none, the key of the k-th best.
int32_t kth_key(const SelectKernel& kernel, const int32_t* keys, int64_t n, int64_t k);

class TopK {
public:
    // How many entries to hold for the best k of n; with a budget in bytes (0: none), as many as it allows.
    static int64_t capacity(int64_t k, int64_t n, size_t budget);
    static size_t bytes(int64_t capacity);

    void take(Arena& arena, int64_t capacity);

    // Expects columns in ascending order. Nothing below `floor` enters.
    void start(const SelectKernel& kernel, int64_t k);
    void start(const SelectKernel& kernel, int64_t k, float floor);
    void push(const float* values, int64_t n, int32_t first_column);
    // The same with given columns, of entries that another buffer of the row kept. They are above all columns
    // pushed so far.
    void push(const float* values, const int32_t* columns, int64_t n);
    // Leaves the best k, or all if there are fewer. False if a floor kept out entries that belong.
    bool finish();

    int64_t count() const { return count_; }
    const float* values() const { return values_; }
    const int32_t* columns() const { return columns_; }
    // Scratch that is free between two streams, `room` entries each.
    int64_t room() const { return capacity_; }
    float* spare_values() { return values_; }
    int32_t* spare_keys() { return keys_; }

private:
    void compact();

    const SelectKernel* kernel_ = nullptr;
    int64_t k_ = 0, count_ = 0, capacity_ = 0;
    bool open_ = true, compacted_ = false;  // open: everything enters
    float floor_ = 0;
    float* values_ = nullptr;
    int32_t *columns_ = nullptr, *keys_ = nullptr;
};

}  // namespace smla
