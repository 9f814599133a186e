// Inputs of score and score_select with an index cache, and the logits in double.
#pragma once

#include "kit/problem.h"

namespace smla::kit {

struct ScoreInputs {
    // Draws all fields of `args` except the logits, for `columns` columns.
    ScoreInputs(Problem& problem, smla_score_args& args, bool of_model, bool small);
    // Draws values of queries, weights and keys.
    void fill(Problem& problem, const smla_score_args& args);

    // Computes logits [T,columns] of the windows in double, with the error bounds of f32.
    void expect(const Problem& problem, const smla_score_args& args, int64_t columns_asked, bool fill);

    int64_t tokens = 0, columns = 0;
    bool exact = false;  // small integers: every order of summation gives the same logits, with many ties
    Doubles logits;
    std::vector<double> bound;
    // Additional error bound with precision rounded; otherwise empty.
    std::vector<double> rounded;
    double allowed(const std::string& kernel, size_t i) const {
        const bool rounds = kernel.starts_with("cuda_sm90") || kernel == "cuda_streamed_score_select";
        return bound[i] + (rounds && !rounded.empty() ? rounded[i] : 0);
    }

private:
    void expect_rounded(const smla_score_args& args, const Doubles& q, const Doubles& w);
    void draw_queries(Problem& problem, smla_score_args& args, int64_t heads, int64_t width);
    void fill_queries(Random& random, const smla_score_args& args);
    void draw_keys(Problem& problem, smla_score_args& args, smla_format format, int64_t width);
    void fill_keys(Problem& problem, const smla_score_args& args);
};

// Draws the range of columns of each token; some bounds are outside [0, columns], some ranges are reversed.
// `ends` may be absent if the field is optional.
void fill_windows(Problem& problem, Tensor& starts, Tensor& ends, bool need_ends, int64_t tokens,
                  int64_t columns);

}  // namespace smla::kit
