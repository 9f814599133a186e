#include "engines/cpu/select/top_k.h"

#include "engines/cpu/select/rank_key.h"

#include <algorithm>
#include <cstring>

namespace smla {

int32_t kth_key(const SelectKernel& kernel, const int32_t* keys, int64_t n, int64_t k) {
    // Bisection between the smallest and the largest key. Counting is the fastest pass and has no branches; a
    // partition of a few thousand entries mispredicts half of its branches.
    int64_t low = std::numeric_limits<int32_t>::min(), high = std::numeric_limits<int32_t>::max();
    while (low < high) {  // at least k keys are >= low, fewer are > high
        const int64_t middle = low + (high - low + 1) / 2;
        const int64_t reached = kernel.count(keys, n, int32_t(middle));
        if (reached == k) return int32_t(middle);
        if (reached > k) low = middle;
        else high = middle - 1;
    }
    return int32_t(low);
}

int64_t TopK::capacity(int64_t k, int64_t n, size_t budget) {
    // The buffer has twice k entries, and thousands for small k, so that compactions are rare and cost little
    // more than the pass before them.
    const int64_t most = std::min(std::max(2 * k, k + 6144), std::max<int64_t>(n, 1));
    const int64_t least = std::min(k + 256, most);
    int64_t entries = most;
    while (budget != 0 && entries > least && bytes(entries) > budget)
        entries = std::max(least, entries * 3 / 4);
    return entries;
}

size_t TopK::bytes(int64_t capacity) {
    Arena arena;
    TopK().take(arena, capacity);
    return arena.used() - kWorkspaceHeader;
}

void TopK::take(Arena& arena, int64_t capacity) {
    capacity_ = capacity;
    values_ = arena.take<float>(size_t(capacity) + kFilterSlack);
    columns_ = arena.take<int32_t>(size_t(capacity) + kFilterSlack);
    keys_ = arena.take<int32_t>(size_t(capacity) + kFilterSlack);
}

void TopK::start(const SelectKernel& kernel, int64_t k) {
    kernel_ = &kernel;
    k_ = k;
    count_ = 0;
    open_ = true;
    compacted_ = false;
}

void TopK::start(const SelectKernel& kernel, int64_t k, float floor) {
    start(kernel, k);
    open_ = false;
    floor_ = floor;
}

void TopK::push(const float* values, int64_t n, int32_t first_column) {
    while (n > 0) {
        if (count_ == capacity_) compact();
        const int64_t some = std::min(n, capacity_ - count_);  // all values may pass
        if (open_) {
            std::memcpy(values_ + count_, values, size_t(some) * sizeof(float));
            for (int64_t i = 0; i < some; ++i) columns_[count_ + i] = first_column + int32_t(i);
            count_ += some;
        } else {
            count_ +=
                kernel_->filter(values, some, first_column, floor_, values_ + count_, columns_ + count_);
        }
        values += some;
        first_column += int32_t(some);
        n -= some;
    }
}

void TopK::push(const float* values, const int32_t* columns, int64_t n) {
    while (n > 0) {
        if (count_ == capacity_) compact();
        const int64_t some = std::min(n, capacity_ - count_);
        if (open_) {
            std::memcpy(values_ + count_, values, size_t(some) * sizeof(float));
            std::memcpy(columns_ + count_, columns, size_t(some) * sizeof(int32_t));
            count_ += some;
        } else {  // the filter numbers entries from 0
            int32_t* passed = columns_ + count_;
            const int64_t n_passed = kernel_->filter(values, some, 0, floor_, values_ + count_, passed);
            for (int64_t i = 0; i < n_passed; ++i) passed[i] = columns[passed[i]];
            count_ += n_passed;
        }
        values += some;
        columns += some;
        n -= some;
    }
}

bool TopK::finish() {
    if (count_ > k_) compact();
    return open_ || compacted_ || count_ == k_;
}

void TopK::compact() {
    kernel_->keys(values_, count_, keys_);
    const int32_t kth = kth_key(*kernel_, keys_, count_, k_);
    const int64_t above =
        kth == std::numeric_limits<int32_t>::max() ? 0 : kernel_->count(keys_, count_, kth + 1);
    count_ = kernel_->keep(keys_, count_, kth, k_ - above, values_, columns_);
    floor_ = floor_above(kth);
    open_ = false;
    compacted_ = true;
}

}  // namespace smla
