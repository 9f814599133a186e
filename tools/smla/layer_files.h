// The files of `smla run` and `smla demo`: hidden states in, output out, all safetensors.
#pragma once

#include "model/safetensors.h"

#include <optional>
#include <string>

namespace smla::cli {

struct LayerInput {
    HostTensor hidden;     // [B,S,X], f32, bf16, f16 or f64
    HostTensor positions;  // [B,S] i32 or i64; absent: 0, 1, 2, ...
    int64_t batch = 0, tokens = 0;
    std::optional<int> layer;  // from the file's metadata
};

// The tensor `name`, else "hidden" or "hidden_states", else the only one; [S,X] or [B,S,X]. "position_ids"
// [S] or [B,S].
LayerInput read_input(const std::string& path, const std::string& name, int64_t hidden_size);

constexpr int kMostLayers = 1 << 20;  // that a layer's number can ask for

// A tensor [S,X] or [B,S,X] of a file, as [B,S,X]: of floats; positions, as i32.
HostTensor read_rows(const std::string& path, const std::string& name, int64_t batch, int64_t tokens);
HostTensor read_topk(const std::string& path, int64_t batch, int64_t tokens);

}  // namespace smla::cli
