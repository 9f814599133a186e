// Tests of one score kernel for Hopper, skipped on other devices.
#pragma once

#include "engines/context.h"
#include "gpu/needs_gpu.h"
#include "index/cases.h"
#include "kit/context_args.h"

#include <algorithm>
#include <utility>

namespace smla::test {

class HopperScore : public testing::Test {
protected:
    explicit HopperScore(const char* kernel) : kernel_(kernel) {}

    void SetUp() override {
        SMLA_NEEDS_GPU();
        context_ = std::make_unique<Context>(kit::context_args(SMLA_ENGINE_CUDA));
        const int capability = context_->device().facts().capability;
        if (capability != 90) GTEST_SKIP() << "for sm_90, here is sm_" << capability;
    }
    Env env() const {  // where score runs this kernel
        Env out = context_->env({});
        out.demanded[size_t(Stage::score)] = kernel_;
        return out;
    }

    // Every step-th token of a case alone, from a column of its own on, has the bits that it has in the
    // batch.
    void expect_tokens_alone(const ScoreCase& test, int64_t step, const std::string& described) const {
        const ScoreShape& shape = test.shape;
        const std::vector<float> all = run_score(test, env());
        for (int64_t t = 0; t < shape.tokens; t += step) {
            ScoreCase alone(shape);
            alone.requests = test.requests;
            for (int64_t other = 0; other < shape.tokens; ++other)
                if (other != t) alone.ends[size_t(other)] = 0;
            const int64_t start = t * 3 % shape.columns;
            alone.starts[size_t(t)] = int32_t(start);
            const std::vector<float> got = run_score(alone, env());
            const auto first = t * shape.columns + start, last = (t + 1) * shape.columns;
            EXPECT_TRUE(std::equal(all.begin() + first, all.begin() + last, got.begin() + first))
                << described << " row " << t;
        }
    }

    // More columns, in pages that requests share.
    static void lengthen(ScoreCase& test, int64_t columns) {
        const int64_t requests = test.shape.requests, had = int64_t(test.table.size()) / requests - 1;
        const std::vector<int32_t> pages = std::exchange(test.table, {});
        const int64_t blocks = ceil_div(columns, test.shape.page_tokens);
        for (int64_t r = 0; r < requests; ++r)
            for (int64_t b = 0; b < blocks; ++b)
                test.table.push_back(pages[size_t((r + b) % requests * (had + 1) + b * 7 % had)]);
        test.shape.columns = columns;
    }
    // Further runs of a case have the bits of `want`.
    void expect_again(const ScoreCase& test, const std::vector<float>& want,
                      const std::string& described) const {
        for (int run = 0; run < 5; ++run) {
            const std::vector<float> got = run_score(test, env());
            ASSERT_TRUE(same_bits(got, want))
                << described << ": " << first_difference(got, want, test.shape.columns);
        }
    }

    const char* const kernel_;
    std::unique_ptr<Context> context_;
};

}  // namespace smla::test
