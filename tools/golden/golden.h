// A golden file: <case>.safetensors with weights (w.*), inputs (in.*), intermediates (mid.*, rows.*) and
// outputs (out.*, ref.*) of an attention layer, and <case>.json with its config and tolerances. Layout:
// tests/goldens/README.md.
#pragma once

#include "model/checkpoint.h"
#include "model/config.h"

#include <string>
#include <vector>

namespace smla::golden {

constexpr const char* kWeightPrefix = "w.";
constexpr int64_t kAnySize = -1, kAnyDims = -2;  // kAnyDims: any number of further dimensions

struct GoldenLayer {
    int index = 0;            // layer number in the checkpoint
    std::string suffix;       // suffix of this layer's tensors in the file
    std::string config_json;  // the config.json of a checkpoint
    AttentionConfig config;
};

struct Tolerance {
    double f64_y = 1e-10;                          // max |a - b| / rms(b) against ref.y
    double f32_intermediate = 2e-5, f32_y = 5e-5;  // tolerance in f32
    double bf16_l2 = 1.5e-2, bf16_max = 1e-1, bf16_cosine = 0.9999;
};

struct Golden {
    std::string name;
    int64_t batch = 0, tokens = 0;  // sequences, and tokens of each sequence
    std::vector<GoldenLayer> layers;
    std::vector<std::vector<int32_t>> chunk_plans;  // tokens of each step
    std::vector<int32_t> page_sizes;
    Tolerance tolerance;
    SafetensorsFile file;
    Checkpoint weights;

    bool has(const std::string& tensor) const { return file.has(tensor); }
    // Row-major values as double, including integers.
    std::vector<double> values(const std::string& tensor) const;
    std::vector<int64_t> shape(const std::string& tensor) const;
    // Fails unless the tensor, if the file has it, has this shape: kAnySize, kAnyDims.
    void check_shape(const std::string& tensor, const std::vector<int64_t>& wanted) const;
};

// `path`: the .safetensors file. Throws an Error that names the file and the member or tensor: what is loaded
// has a name's own shape and dtypes in every tensor that is no weight.
Golden load_golden(const std::string& path);

}  // namespace smla::golden
