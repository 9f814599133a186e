// Input and output files of `smla run` and `smla demo`. All are safetensors.
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

// Reads the tensor `name`; without a name "hidden", "hidden_states", or the only tensor there is. It is [S,X]
// or [B,S,X]. Also reads "position_ids", [S] or [B,S], if the file has it.
LayerInput read_input(const std::string& path, const std::string& name, int64_t hidden_size);

// Reads the hidden states of `layers` for the same tokens, from tensors such as "hidden.layer3". Errors name
// `reader`, the layer that needs them.
std::vector<HostTensor> read_others(const std::string& path, const std::vector<int>& layers,
                                    const LayerInput& input, int reader);
std::string other_hidden(int layer);  // the name of the tensor

constexpr int kMostLayers = 1 << 20;  // largest layer number that options and files may name

// Reads a tensor [S,X] or [B,S,X] as [B,S,X]. read_rows: floats. read_topk: positions, narrowed to i32.
HostTensor read_rows(const std::string& path, const std::string& name, int64_t batch, int64_t tokens);
HostTensor read_topk(const std::string& path, int64_t batch, int64_t tokens);

}  // namespace smla::cli
