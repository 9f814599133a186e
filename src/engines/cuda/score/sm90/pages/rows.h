// Rows that cuda_sm90_pages_score scores together.
#pragma once

#include "engines/cuda/score/sm90/products.h"

namespace smla::cuda::sm90::pages {

// Maximum number of tokens per launch, with few and with many rows per request.
constexpr int kMostTokens = 2048, kMostTokensOfMany = 8192;

struct Rows {
    Products products;
    int heads, rows, of_unit;  // heads and rows per warpgroup, padded; maximum of rows per unit
    int group;                 // tokens whose rows may be a unit: a request's tokens if they fit
    bool many;                 // a request has more rows than a warpgroup processes
    bool fit;                  // a kernel supports this number of rows

    explicit Rows(const smla_score_args& args, const ScorePart& part = {})
        : products(products_of(args)), heads(args.q.shape[1] > 32 ? 64 : 32) {
        const int64_t of_request = rows_of_request(args, part), columns = of_request * heads;
        const bool e4m3 = products == Products::e4m3;
        many = columns > (e4m3 ? 128 : 64);
        fit = !many || e4m3;
        rows = (e4m3 && columns > 64 ? 128 : 64) / heads;
        of_unit = many ? kGroups * rows : rows;
        group = int(std::min<int64_t>(of_request, of_unit));
    }
};

}  // namespace smla::cuda::sm90::pages
