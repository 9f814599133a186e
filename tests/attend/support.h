// Attend problems with poisoned surroundings, and an oracle in double that shares no code with the library's
// loops.
#pragma once

#include "core/cpu_features.h"
#include "engines/run.h"
#include "formats/format.h"
#include "ops/attend/attend.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace attend_test {

using namespace smla;

struct SourceSpec {
    smla_format format = SMLA_FORMAT_NONE;
    int64_t k = 0;  // listed rows per token
    int page_tokens = 64;
    int64_t page_rows = 0;
    int64_t pages = 8;
    int64_t page_gap = 0;    // bytes between pages, NaN
    int64_t row_gap = 0;     // bytes between rows, NaN (row-packed formats)
    double holes = 0;        // share of listed rows that are holes
    bool lengths = false;    // random lengths; entries past them look valid
    bool odd_scales = true;  // f32 tile scales of every other record are no powers of two
};

struct Spec {
    int64_t tokens = 2, heads = 16, width = 576, value_width = 512;
    SourceSpec primary, extra;
    smla_dtype q = SMLA_BF16, out = SMLA_F32;
    smla_precision precision = SMLA_PRECISION_DEFAULT;
    smla_lse_base base = SMLA_LSE_LN;
    bool sink = false;
    int64_t head_padding = 0;  // q and out are views of buffers with this many more heads
    uint32_t seed = 1;
    std::string name() const;
};

class Problem {
public:
    explicit Problem(const Spec& spec);
    Problem(const Problem&) = delete;

    Spec spec;
    smla_attend_args args{};
    std::vector<int32_t> primary_rows, extra_rows, primary_lengths, extra_lengths;
    std::vector<float> sink, lse, max_logits;
    std::vector<uint8_t> primary_cache, extra_cache;
    std::vector<uint8_t> q, out;  // buffers of the views in args

    CacheView view(bool extra) const { return CacheView(extra ? args.extra.cache : args.primary.cache); }
    float value(int64_t t, int64_t h, int64_t d) const;  // of out
    void poison_outputs();
    int32_t& row(int64_t t, int64_t j) { return primary_rows[size_t(t * spec.primary.k + j)]; }
    void expect_canaries() const;  // nothing outside the out view was written
    // Rows that `count` random picks may name, as the spec's pages allow.
    int32_t random_row(bool extra);
    std::mt19937 rng;

private:
    void make_cache(const SourceSpec& source, smla_cache& cache, std::vector<uint8_t>& bytes);
    void make_rows(const SourceSpec& source, smla_attend_source& out, std::vector<int32_t>& rows,
                   std::vector<int32_t>& lengths, bool extra);
};

struct Expected {
    // [T,H,Dv]: the result, sum_j p_j |v_j|, and that sum if all weights were the largest
    std::vector<double> out, magnitude, largest;
    std::vector<double> lse, max_logits;  // [T,H], in the problem's base and in natural units
};
// What a kernel that may round keys makes of those of fp8_656: bf16(code * scale), or f16(code * f16(scale)).
enum class KeyType { bf16, f16, exact };
Expected oracle(const Problem& problem, KeyType rounded = KeyType::bf16);

Env best_env(ThreadPool* pool = nullptr);  // of the cpu engine

// Kernels of the environment's engine that accept the call there, best first.
std::vector<std::string> kernels(const smla_attend_args& args, const Env& env);
inline std::vector<std::string> kernels(const Problem& problem, const Env& env) {
    return kernels(problem.args, env);
}
size_t workspace_of(const std::string& kernel, const smla_attend_args& args, const Env& env, size_t budget);
// Runs the kernel in a workspace of exactly the size that it asks for, dirty and between guards.
void run_kernel(const std::string& kernel, const smla_attend_args& args, const Env& env, size_t budget = 0);
inline void run_kernel(const std::string& kernel, const Problem& problem, const Env& env, size_t budget = 0) {
    run_kernel(kernel, problem.args, env, budget);
}

struct Bits {  // all outputs of a problem
    std::vector<uint8_t> out;
    std::vector<float> lse, max_logits;
    explicit Bits(const Problem& problem)
        : out(problem.out), lse(problem.lse), max_logits(problem.max_logits) {}
    bool operator==(const Bits& other) const;
};

// Compares outputs within the kernel's error bound; NaN must meet NaN.
// `more` is a further relative error of every contribution, of partial results kept in a narrow type.
void expect_close(const std::string& kernel, const Problem& problem, const Expected& expected,
                  double more = 0);
// For every kernel that accepts it: poison, run, compare, canaries.
// Problems with logits of up to 2^90, of which the largest takes all: no power of two of a difference may
// overflow.
void with_huge_logits(std::initializer_list<int> heads, std::initializer_list<smla_format> formats,
                      const std::function<void(Problem&)>& check);

void check_all(Problem& problem, ThreadPool* pool = nullptr);
void check_all(const Spec& spec, ThreadPool* pool = nullptr);

}  // namespace attend_test
