// Locates the keys of one request in column order, page by page, so that a division is needed per page and
// not per key.
#pragma once

#include "engines/cpu/score/kernel.h"
#include "ops/score/score.h"

namespace smla {

// The keys of a tile, ready to decode.
struct KeyTile {
    ColumnWindow columns;
    int n() const { return int(columns.end - columns.begin); }

    ValueRow rows[kScoreTile];
    float scales[kScoreTile];  // 1 if the format has no scales
    uint64_t holes = 0;        // bit j: column j has no key, and its row is zeros
    int of_one_page = 0;       // number of first rows with contiguous scales
    static_assert(kScoreTile <= 64);
};

class KeySpans {
public:
    explicit KeySpans(const smla_score_args& args);

    ValueBytes kind() const { return kind_; }
    int row_bytes() const { return row_bytes_; }  // bytes of the values
    // Returns the request of a token, whose tokens share keys; -1 if none. Ragged keys are one request.
    int64_t request(int64_t token) const;
    // Fills the tile except its `scales`.
    void locate(int64_t request, ColumnWindow columns, KeyTile& tile) const {
        tile.columns = {columns.begin, columns.begin};
        tile.holes = 0;
        tile.of_one_page = 0;
        append(request, columns, tile);
    }
    // Appends any further columns to the tile, after its last one.
    void append(int64_t request, ColumnWindow columns, KeyTile& tile) const;
    void load_scales(KeyTile& tile) const;

private:
    int64_t page_of(int64_t request, int64_t block) const;  // -1: no such page
    void locate_in_page(int64_t page, int64_t offset, int n, int at, KeyTile& tile) const;

    const smla_score_args& args_;
    CacheView keys_;
    ValueBytes kind_;
    bool paged_;
    int row_bytes_;
};

// Return the bytes of q as a ValueRow, and their kind.
ValueBytes query_kind(const smla_score_args& args);
ValueRow query_row(const smla_score_args& args, int64_t token, int64_t head);

}  // namespace smla
