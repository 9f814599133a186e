// Attention problems whose caches hold poison wherever no list points, and their truth in double.
#pragma once

#include "calls.h"

namespace contract {

struct Shape {
    int64_t tokens = 2, heads = 5, width = 576, value_width = 512;
    int64_t rows = 40, extra_rows = 0;
    smla_format format = SMLA_FP8_656, extra_format = SMLA_FORMAT_NONE;
    smla_dtype q = SMLA_BF16, out = SMLA_F32;
    int32_t page_tokens = 8, page_rows = 0, extra_page_tokens = 2;
    int64_t pages = 12;
    uint32_t seed = 1;
};

class Attention : public CallOf<smla_attend_args> {
public:
    explicit Attention(const Shape& setup);

    int32_t random_row(bool extra = false);
    smla_attend_source& source(bool extra = false) { return extra ? with.extra : with.primary; }
    void list(int64_t t, int64_t j, int64_t row, bool extra = false) {
        set_int(source(extra).rows, t, j, row);
    }
    void add_lengths(bool extra = false);  // all K; set them with set_int
    void add_sink(double value);
    // Gives every listed valid row a record, all others stay poison, and remembers this state.
    void fill_listed();
};

struct Truth {
    std::vector<double> out, magnitude;   // [T,H,Dv]; sum of weight * |value|
    std::vector<double> lse, max_logits;  // [T,H]
};
Truth truth_of(const smla_attend_args& args);
testing::AssertionResult agrees(const Engine& engine, const smla_attend_args& args, const Truth& truth);
// Runs it on every engine, in a workspace of exactly its size, against the truth; nothing else is written.
void expect_truth(Attention& problem, const Options& options = {});

}  // namespace contract
