// Checks and specification of score.
#pragma once

#include "ops/ops.h"

#include <algorithm>

namespace smla {

constexpr int kMaxIndexHeads = 256;

// Returns the fields of a stage that computes scores: the members of Args that `scored` lists, then `more`.
template <class Args, size_t N>
constexpr auto scored_fields_and(const std::array<StageField, N>& more) {
    using namespace fields;
    const std::array scored{
        in(SMLA_FIELD(q), dtypes(SMLA_F64, SMLA_F32, SMLA_BF16, SMLA_E4M3, SMLA_E2M1), "T Hi D").rows(),
        in(SMLA_FIELD(q_scales), dtype_bit(SMLA_E8M0), "T Hi D/32")
            .rows()
            .exactly_if(offsetof(Args, q), SMLA_E2M1),
        in(SMLA_FIELD(w), kFloat32Or64, "T Hi").as_double_as(offsetof(Args, q)),
        cache(SMLA_FIELD(keys), kIndexFormats),
        in(SMLA_FIELD(block_table), kInt32, "R MB").optional(),
        in(SMLA_FIELD(request_of_token), kInt32, "T").exactly_if(offsetof(Args, block_table)),
        in(SMLA_FIELD(starts), kInt32, "T").optional(),
        in(SMLA_FIELD(ends), kInt32, "T"),
    };
    std::array<StageField, scored.size() + N> all{};
    std::copy(more.begin(), more.end(), std::copy(scored.begin(), scored.end(), all.begin()));
    return all;
}

// Fields of score, which are also fields of score_select's member `score`.
constexpr auto kScoreFields = [] {
    using namespace fields;
    using Args = smla_score_args;
    return scored_fields_and<Args>(
        std::array{out(SMLA_FIELD(logits), dtypes(SMLA_F64, SMLA_F32, SMLA_BF16), "T N")
                       .rows()
                       .as_double_as(offsetof(Args, q))});
}();
// Checks the rules between fields except `logits`, which score_select lacks. `prefix`: "args" or
// "args.score".
void check_score_rules(const char* prefix, const smla_score_args& args);

// Columns [begin, end) of one token; empty if begin == end.
struct ColumnWindow {
    int64_t begin = 0, end = 0;
};
inline ColumnWindow clamp_window(const Tensor& starts, const Tensor& ends, int64_t token, int64_t columns) {
    ColumnWindow window{0, columns};
    if (present(starts)) window.begin = std::clamp<int64_t>(load_int(starts, token), 0, columns);
    if (present(ends)) window.end = std::clamp<int64_t>(load_int(ends, token), 0, columns);
    window.end = std::max(window.begin, window.end);
    return window;
}

// Maps columns of a token to cache rows. Reads the block table only for the requested columns.
class KeyColumns {
public:
    KeyColumns(const smla_score_args& args, const CacheView& keys)
        : keys_(keys), blocks_(present(args.block_table) ? args.block_table.shape[1] : 0), args_(args) {}

    void set_token(int64_t token) {
        if (!paged()) return;
        const int64_t request = load_int(args_.request_of_token, token);
        known_ = request >= 0 && request < args_.block_table.shape[0];
        request_ = known_ ? request : 0;
    }
    // Returns -1 if a request or block id is out of range, or the column is past the table or the cache.
    int64_t row(int64_t column) const {
        int64_t row = column;
        if (paged()) {
            const int64_t block = column / keys_.page_tokens;
            if (!known_ || block >= blocks_) return -1;
            const int64_t page = load_int(args_.block_table, request_, block);
            if (page < 0 || page >= keys_.pages) return -1;
            row = page * keys_.page_rows + column % keys_.page_tokens;
        }
        return keys_.hole(row) ? -1 : row;
    }
    bool paged() const { return present(args_.block_table); }

private:
    const CacheView& keys_;
    int64_t blocks_, request_ = 0;
    bool known_ = true;
    const smla_score_args& args_;
};

// Loads the key as it enters the dot product. Returns the scale that multiplies the logit last (1 for a
// format without scales).
float load_key(const CacheView& keys, int64_t row, float* codes);
double load_key(const CacheView& keys, int64_t row, double* codes);

// Loads one row of q. Multiplies e2m1 by q_scales, which is exact, because the scales are powers of two.
template <class Real>
void load_index_query(const smla_score_args& args, int64_t token, int64_t head, Real* row);

}  // namespace smla
