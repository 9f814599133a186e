// Compares an output with the expected one.
#pragma once

#include "core/tensor.h"

namespace smla::cli {

struct Deviation {
    double max = 0, l2 = 0;  // max |y - expected| / rms(expected), ||y - expected|| / ||expected||
};
Deviation deviation(const Tensor& y, const Tensor& expected);  // [B,S,X] each

int64_t count_not_finite(const Tensor& values);  // [B,S,X]

}  // namespace smla::cli
