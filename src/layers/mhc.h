// Hyper-connections of DeepSeek-V4 around an attention block: n residual streams X [T,n,hidden] instead of
// one.
//   x = norm(sum_n pre_n X_n)               what the block sees
//   X'_k = post_k y + sum_j comb[j,k] X_j   after it, y being the block's output
// pre, post and comb come from the streams; comb is made doubly stochastic by Sinkhorn iterations. The
// arithmetic is double on one thread: a few thousand operations per token beside the millions of the block.
#pragma once

#include "layers/layer.h"

namespace smla {

struct MhcMix {
    std::vector<double> pre, post;  // [T,n]
    std::vector<double> comb;       // [T,n,n], [j,k]
};

class HyperConnection {
public:
    HyperConnection(const Checkpoint& checkpoint, const AttentionConfig& config, int layer,
                    const LayerPrecision& precision);

    int64_t streams() const { return config_.mhc->streams; }
    MhcMix mix(const Tensor& streams) const;  // streams [T,n,hidden]
    void collapse(const MhcMix& mix, const Tensor& streams,
                  const Tensor& out) const;  // out [T,hidden], not yet normed
    void expand(const MhcMix& mix, const Tensor& y, const Tensor& streams) const;  // in place; y [T,hidden]

private:
    std::vector<double> sinkhorn(std::vector<double> logits) const;  // [n,n]

    AttentionConfig config_;
    MhcWeights weights_;
};

// The norm between collapse and the block, in place: x [T,hidden]. A layer without one leaves x as it is.
void norm_block_input(const Layer& layer, const Tensor& x);

}  // namespace smla
