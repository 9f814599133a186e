// One row of the demo: a layer of an example checkpoint, caches of one format, several requests at once.
#pragma once

#include "layers/session.h"
#include "model_info.h"

#include <functional>
#include <string>

namespace smla::cli {

constexpr int32_t kDemoRequests = 3, kDemoChunk = 64, kDemoDecode = 16;

struct DemoModel {
    std::string folder, name;  // name: model name with the ratio of the layer
    AttentionConfig config;
    int layer = 0;
    LayerKind kind{};
    bool has_index = false, has_topk = false;
    HostTensor hidden, positions;  // [S,X], [S]
    std::vector<HostTensor> read;  // [S,X]: hidden states of each layer that this layer reads
    std::vector<double> expected;  // [S,X]
    std::vector<int32_t> topk;     // [S,k]
    int64_t tokens = 0;
};
DemoModel open_demo_model(const std::string& folder);

struct DemoFormat {
    smla_format kv, index;
};
// Plain f32, bf16, the fp8 record that serves this model, and in V4.1 its own records.
std::vector<DemoFormat> demo_formats(const DemoModel& model);
int64_t demo_tokens(const DemoModel& model);  // tokens of all requests

struct DemoResult {
    std::string engine, kernel;
    bool bf16 = false;  // whether queries were bf16
    double tokens_per_second = 0, gflops = 0, bytes_per_token = 0;
    double bytes_per_request = 0;  // bytes of caches that do not grow with the context
    double error = 0, tolerance = 0;
    double same_selection = 1;  // fraction of the expected top-k that was selected

    bool pass() const;
};
DemoResult run_demo(Context& context, const DemoModel& model, const DemoFormat& format,
                    const std::function<void(int64_t tokens)>& progress);

struct MachinePeak {
    double f32_gflops = 0, bf16_gflops = 0;  // of all threads; without bf16 instructions that of f32
    std::string text;
};
MachinePeak machine_peak(Context& context);

}  // namespace smla::cli
