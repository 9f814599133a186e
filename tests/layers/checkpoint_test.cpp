// The same layer from checkpoints that spell or store it differently.
#include "fixture.h"

#include <unistd.h>

#include <cmath>
#include <deque>
#include <filesystem>

namespace smla::layers_test {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
protected:
    void SetUp() override {
        folder_ = fs::temp_directory_path() / ("smla_layers_" + std::to_string(::getpid()));
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }

    // Weights of the golden case under other names, each passed through `change`.
    template <class Rename, class Change>
    std::string write(const golden::Golden& golden, Rename&& rename, Change&& change) {
        std::vector<HostTensor> memory;
        std::vector<NamedTensor> tensors;
        for (const std::string& name : golden.file.names()) {
            if (name.rfind(golden::kWeightPrefix, 0) != 0) continue;
            const std::string own = name.substr(2);
            memory.push_back(golden.file.tensor(name));
            change(rename(own), memory.back(), tensors);
        }
        const std::string path = (folder_ / "model.safetensors").string();
        write_safetensors(path, tensors);
        return path;
    }

    fs::path folder_;
};

std::vector<double> whole(const golden::Golden& golden, const Layer& layer) {
    Context context = make_context();
    SessionOptions options;
    options.max_tokens = options.max_step_tokens = int32_t(golden.tokens);
    Session session(context, layer, options);
    Feed feed(golden);
    step(session, {&feed}, {0}, {int32_t(golden.tokens)});
    return feed.y;
}

void keep(const std::string& name, HostTensor& tensor, std::vector<NamedTensor>& out) {
    out.push_back({name, tensor.view});
}

// Names of transformers for DeepSeek-V4.
std::string transformers_name(std::string name) {
    const std::pair<const char*, const char*> map[] = {
        {"attn.wq_a.", "self_attn.q_a_proj."},
        {"attn.q_norm.", "self_attn.q_a_norm."},
        {"attn.wq_b.", "self_attn.q_b_proj."},
        {"attn.wkv.", "self_attn.kv_proj."},
        {"attn.kv_norm.", "self_attn.kv_norm."},
        {"attn.attn_sink", "self_attn.sinks"},
        {"attn.wo_a.", "self_attn.o_a_proj."},
        {"attn.wo_b.", "self_attn.o_b_proj."},
        {"attn.indexer.compressor.wkv.", "self_attn.compressor.indexer.kv_proj."},
        {"attn.indexer.compressor.wgate.", "self_attn.compressor.indexer.gate_proj."},
        {"attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"},
        {"attn.indexer.compressor.norm.", "self_attn.compressor.indexer.kv_norm."},
        {"attn.indexer.wq_b.", "self_attn.compressor.indexer.q_b_proj."},
        {"attn.indexer.weights_proj.", "self_attn.compressor.indexer.scorer.weights_proj."},
        {"attn.compressor.wkv.", "self_attn.compressor.kv_proj."},
        {"attn.compressor.wgate.", "self_attn.compressor.gate_proj."},
        {"attn.compressor.ape", "self_attn.compressor.position_bias"},
        {"attn.compressor.norm.", "self_attn.compressor.kv_norm."},
    };
    for (const auto& entry : map) {
        const size_t at = name.find(entry.first);
        if (at == std::string::npos) continue;
        name.replace(at, std::string(entry.first).size(), entry.second);
        return "model." + name;
    }
    return "model." + name;
}

TEST_F(CheckpointTest, BothSpellingsOfV4AreTheSameLayer) {
    const golden::Golden golden = load("V3_S40");
    const golden::GoldenLayer& at = golden.layers[0];
    const std::string path = write(golden, transformers_name, keep);
    const auto layer = open_layer(Checkpoint::open(path), at.config, at.index, {});
    LayerPrecision own;
    own.weight_prefix = golden::kWeightPrefix;
    const auto original = open_layer(golden.weights, at.config, at.index, own);
    EXPECT_EQ(golden::compare(whole(golden, *layer), whole(golden, *original)).max, 0);
}

// Matrices stored in e4m3 with scales of 128x128 blocks: the layer is the one of the dequantised matrices.
// G3's kv_b_proj has heads of 448 rows, which do not line up with blocks.
struct Fp8 {
    std::vector<uint8_t> codes;
    std::vector<float> scales, values;
    std::vector<uint8_t> e8m0;
};

