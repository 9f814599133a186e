#include "core/workspace.h"
#include "model/weights.h"
#include "store.h"

#include <cmath>

namespace smla {
namespace {

using test::error_of;
using test::expect_error;
using test::expect_same;
using test::Store;

AttentionConfig hybrid_config() {
    return parse_config(R"({"model_type": "deepseek_v4", "hidden_size": 24, "num_hidden_layers": 3,
      "num_attention_heads": 4, "q_lora_rank": 10, "head_dim": 8, "qk_rope_head_dim": 4, "o_groups": 2,
      "o_lora_rank": 3, "sliding_window": 8, "compress_ratios": [0, 4, 16, 0], "index_n_heads": 2,
      "index_head_dim": 6,
      "index_topk": 3, "rope_theta": 10000, "compress_rope_theta": 160000, "hc_mult": 4,
      "hc_sinkhorn_iters": 20,
      "hc_eps": 1e-6})",
                        "config.json");
}

struct Name {
    const char *own, *transformers;
    std::vector<int64_t> shape;
};
const std::vector<Name> kAlways = {
    {"wq_a.weight", "q_a_proj.weight", {10, 24}}, {"q_norm.weight", "q_a_norm.weight", {10}},
    {"wq_b.weight", "q_b_proj.weight", {32, 10}}, {"wkv.weight", "kv_proj.weight", {8, 24}},
    {"kv_norm.weight", "kv_norm.weight", {8}},    {"attn_sink", "sinks", {4}},
    {"wo_a.weight", "o_a_proj.weight", {6, 16}},  {"wo_b.weight", "o_b_proj.weight", {24, 6}}};
const std::vector<Name> kSparse = {
    {"compressor.wkv.weight", "compressor.kv_proj.weight", {16, 24}},
    {"compressor.wgate.weight", "compressor.gate_proj.weight", {16, 24}},
    {"compressor.ape", "compressor.position_bias", {4, 16}},
    {"compressor.norm.weight", "compressor.kv_norm.weight", {8}},
    {"indexer.wq_b.weight", "compressor.indexer.q_b_proj.weight", {12, 10}},
    {"indexer.weights_proj.weight", "compressor.indexer.scorer.weights_proj.weight", {2, 24}},
    {"indexer.compressor.wkv.weight", "compressor.indexer.kv_proj.weight", {12, 24}},
    {"indexer.compressor.wgate.weight", "compressor.indexer.gate_proj.weight", {12, 24}},
    {"indexer.compressor.ape", "compressor.indexer.position_bias", {4, 12}},
    {"indexer.compressor.norm.weight", "compressor.indexer.kv_norm.weight", {6}}};
const std::vector<Name> kHeavy = {{"compressor.wkv.weight", "compressor.kv_proj.weight", {8, 24}},
                                  {"compressor.wgate.weight", "compressor.gate_proj.weight", {8, 24}},
                                  {"compressor.ape", "compressor.position_bias", {16, 8}},
                                  {"compressor.norm.weight", "compressor.kv_norm.weight", {8}}};

std::vector<Name> names_of(int64_t layer) {
    std::vector<Name> out = kAlways;
    const std::vector<Name> more = layer == 1 ? kSparse : layer == 2 ? kHeavy : std::vector<Name>{};
    out.insert(out.end(), more.begin(), more.end());
    return out;
}

Store own_store(const std::string& prefix, int64_t layer) {
    Store store;
    for (const Name& each : names_of(layer)) store.add(prefix + each.own, SMLA_BF16, each.shape);
    return store;
}

Store transformers_store(const std::string& prefix, int64_t layer) {
    Store store;
    for (const Name& each : names_of(layer)) store.add(prefix + each.transformers, SMLA_BF16, each.shape);
    return store;
}

// the tensors in the order of names_of
std::vector<HostTensor> in_order(const HybridWeights& w) {
    std::vector<HostTensor> out = {w.q_a, w.q_norm, w.q_b, w.kv, w.kv_norm, w.sink, w.out_a, w.out_b};
    const auto add = [&](const CompressorWeights& c) {
        out.insert(out.end(), {c.kv, c.gate, c.ape, c.norm});
    };
    if (w.compressor) add(*w.compressor);
    if (w.indexer) {
        out.insert(out.end(), {w.indexer->q_b, w.indexer->head_weights});
        add(w.indexer->compressor);
    }
    return out;
}

