// Which rows cuda_sm90_few_score scores together.
#pragma once

#include "engines/cuda/score/run.h"

namespace smla::cuda::sm90::few {

constexpr int kMostTokens = 2048;

struct Rows {
    int heads, rows;  // of a group, rows of padding with it
    bool fit;         // the rows of a request into a group

    explicit Rows(const smla_score_args& args, const ScorePart& part = {}) {
        const int64_t of_request = rows_of_request(args, part);
        heads = args.q.shape[1] > 32 ? 64 : 32;
        const bool rounded = args.precision == SMLA_PRECISION_ROUNDED,
                   mxfp4 = args.keys.format == SMLA_INDEX_MXFP4_68;
        const int64_t columns = rounded && !mxfp4 ? 128 : 64;
        fit = of_request * heads <= columns;
        rows = of_request * heads > 64 ? 128 / heads : 64 / heads;
    }
};

}  // namespace smla::cuda::sm90::few
