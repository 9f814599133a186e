// What cuda_sm90_few_score takes.
#pragma once

namespace smla::cuda::sm90 {

constexpr int kMostFewTokens = 2048;

}  // namespace smla::cuda::sm90
