// Indexer problems with hostile surroundings: whatever a stage must not read is NaN or garbage, and whatever
// it must not write holds a canary.
#pragma once

#include "core/cpu_features.h"
#include "core/tensor.h"
#include "engines/run.h"
#include "formats/format.h"
#include "kit/mapped.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace smla::test {

constexpr float kCanary = 12345.678f;

using Bytes = kit::Walled;

struct ScoreShape {
    int64_t tokens = 3, heads = 64, width = 128, columns = 200, requests = 1;
    smla_format format = SMLA_INDEX_FP8_132;
    smla_dtype q = SMLA_E4M3;
    int64_t page_tokens = 64, page_rows = 0;
    bool paged = true;
    bool exact = false;  // values whose products and sums every kernel holds exactly
    smla_precision precision = SMLA_PRECISION_DEFAULT;
    bool odd_scales = false;  // index_fp8_132: f32 scales that are no powers of two
    uint32_t seed = 1;
};

// One call of score and all its memory. Windows are [0, columns) until set.
class ScoreCase {
public:
    explicit ScoreCase(const ScoreShape& shape);
    ScoreCase(const ScoreCase&) = delete;
    ScoreCase& operator=(const ScoreCase&) = delete;

    ScoreShape shape;
    std::vector<int32_t> table, requests, starts, ends;
    std::vector<std::vector<double>> q;  // [T][Hi*D]: the values that q_bytes holds
    std::vector<float> w;                // [T*Hi]
    Bytes q_bytes, q_scales, key_bytes;

    // The arguments without logits; valid as long as this lives.
    smla_score_args args() const;
    // The row of `keys` that holds column `column` of a request; -1 for a hole.
    int64_t row(int64_t request, int64_t column) const;
    CacheView keys() const { return CacheView(cache_); }

private:
    void make_query(std::mt19937& random);
    void make_keys(std::mt19937& random);
    smla_cache cache_{};
};

// Where to run: an instruction set, threads, a dirty workspace that ends at a guard page, and kernels by
// name.
struct Runner {
    explicit Runner(smla_isa isa = best_isa(), int threads = 1, size_t workspace_bytes = 1 << 20);
    Env env;

    template <Stage S>
    Runner& demand(const std::string& kernel) {
        env.demanded[size_t(S)] = kernel;
        return *this;
    }

private:
    std::shared_ptr<ThreadPool> pool_;
    std::shared_ptr<Bytes> workspace_;
};

// Logits of a case, [T,N] with a canary row on each side; checks the canaries. On a GPU arguments are copied
// there and back.
std::vector<float> run_score(const ScoreCase& test, const Env& env, bool fill = true);
std::vector<float> reference_score(const ScoreCase& test, bool fill = true);
// The same with logits of bf16: their bits.
std::vector<uint16_t> run_score_to_bf16(const ScoreCase& test, const Env& env, bool fill = true);

// Every cpu kernel of a stage that runs these arguments on this machine, the generic one included.
template <Stage S>
std::vector<std::string> runnable_kernels(const ArgsOf<S>& args) {
    Runner runner;
    std::vector<std::string> out;
    for (const Verdict& verdict : explain_stage<S>(args, runner.env))
        if (verdict.refusal.empty()) out.push_back(verdict.kernel);
    return out;
}

struct Selection {
    std::vector<int32_t> indices, counts;
    std::vector<float> selected;

    bool operator==(const Selection& other) const {  // bit for bit: NaN equals itself
        return indices == other.indices && counts == other.counts &&
               selected.size() == other.selected.size() &&
               std::memcmp(selected.data(), other.selected.data(), selected.size() * sizeof(float)) == 0;
    }
};
Selection run_select(const Tensor& scores, int64_t k, const Env& env,
                     const std::vector<int32_t>* starts = nullptr, const std::vector<int32_t>* ends = nullptr,
                     bool relative = false);
Selection run_score_select(const ScoreCase& test, int64_t k, const Env& env, bool relative = false);

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
// The first difference of two [T,N] arrays, for people.
std::string first_difference(const std::vector<float>& a, const std::vector<float>& b, int64_t columns);

}  // namespace smla::test
