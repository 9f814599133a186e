// Keys of one request in column order: where each lies, found page by page, so that a division is paid per
// page and not per key.
#pragma once

#include "engines/cpu/score/kernel.h"
#include "ops/score/score.h"

namespace smla {

// The keys of a tile, ready to decode.
struct KeyTile {
    ColumnWindow columns;
    int n() const { return int(columns.end - columns.begin); }

    ValueRow rows[kScoreTile];
    float scales[kScoreTile];  // 1 where the format has none
    uint64_t holes = 0;        // bit j: column j has no key; its row is zeros
    int of_one_page = 0;       // so many first rows have their scales side by side
    static_assert(kScoreTile <= 64);
};

class KeySpans {
public:
    explicit KeySpans(const smla_score_args& args);

    ValueBytes kind() const { return kind_; }
    int row_bytes() const { return row_bytes_; }  // of the values
    // The request of a token, -1 if none: tokens of one request share their keys. Ragged keys are all one
    // request.
    int64_t request(int64_t token) const;
    // Fills all of the tile but its `scales`.
    void locate(int64_t request, ColumnWindow columns, KeyTile& tile) const {
        tile.columns = {columns.begin, columns.begin};
        tile.holes = 0;
        tile.of_one_page = 0;
        append(request, columns, tile);
    }
    // Appends further columns to the tile, from anywhere, as if they followed its last one.
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

// The bytes of q as a ValueRow of the same kinds.
ValueBytes query_kind(const smla_score_args& args);
ValueRow query_row(const smla_score_args& args, int64_t token, int64_t head);

}  // namespace smla