TEST(HybridWeights, EveryTensorUnderBothSpellings) {
    for (const int64_t layer : {0, 1, 2}) {
        for (const bool transformers : {false, true}) {
            for (const char* lead : {"", "model."}) {
                const std::string prefix =
                    text(lead, "layers.", layer, transformers ? ".self_attn." : ".attn.");
                SCOPED_TRACE(prefix);
                const Store store =
                    transformers ? transformers_store(prefix, layer) : own_store(prefix, layer);
                const std::vector<HostTensor> loaded =
                    in_order(load_hybrid_weights(store.open(), hybrid_config(), layer));
                const std::vector<Name> names = names_of(layer);
                ASSERT_EQ(loaded.size(), names.size());
                for (size_t i = 0; i < names.size(); ++i) {
                    SCOPED_TRACE(names[i].own);
                    EXPECT_EQ(loaded[i].view.dtype, SMLA_F32);
                    expect_same(loaded[i],
                                store.tensor(prefix + (transformers ? names[i].transformers : names[i].own)));
                }
            }
        }
    }
}

TEST(HybridWeights, OlderTransformersWithoutScorer) {
    const std::string prefix = "model.layers.1.self_attn.compressor.indexer.";
    Store store = transformers_store("model.layers.1.self_attn.", 1);
    store.rename(prefix + "scorer.weights_proj.weight", prefix + "weights_proj.weight");
    expect_same(load_hybrid_weights(store.open(), hybrid_config(), 1).indexer->head_weights,
                store.tensor(prefix + "weights_proj.weight"));
}

TEST(HybridWeights, TheNormOfKeysAsTransformersWritesItBack) {
    Store store = own_store("model.layers.0.attn.", 0);
    store.rename("model.layers.0.attn.kv_norm.weight", "model.layers.0.attn.norm.weight");
    expect_same(load_hybrid_weights(store.open(), hybrid_config(), 0).kv_norm,
                store.tensor("model.layers.0.attn.norm.weight"));
}

// Under the checkpoint's own names, though the first matrix, by which they are known, has no .weight.
TEST(HybridWeights, PackedFormatsAreRefusedByName) {
    const std::string lead = "model.layers.0.";
    Store own = own_store(lead + "attn.", 0), theirs = transformers_store(lead + "self_attn.", 0);
    for (const auto& [store, matrix] :
         {std::pair{&own, "attn.wq_a."}, std::pair{&theirs, "self_attn.q_a_proj."}}) {
        store->rename(lead + matrix + "weight", lead + matrix + "weight_packed");
        expect_error([&] { load_hybrid_weights(store->open(), hybrid_config(), 0); }, SMLA_DATA_ERROR,
                     "c.safetensors: layer 0: tensor " + lead + matrix + "weight",
                     "a packed format with " + lead + matrix + "weight_packed");
    }
}

TEST(HybridWeights, MtpLayersAndInputNorm) {
    Store store = own_store("mtp.0.attn.", 3);
    store.add("mtp.0.attn_norm.weight", SMLA_BF16, {24});
    const HybridWeights mtp = load_hybrid_weights(store.open(), hybrid_config(), 3);
    expect_same(mtp.input_norm, store.tensor("mtp.0.attn_norm.weight"));
    Store theirs = transformers_store("model.layers.0.self_attn.", 0);
    theirs.add("model.layers.0.input_layernorm.weight", SMLA_BF16, {24});
    expect_same(load_hybrid_weights(theirs.open(), hybrid_config(), 0).input_norm,
                theirs.tensor("model.layers.0.input_layernorm.weight"));
}

TEST(HybridWeights, OutputGroups) {
    const HybridWeights w = load_hybrid_weights(own_store("layers.0.attn.", 0).open(), hybrid_config(), 0);
    const Tensor groups = w.out_a_groups(hybrid_config());
    for (int64_t g = 0; g < 2; ++g)
        for (int64_t o = 0; o < 3; ++o)
            for (int64_t i = 0; i < 16; ++i)
                EXPECT_EQ(load_one<float>(slice(groups, 2, i, i + 1), g, o),
                          load_one<float>(w.out_a.view, g * 3 + o, i));
}

