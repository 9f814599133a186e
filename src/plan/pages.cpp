#include "plan/pages.h"

#include <algorithm>

namespace smla {

namespace {

// Lists rows of whole pages of a compile-time size. Pages of ratio 128 have two entries, so a branch per
// lookup would cost more than the lookup.
template <int PageTokens>
void list_whole_pages(const int32_t* table, int64_t pages, int32_t page_rows, int32_t* rows) {
    for (int64_t p = 0; p < pages; ++p)
        for (int i = 0; i < PageTokens; ++i) rows[p * PageTokens + i] = table[p] * page_rows + i;
}

}  // namespace

int64_t find_no_page(const int32_t* table, int64_t begin, int64_t end, int32_t most) {
    // There is no branch per column: negative pages and pages above `most` set the sign of `bits`.
    uint32_t bits = 0;
    for (int64_t c = begin; c < end; ++c) bits |= uint32_t(table[c]) | (uint32_t(most) - uint32_t(table[c]));
    if (int32_t(bits) >= 0) return end;
    return std::find_if(table + begin, table + end, [=](int32_t page) { return page < 0 || page > most; }) -
           table;
}

void list_rows(const int32_t* table, PageRule pages, int64_t first, int64_t n, int32_t* rows) {
    int64_t page = first / pages.page_tokens, offset = first % pages.page_tokens, done = 0;
    if (pages.page_tokens == 2 && offset == 0) {
        list_whole_pages<2>(table + page, n / 2, int32_t(pages.page_rows), rows);
        done = n / 2 * 2;
        page += n / 2;
    }
    while (done < n) {
        const int64_t run = std::min(n - done, pages.page_tokens - offset);
        const auto row = int32_t(table[page++] * pages.page_rows + offset);
        for (int32_t i = 0; i < int32_t(run); ++i) rows[done + i] = row + i;
        done += run;
        offset = 0;
    }
}

}  // namespace smla
