// Block tables of a checked batch, which map cached tokens or entries of a request to rows of the cache.
#pragma once

#include <cstdint>

namespace smla {

struct PageRule {
    int64_t page_tokens = 1, page_rows = 1;
};

// Returns the first column in [begin, end) of a table row that is not a page in [0, most]; `end` if all are.
int64_t find_no_page(const int32_t* table, int64_t begin, int64_t end, int32_t most);

// Sets rows[i] to the row of position first + i, for i < n. The table row must have pages for all n
// positions, and the rows must fit int32.
void list_rows(const int32_t* table, PageRule pages, int64_t first, int64_t n, int32_t* rows);

}  // namespace smla
