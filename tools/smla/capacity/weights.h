// Sizes of a checkpoint's weights, from its safetensors files or their index.
#pragma once

#include <cstdint>
#include <string>

namespace smla::cli {

struct Weights {
    double total = 0, experts = 0;  // bytes; 0: unknown
    bool split = false;             // whether `experts` is known
    std::string source = "";
    // Routed experts are divided among all GPUs, other weights among those of a tensor-parallel group. If the
    // experts' share is unknown, everything is divided among all: at least this much lies on each GPU.
    double per_gpu(int64_t tp, int64_t dp) const;
};

// `model`: a folder, or a file in it. Zero if there are no weights.
Weights read_weights(const std::string& model);

}  // namespace smla::cli
