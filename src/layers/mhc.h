// Hyper-connections of DeepSeek-V4 around an attention block: n residual streams X [T,n,hidden] instead of
// one.
//   x = norm(sum_n pre_n X_n)               what the block sees
//   X'_k = post_k y + sum_j comb[j,k] X_j   after it, y being the block's output
// pre, post and comb come from the streams; comb is made doubly stochastic by Sinkhorn iterations. On a host
// the arithmetic is double on one thread; on a GPU its kernels (engines/cuda/common/hyper_connection.h) do it
// in f32, on a stream, without allocating or waiting.
#pragma once

#include "engines/cuda/common/hyper_connection.h"
#include "layers/layer.h"

namespace smla {

// What mix() made of a step's streams, for collapse() and expand(); later steps may use it again.
struct MhcMix {
    std::vector<double> rows;  // [T,2n+n*n]: pre [n], post [n], comb [n,n] as [j,k]
    DeviceBuffer placed;       // on a GPU: the same in f32, and scratch
};

class HyperConnection {
public:
    HyperConnection(const AttentionConfig& config, MhcWeights weights, Device& device = host_device());
    HyperConnection(const Checkpoint& checkpoint, const AttentionConfig& config, int layer,
                    const LayerPrecision& precision, Device& device = host_device());

    int64_t streams() const { return config_.mhc->streams; }
    MhcMix reserve(int64_t tokens) const;  // for steps of up to so many
    // Tensors lie on the device. streams [T,n,hidden]
    void mix(const Tensor& streams, MhcMix& out, smla_stream stream = nullptr) const;
    void collapse(const MhcMix& mix, const Tensor& streams, const Tensor& out,
                  smla_stream stream = nullptr) const;  // out [T,hidden], not yet normed
    void expand(const MhcMix& mix, const Tensor& y, const Tensor& streams,
                smla_stream stream = nullptr) const;  // in place; y [T,hidden]
    // The rows of a mix of so many tokens: f64, or f32 on a GPU.
    Tensor rows(const MhcMix& mix, int64_t tokens) const;

private:
    int64_t outputs() const { return 2 * streams() + streams() * streams(); }
    bool on_gpu() const { return device_->type() != SMLA_CPU; }
    void sinkhorn(double* c) const;  // [n,n]
    void check(const Tensor& streams, const Tensor& block, const char* name) const;
    const double* mixed_rows(const MhcMix& mix, int64_t tokens) const;
    void run(HyperStep step, const MhcMix& mix, const Tensor& streams, const Tensor& block,
             smla_stream stream) const;

    AttentionConfig config_;
    MhcWeights weights_;
    Device* device_;
};

// The norm between collapse and the block, in place: x [T,hidden]. A layer without one leaves x as it is.
void norm_block_input(const Layer& layer, const Tensor& x, const Env& env = {});

}  // namespace smla
