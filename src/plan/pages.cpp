#include "plan/pages.h"

#include <algorithm>
#include <limits>

namespace smla {

namespace {

constexpr int64_t kMaxRow = std::numeric_limits<int32_t>::max();

// Rows of whole pages of a compile-time size: the pages of ratio 128 hold two entries, so that a branch per
// look-up would cost more than the look-up. False if the rows of a block exceed int32: `rows` is wrong then.
template <int PageTokens>
bool list_whole_pages(const int32_t* table, int64_t pages, uint32_t page_rows, int32_t last_block,
                      int32_t* rows) {
    int32_t beyond = 0;
    for (int64_t p = 0; p < pages; ++p) {
        const int32_t block = table[p];
        const uint32_t base = uint32_t(block) * page_rows;
        beyond |= block > last_block;
        for (int i = 0; i < PageTokens; ++i)
            rows[p * PageTokens + i] = block < 0 ? -1 : int32_t(base + uint32_t(i));
    }
    return beyond == 0;
}

}  // namespace

void list_rows(const int32_t* table, PageRule pages, int64_t first, int64_t n, int32_t* rows) {
    int64_t page = first / pages.page_tokens, offset = first % pages.page_tokens, done = 0;
    if (pages.page_tokens == 2 && offset == 0) {
        const int32_t last_block = int32_t((kMaxRow - 1) / pages.page_rows);
        if (list_whole_pages<2>(table + page, n / 2, uint32_t(pages.page_rows), last_block, rows)) {
            done = n / 2 * 2;
            page += n / 2;
        }
    }
    while (done < n) {
        const int64_t run = std::min(n - done, pages.page_tokens - offset);
        const int64_t block = table[page++], base = block * pages.page_rows + offset;
        int32_t* const out = rows + done;
        if (block >= 0 && base + run - 1 <= kMaxRow) {
            for (int32_t i = 0; i < int32_t(run); ++i) out[i] = int32_t(base) + i;
        } else {
            for (int64_t i = 0; i < run; ++i)
                out[i] = block < 0 || base + i > kMaxRow ? -1 : int32_t(base + i);
        }
        done += run;
        offset = 0;
    }
}

}  // namespace smla
