// Which rows cuda_sm90_pages_score scores together.
#pragma once

#include "engines/cuda/score/sm90/products.h"

namespace smla::cuda::sm90::pages {

constexpr int kMostTokens = 2048,
              kMostTokensOfMany = 8192;  // of a launch; of one with many rows of a request

struct Rows {
    Products products;
    int heads, rows, of_unit;  // of a warpgroup, with padding; rows of a unit
    bool divided;              // among warpgroups; otherwise they divide tiles
    bool fit;                  // the rows of a request are as many as one of these takes

    explicit Rows(const smla_score_args& args, const ScorePart& part = {})
        : products(products_of(args)), heads(args.q.shape[1] > 32 ? 64 : 32) {
        const int64_t columns = rows_of_request(args, part) * heads;
        const int most = products == Products::e4m3 ? 128 : 64;  // of a step
        divided = products == Products::e4m3 && columns >= kGroups * most;
        fit = columns <= most || divided;
        rows = (columns > 64 ? 128 : 64) / heads;
        of_unit = divided ? kGroups * rows : rows;
    }
};

}  // namespace smla::cuda::sm90::pages