TEST(HybridWeights, Fp8WithE8m0Scales) {
    const std::string name = "layers.0.attn.wq_b";
    Store store = own_store("layers.0.attn.", 0);
    AttentionConfig config = hybrid_config();
    config.common.weight_block_rows = 5;
    config.common.weight_block_columns = 4;
    store.add(name + ".weight", SMLA_E4M3, {32, 10});
    store.add(name + ".scale", SMLA_E8M0, {7, 3});
    const HybridWeights w = load_hybrid_weights(store.open(), config, 0, {SMLA_BF16, ""});
    EXPECT_EQ(w.q_b.view.dtype, SMLA_BF16);
    EXPECT_EQ(w.sink.view.dtype, SMLA_F32);
    for (int64_t r = 0; r < 32; ++r)
        for (int64_t c = 0; c < 10; ++c)
            EXPECT_EQ(load_one<float>(w.q_b.view, r, c),
                      load_one<float>(store.tensor(name + ".weight"), r, c) *
                          load_one<float>(store.tensor(name + ".scale"), r / 5, c / 4));
    static_cast<uint8_t*>(store.tensor(name + ".scale").data)[20] = 255;
    expect_error([&] { load_hybrid_weights(store.open(), config, 0); }, SMLA_DATA_ERROR,
                 "c.safetensors: layer 0: tensor " + name + ".scale[6, 2]", "nan",
                 "a finite factor, 0 or more");
}

// Layers 1 (ratio 2) and 2 (ratio 1) write entries, 3 selects among them, 4 reads alone.
AttentionConfig shared_config() {
    return parse_config(R"({"model_type": "deepseek_v41", "hidden_size": 24, "num_attention_heads": 4,
      "q_lora_rank": 10, "head_dim": 8, "qk_rope_head_dim": 4, "o_groups": 2, "o_lora_rank": 3,
      "sliding_window": 8, "compress_ratios": [0, 2, 1, 1, 1], "kv_source_layer_ids": [1, 2],
      "index_source_layer_ids": [1, 2, 3], "index_n_heads": 2, "index_head_dim": 6, "index_topk": 3,
      "rms_norm_eps": 1e-20, "rope_theta": 10000, "compress_rope_theta": 160000})",
                        "config.json");
}

Store shared_store(const std::string& prefix, int64_t layer, bool joint) {
    Store store;
    for (const Name& each : kAlways) store.add(prefix + each.own, SMLA_BF16, each.shape);
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
        store.add(prefix + name, SMLA_BF16, std::move(shape));
    };
    if (layer == 1 || layer == 2) {
        if (joint) add("compressor.wkv_gate.weight", {16, 24});
        else add("compressor.wkv.weight", {8, 24});
        if (layer == 1 && !joint) add("compressor.wgate.weight", {8, 24});
        add("compressor.norm.weight", {8});
        add("indexer.wk.weight", {6, 8});
        add("indexer.k_norm.weight", {6});
    }
    if (layer >= 1 && layer <= 3) {
        add("indexer.wq_b.weight", {12, 10});
        add("indexer.weights_proj.weight", {2, 24});
    }
    return store;
}

TEST(HybridWeights, OfV41UnderEverySpelling) {
    for (const char* lead : {"", "model.", "language_model.model."})
        for (const char* part : {".attn.", ".self_attn."})
            for (const int64_t layer : {0, 1, 2, 3, 4})
                for (const bool joint : {false, true}) {
                    if (joint && layer != 1) continue;
                    const std::string prefix = text(lead, "layers.", layer, part);
                    SCOPED_TRACE(prefix);
                    const Store store = shared_store(prefix, layer, joint);
                    const HybridWeights w = load_hybrid_weights(store.open(), shared_config(), layer);
                    expect_same(w.kv, store.tensor(prefix + "wkv.weight"));
                    EXPECT_EQ(w.compressor.has_value(), layer == 1 || layer == 2);
                    EXPECT_EQ(w.indexer.has_value(), layer >= 1 && layer <= 3);
                    if (w.indexer) expect_same(w.indexer->q_b, store.tensor(prefix + "indexer.wq_b.weight"));
                    if (!w.compressor) continue;
                    expect_same(w.indexer->k, store.tensor(prefix + "indexer.wk.weight"));
                    expect_same(w.indexer->k_norm, store.tensor(prefix + "indexer.k_norm.weight"));
                    EXPECT_EQ(present(w.compressor->gate.view), layer == 1);
                    EXPECT_FALSE(present(w.compressor->ape.view));
                    if (!joint) {
                        expect_same(w.compressor->kv, store.tensor(prefix + "compressor.wkv.weight"));
                        continue;
                    }
                    const Tensor both = store.tensor(prefix + "compressor.wkv_gate.weight");
                    expect_same(w.compressor->kv, slice(both, 0, 0, 8));
                    expect_same(w.compressor->gate, slice(both, 0, 8, 16));
                }
}

