// Block tables: cached tokens or entries of a request to rows of the cache.
#pragma once

#include <cstdint>

namespace smla {

struct PageRule {
    int64_t page_tokens = 1, page_rows = 1;
};

// rows[i] = row of position first + i, -1 where the table has no block, for i < n. The table row covers them
// all.
void list_rows(const int32_t* table, PageRule pages, int64_t first, int64_t n, int32_t* rows);

}  // namespace smla
