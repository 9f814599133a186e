// Differences between two tensors, in the measures of the golden files.
#pragma once

#include "golden/run.h"

namespace smla::golden {

struct Difference {
    double max = 0;  // max |a - b| / rms(b) over finite b; infinity if only one of a and b is finite
    double l2 = 0;   // ||a - b|| / ||b||
    double cosine = 1;
};
Difference compare(const std::vector<double>& a, const std::vector<double>& b);

struct Checked {
    std::string tensor;
    double error = 0, tolerance = 0;
    std::string measure;                              // "max", "l2", "cosine", "set", "overlap"
    bool pass() const { return error <= tolerance; }  // NaN fails
};

// Compares the selection and every intermediate of the file that the layer recorded.
std::vector<Checked> check_intermediates(const Golden& golden, size_t layer, const LayerResult& result,
                                         double tolerance);
// y against ref.y and, within f32's tolerance, out.y: `f64`, `f32` or with bf16 inside (ref.y alone).
enum class Arithmetic { f64, f32, bf16 };
std::vector<Checked> check_y(const Golden& golden, size_t layer, const LayerResult& result,
                             Arithmetic arithmetic);

// Compares the decode steps of the file (step.<t>.*) with the rows of their tokens.
std::vector<Checked> check_steps(const Golden& golden, size_t layer, const LayerResult& result);

// Compares mid.rope_cos and mid.rope_sin with the engine's rotation of (1, 0).
std::vector<Checked> check_rope_tables(Context& context, const Golden& golden, size_t layer,
                                       smla_dtype dtype);

// Returns the fraction of the file's selected positions that the layer also selected.
double topk_overlap(const Golden& golden, size_t layer, const LayerResult& result);
double topk_overlap(const Rows& wanted, const LayerResult& result);

// Compares attend with attention in f64 on the same cache and rows: max / rms, and L2.
Difference recheck_attend(const smla_attend_args& args);

// The L2 error that rounding every cached value to e4m3 or e2m1 must leave in the output of this attend,
// from error analysis; of two caches the coarser counts. Rounding to 3 mantissa bits moves a normal
// value by 2.36 % (rms of a uniform error of +-1/16 over [1,2), 1/16/sqrt(3), over the rms of the
// values, sqrt(7/3)). The values of V carry that error straight to the output. Through the keys, a logit
// moves by 2.36 % of sqrt(sum_d (scale q_d k_d)^2) =: n, and with it the weight of its row: a share of n
// times 2.36 % more. The two are independent: 2.36 % * sqrt(1 + n^2). e2m1 with an e4m3 scale of amax/6
// for 16 normal values moves them by 9.51 % of their rms (the expectation, integrated numerically).
double predicted_rounding_error(const smla_attend_args& args);
// It is a mean: of 200 files with one head or large sinks some came to 1.25 of it, as a model that rounds and
// nothing else does.
constexpr double kOverPrediction = 1.3;

}  // namespace smla::golden
