// Finds the k best of a stream of scores in column order, exactly, in a buffer that is a little larger than
// k. Only scores above a floor enter. When the buffer is full, its best k stay and the k-th becomes the
// floor. The buffer is always in column order, so the lowest columns win ties and the result needs no sort.
#pragma once

#include "core/workspace.h"
#include "engines/cpu/select/kernel.h"

namespace smla {

// Returns a key that exactly k of n keys are >=, 1 <= k <= n; if ties prevent this, the key of the k-th best.
int32_t kth_key(const SelectKernel& kernel, const int32_t* keys, int64_t n, int64_t k);

class TopK {
public:
    // Returns how many entries to buffer for the best k of n, within a budget in bytes (0: no limit).
    static int64_t capacity(int64_t k, int64_t n, size_t budget);
    static size_t bytes(int64_t capacity);

    void take(Arena& arena, int64_t capacity);

    // Columns must be in ascending order. Scores below `floor` are dropped.
    void start(const SelectKernel& kernel, int64_t k);
    void start(const SelectKernel& kernel, int64_t k, float floor);
    void push(const float* values, int64_t n, int32_t first_column);
    // Pushes entries of another buffer of the row. Their columns are above all columns pushed so far.
    void push(const float* values, const int32_t* columns, int64_t n);
    // Leaves the best k, or all if there are fewer. Returns false if the floor dropped entries of the result.
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