Fp8 quantise(const Tensor& matrix) {
    const int64_t rows = matrix.shape[0], columns = matrix.shape[1], across = ceil_div(columns, 128);
    Fp8 out;
    out.values.resize(size_t(rows * columns));
    for (int64_t r = 0; r < rows; ++r)
        load_row(matrix, address(matrix, r), columns, out.values.data() + r * columns);
    std::vector<float> peak(size_t(ceil_div(rows, 128) * across), 1e-6f);
    const auto block = [&](int64_t r, int64_t c) { return size_t(r / 128 * across + c / 128); };
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
            peak[block(r, c)] = std::max(peak[block(r, c)], std::fabs(out.values[size_t(r * columns + c)]));
    for (const float p : peak) {
        out.e8m0.push_back(ceil_e8m0(p / 448));
        out.scales.push_back(e8m0_to_f32(out.e8m0.back()));
    }
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
            float& value = out.values[size_t(r * columns + c)];
            out.codes.push_back(f32_to_e4m3(value / out.scales[block(r, c)]));
            value = e4m3_to_f32(out.codes.back()) * out.scales[block(r, c)];
        }
    return out;
}

TEST_F(CheckpointTest, BlockScaledFp8WeightsGiveTheDequantisedLayer) {
    for (const char* name : {"G3", "V6_csa"}) {
        const golden::Golden golden = load(name);
        const golden::GoldenLayer& at = golden.layers[0];
        const bool v4 = at.config.hybrid.has_value();
        std::deque<Fp8> memory;
        const auto quantised = [&](const std::string& own) {
            for (const char* part :
                 {"_a_proj", "q_b_proj", "kv_b_proj", "o_proj", "wq_a", "wq_b", "attn.wkv", "wo_a", "wo_b"})
                if (own.find(part) != std::string::npos && own.find("compressor") == std::string::npos)
                    return true;
            return false;
        };
        const auto store = [&](bool fp8) {
            return [&, fp8](const std::string& own, HostTensor& tensor, std::vector<NamedTensor>& out) {
                if (!quantised(own)) return keep(own, tensor, out);
                memory.push_back(quantise(tensor.view));
                Fp8& q = memory.back();
                const int64_t rows = tensor.view.shape[0], columns = tensor.view.shape[1];
                const std::string stem = own.substr(0, own.size() - std::string(".weight").size());
                if (!fp8)
                    return out.push_back({own, make_tensor(q.values.data(), SMLA_F32, {rows, columns})});
                out.push_back({own, make_tensor(q.codes.data(), SMLA_E4M3, {rows, columns})});
                const int64_t down = ceil_div(rows, 128), across = ceil_div(columns, 128);
                if (v4)
                    out.push_back({stem + ".scale", make_tensor(q.e8m0.data(), SMLA_E8M0, {down, across})});
                else
                    out.push_back(
                        {stem + ".weight_scale_inv", make_tensor(q.scales.data(), SMLA_F32, {down, across})});
            };
        };
        const auto same = [](const std::string& own) { return own; };
        std::vector<std::vector<double>> y;
        for (const bool fp8 : {true, false}) {
            const std::string path = write(golden, same, store(fp8));
            y.push_back(whole(golden, *open_layer(Checkpoint::open(path), at.config, at.index, {})));
        }
        EXPECT_EQ(golden::compare(y[0], y[1]).max, 0) << name;
        EXPECT_LE(golden::compare(y[0], golden.values("ref.y")).l2, 0.2)
            << name;  // still that layer, if a coarse one
    }
}

TEST_F(CheckpointTest, EveryMissingOrMisshapenTensorIsListed) {
    const golden::Golden golden = load("D2");
    const golden::GoldenLayer& at = golden.layers[0];
    const auto damage = [](const std::string& own, HostTensor& tensor, std::vector<NamedTensor>& out) {
        if (own.find("q_a_layernorm") != std::string::npos || own.find("indexer.wk.") != std::string::npos)
            return;
        Tensor view = tensor.view;
        if (own.find("o_proj") != std::string::npos) view.shape[0] -= 1;
        out.push_back({own, view});
    };
    const std::string path = write(
        golden, [](const std::string& own) { return own; }, damage);
    try {
        open_layer(Checkpoint::open(path), at.config, at.index, {});
        FAIL() << "accepted";
    } catch (const Error& error) {
        const std::string what = error.what();
        for (const char* part : {"q_a_layernorm.weight", "indexer.wk.weight", "o_proj.weight", "63", "64"})
            EXPECT_NE(what.find(part), std::string::npos) << part << " in " << what;
    }
}

}  // namespace
}  // namespace smla::layers_test
