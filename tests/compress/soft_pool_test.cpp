// What kernels keep of a window whose rows are split over threads, against the softmax in double.
#include "ops/compress/soft_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace smla {
namespace {

constexpr float kInf = INFINITY, kNan = NAN;

// As the CUDA kernel splits them: group g takes rows g, g + groups, ... in batches of four, which are joined
// in order; then the groups are.
float pooled(const std::vector<float>& score, const std::vector<float>& kv, size_t groups) {
    SoftPool joined;
    for (size_t g = 0; g < groups; ++g) {
        SoftPool part;
        for (size_t j = g; j < score.size(); j += 4 * groups) {
            float scores[4], values[4];
            for (size_t i = 0; i < 4; ++i) {
                const size_t row = j + i * groups;
                scores[i] = row < score.size() ? score[row] : -kInf;
                values[i] = row < score.size() ? kv[row] : 0;
            }
            SoftPool batch;
            batch.add(scores, values);
            part.join(batch);
        }
        joined.join(part);
    }
    return joined.mean();
}

TEST(SoftPool, AnySplitIsTheSoftmax) {
    std::mt19937 random(1);
    for (const size_t rows : {1, 3, 8, 128, 131})
        for (const size_t groups : {1, 2, 4, 7, 16})
            for (const float rise : {0.f, 0.7f, -0.7f})  // of the scores from row to row
                for (const float shift : {0.f, 300.f, -300.f}) {
                    std::vector<float> score, kv;
                    double peak = -kInf, sum = 0, value = 0, size = 0;
                    for (size_t j = 0; j < rows; ++j) {
                        const bool gone = j % 5 == 4;
                        score.push_back(gone ? -kInf
                                             : shift + rise * float(j) + float(random() % 1000) / 300);
                        kv.push_back(gone ? 0 : float(random() % 2000) / 500 - 2);
                        peak = std::max(peak, double(score[j]));
                    }
                    for (size_t j = 0; j < rows; ++j) {
                        const double weight = std::exp(double(score[j]) - peak);
                        sum += weight, value += weight * kv[j], size += weight * std::fabs(kv[j]);
                    }
                    EXPECT_NEAR(pooled(score, kv, groups), value / sum, 0x1p-20 * size / sum)
                        << rows << " rows, " << groups << " groups, rise " << rise << ", shift " << shift;
                }
}

TEST(SoftPool, ScoresThatAreNoNumbers) {
    EXPECT_EQ(pooled({-kInf, -kInf, -kInf, 2}, {7, 7, 7, 3}, 2), 3);  // a group without a finite score
    EXPECT_EQ(pooled({-kInf, -kInf, -kInf, -kInf, -kInf, 1}, {7, 7, 7, 7, 7, 3}, 1), 3);  // a batch
    EXPECT_TRUE(std::isnan(pooled({-kInf, -kInf}, {1, 1}, 2)));
    EXPECT_TRUE(std::isnan(pooled({1, kNan, 2, 3, 4, 5}, {1, 1, 1, 1, 1, 1}, 1)));
    EXPECT_TRUE(std::isnan(pooled({1, kInf, 2, 3, 4, 5}, {1, 1, 1, 1, 1, 1}, 2)));
    EXPECT_TRUE(std::isnan(pooled({}, {}, 1)));
}

}  // namespace
}  // namespace smla
