// The test kit's comparison: what must not pass for close.
#include "core/tensor.h"
#include "kit/problem.h"

#include <gtest/gtest.h>
#include <cmath>
#include <limits>

namespace {

using namespace smla;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double worst_of(float got, double want, double bound) {
    const Tensor tensor = make_tensor(&got, SMLA_F32, {1, 1});
    kit::Comparison elements, rows, one;
    elements.close("x", tensor, {want}, [&](size_t) { return bound; });
    rows.rows_close("x", tensor, {want}, [&](size_t) { return bound; });
    one.near(got, want, bound, "x");
    EXPECT_EQ(elements.worst > 1, rows.worst > 1) << got << " " << want << " " << bound;
    EXPECT_EQ(elements.worst > 1, one.worst > 1) << got << " " << want << " " << bound;
    return elements.worst;
}

TEST(Comparison, NumbersWithinTheBound) {
    EXPECT_EQ(worst_of(1, 1, 0), 0);
    EXPECT_EQ(worst_of(1, 1.5, 1), 0.5);
    EXPECT_GT(worst_of(1, 1.5, 0.25), 1);
    EXPECT_GT(worst_of(1, 1.5, 0), 1);
    EXPECT_GT(worst_of(1, 1.5, kNan), 1);
}

TEST(Comparison, AnInfinityOrNanInTheWrongPlaceHoweverWideTheBound) {
    const auto inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    for (const double bound : {1e-3, kInfinity, kNan}) {
        EXPECT_EQ(worst_of(inf, kInfinity, bound), 0);
        EXPECT_EQ(worst_of(nan, kNan, bound), 0);
        EXPECT_GT(worst_of(-inf, kInfinity, bound), 1);
        EXPECT_GT(worst_of(1, kInfinity, bound), 1);
        EXPECT_GT(worst_of(inf, 1, bound), 1);
        EXPECT_GT(worst_of(nan, 1, bound), 1);
        EXPECT_GT(worst_of(1, kNan, bound), 1);
    }
}

}  // namespace