TEST(HybridWeights, OfV41InBlocksOf32) {
    AttentionConfig config = shared_config();
    EXPECT_EQ(config.common.weight_block_rows, 32);
    for (const char* suffix : {".scale", ".weight_scale", ".weight_scale_inv"}) {
        const std::string name = "layers.4.attn.wq_b";
        Store store = shared_store("layers.4.attn.", 4, false);
        config.hybrid->head_dim = 10;  // 40 rows: two blocks
        store.add("layers.4.attn.wkv.weight", SMLA_BF16, {10, 24});
        store.add("layers.4.attn.kv_norm.weight", SMLA_BF16, {10});
        store.add("layers.4.attn.wo_a.weight", SMLA_BF16, {6, 20});
        store.add(name + ".weight", SMLA_E4M3, {40, 10});
        store.add(name + suffix, SMLA_E8M0, {2, 1});
        const HybridWeights w = load_hybrid_weights(store.open(), config, 4);
        for (int64_t r = 0; r < 40; ++r)
            for (int64_t c = 0; c < 10; ++c)
                EXPECT_EQ(load_one<float>(w.q_b.view, r, c),
                          load_one<float>(store.tensor(name + ".weight"), r, c) *
                              load_one<float>(store.tensor(name + suffix), r / 32, 0));
    }
}

TEST(HybridWeights, SinksMayBeInfinite) {
    Store store = own_store("layers.0.attn.", 0);
    store.add("layers.0.attn.attn_sink", SMLA_F32, {4});
    float* const sinks = static_cast<float*>(store.tensor("layers.0.attn.attn_sink").data);
    sinks[0] = -INFINITY, sinks[2] = INFINITY;
    expect_same(load_hybrid_weights(store.open(), hybrid_config(), 0).sink,
                store.tensor("layers.0.attn.attn_sink"));
    sinks[3] = NAN;
    expect_error([&] { load_hybrid_weights(store.open(), hybrid_config(), 0); }, SMLA_DATA_ERROR,
                 "c.safetensors: layer 0: tensor layers.0.attn.attn_sink[3]", "nan",
                 "a value that is not NaN");
}

TEST(HybridWeights, WhatIsAbsentIsNamedInTheSpellingOfTheCheckpoint) {
    for (const Name& each : names_of(1)) {
        Store own = own_store("layers.1.attn.", 1),
              theirs = transformers_store("model.layers.1.self_attn.", 1);
        own.remove(text("layers.1.attn.", each.own));
        expect_error([&] { load_hybrid_weights(own.open(), hybrid_config(), 1); }, SMLA_DATA_ERROR,
                     text("c.safetensors: layer 1: tensor layers.1.attn.", each.own), "absent");
        if (std::string(each.transformers) == "q_a_proj.weight") continue;  // it tells the spelling
        theirs.remove(text("model.layers.1.self_attn.", each.transformers));
        expect_error([&] { load_hybrid_weights(theirs.open(), hybrid_config(), 1); }, SMLA_DATA_ERROR,
                     text("c.safetensors: layer 1: tensor model.layers.1.self_attn.", each.transformers),
                     "absent");
    }
    const Error nothing =
        error_of([] { load_hybrid_weights(own_store("layers.0.attn.", 0).open(), hybrid_config(), 2); });
    EXPECT_NE(nothing.field.find("tensor layers.2.attn.wq_a.weight, tensor layers.2.attn.q_norm.weight"),
              std::string::npos);
}

}  // namespace
}  // namespace smla
