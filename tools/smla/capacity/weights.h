// Sizes of the weights of a checkpoint, read from its safetensors files or their index.
#pragma once

#include <cstdint>
#include <string>

namespace smla::cli {

struct Weights {
    double total = 0, experts = 0;  // bytes; 0: unknown
    bool split = false;             // whether `experts` is known
    std::string source = "";
    // Routed experts are divided among all GPUs, and other weights among the GPUs of a tensor-parallel group.
    // If the size of the experts is unknown, all weights are divided among all GPUs, which is a lower bound.
    double per_gpu(int64_t tp, int64_t dp) const;
};

// Reads the sizes. `model`: a folder, or a file in it. Returns zero if there are no weights.
Weights read_weights(const std::string& model);

}  // namespace smla::cli
