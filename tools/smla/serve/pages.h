// Pages of one cache group: a pool with reference counts. A request lists its pages in order; a shared prefix
// is listed by several.
#pragma once

#include "core/status.h"

#include <cstdint>
#include <vector>

namespace smla::cli {

class PagePool {
public:
    explicit PagePool(int32_t pages) : references_(size_t(pages), 0) {
        for (int32_t page = pages - 1; page >= 0; --page) free_.push_back(page);
    }
    int32_t free_pages() const { return int32_t(free_.size()); }
    int32_t take() {
        if (free_.empty()) fail(SMLA_INTERNAL, "pages", "no free page", "a page that was reserved");
        const int32_t page = free_.back();
        free_.pop_back();
        references_[size_t(page)] = 1;
        return page;
    }
    void share(int32_t page) { ++references_[size_t(page)]; }
    void release(int32_t page) {
        if (--references_[size_t(page)] == 0) free_.push_back(page);
    }

private:
    std::vector<int32_t> references_, free_;
};

}  // namespace smla::cli
