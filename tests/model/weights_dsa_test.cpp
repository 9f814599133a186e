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

AttentionConfig dsa_config() {
    return parse_config(R"({"model_type": "glm_moe_dsa", "hidden_size": 24, "num_hidden_layers": 4,
      "num_attention_heads": 3, "q_lora_rank": 10, "kv_lora_rank": 12, "qk_nope_head_dim": 5,
      "qk_rope_head_dim": 4,
      "v_head_dim": 6, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 3, "rope_theta": 10000,
      "indexer_types": ["full", "shared", "full", "full"],
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 4]}})",
                        "config.json");
}

struct Shape {
    const char* name;
    std::vector<int64_t> shape;
};
const std::vector<Shape> kDsaMatrices = {{"q_a_proj.weight", {10, 24}},
                                         {"q_b_proj.weight", {27, 10}},
                                         {"kv_a_proj_with_mqa.weight", {16, 24}},
                                         {"kv_b_proj.weight", {33, 12}},
                                         {"o_proj.weight", {24, 18}}};
const std::vector<Shape> kDsaVectors = {{"q_a_layernorm.weight", {10}}, {"kv_a_layernorm.weight", {12}}};
const std::vector<Shape> kDsaIndexer = {{"indexer.wq_b.weight", {16, 10}},
                                        {"indexer.wk.weight", {8, 24}},
                                        {"indexer.k_norm.weight", {8}},
                                        {"indexer.k_norm.bias", {8}},
                                        {"indexer.weights_proj.weight", {2, 24}}};

Store dsa_store(const std::string& prefix, smla_dtype dtype) {
    Store store;
    for (const std::vector<Shape>* list : {&kDsaMatrices, &kDsaVectors, &kDsaIndexer})
        for (const Shape& each : *list) store.add(prefix + each.name, dtype, each.shape);
    return store;
}

// GLM-5.3: the pools' own tensors, and its name beside an image encoder.
TEST(DsaWeights, Pools) {
    const AttentionConfig config = parse_config(R"({"model_type": "glm5_next", "hidden_size": 24,
      "num_attention_heads": 3, "q_lora_rank": 10, "kv_lora_rank": 12, "qk_nope_head_dim": 5, "v_head_dim": 6,
      "index_n_heads": 2, "index_head_dim": 8, "index_topk": 6, "index_kpool": 3,
      "layer_types": ["linear_attention", "deepseek_sparse_attention"]})",
                                                "config.json");
    const char* const gate = "indexer.index_kpool_compress_gate";
    const char* const ape = "indexer.index_kpool_compress_ape";
    for (const char* stem :
         {"", "model.", "model.language_model.", "language_model.model.", "language_model."}) {
        const std::string prefix = text(stem, "layers.1.self_attn.");
        Store store = dsa_store(prefix, SMLA_BF16);
        for (const Shape& each :
             {Shape{"q_b_proj.weight", {15, 10}}, {"kv_a_proj_with_mqa.weight", {12, 24}}}) {
            store.remove(prefix + each.name);
            store.add(prefix + each.name, SMLA_BF16, each.shape);
        }
        store.add(prefix + gate, SMLA_BF16, {8, 24});
        store.add(prefix + ape, SMLA_F32, {3, 8});
        const DsaWeights w = load_dsa_weights(store.open(), config, 1, {SMLA_F32, ""});
        expect_same(w.indexer->pool_gate, store.tensor(prefix + gate));
        expect_same(w.indexer->pool_ape, store.tensor(prefix + ape));
        expect_error([&] { load_dsa_weights(store.open(), config, 0); }, SMLA_UNSUPPORTED, "layer",
                     "0, a linear attention (KDA) layer", "a sparse attention layer: 1");
        store.remove(prefix + ape);
        expect_error([&] { load_dsa_weights(store.open(), config, 1); }, SMLA_DATA_ERROR,
                     "c.safetensors: layer 1: tensor " + prefix + ape, "absent");
    }
}

TEST(DsaWeights, EveryTensorUnderItsName) {
    for (const smla_dtype stored : {SMLA_BF16, SMLA_F32, SMLA_F16}) {
        for (const smla_dtype wanted : {SMLA_F32, SMLA_F64}) {
            const std::string prefix = "model.layers.2.self_attn.";
            const Store store = dsa_store(prefix, stored);
            const DsaWeights w = load_dsa_weights(store.open(), dsa_config(), 2, {wanted, ""});
            const std::pair<const HostTensor*, const char*> expected[] = {
                {&w.q_a, "q_a_proj.weight"},
                {&w.q_norm, "q_a_layernorm.weight"},
                {&w.q_b, "q_b_proj.weight"},
                {&w.kv_a, "kv_a_proj_with_mqa.weight"},
                {&w.kv_norm, "kv_a_layernorm.weight"},
                {&w.kv_b, "kv_b_proj.weight"},
                {&w.out, "o_proj.weight"},
                {&w.indexer->q_b, "indexer.wq_b.weight"},
                {&w.indexer->k, "indexer.wk.weight"},
                {&w.indexer->k_norm, "indexer.k_norm.weight"},
                {&w.indexer->k_norm_bias, "indexer.k_norm.bias"},
                {&w.indexer->head_weights, "indexer.weights_proj.weight"}};
            for (const auto& each : expected) {
                SCOPED_TRACE(each.second);
                EXPECT_EQ(each.first->view.dtype, wanted);
                expect_same(*each.first, store.tensor(prefix + each.second));
            }
            EXPECT_EQ(w.input_norm.view.ndim, 0);
        }
    }
}

TEST(DsaWeights, Views) {
    const DsaWeights w =
        load_dsa_weights(dsa_store("model.layers.0.self_attn.", SMLA_BF16).open(), dsa_config(), 0);
    const Tensor keys = w.key_up(dsa_config()), values = w.value_up(dsa_config());
    EXPECT_EQ(keys.shape[1], 5);
    EXPECT_EQ(values.shape[1], 6);
    for (int64_t head = 0; head < 3; ++head)
        for (int64_t l = 0; l < 12; ++l) {
            for (int64_t n = 0; n < 5; ++n)
                EXPECT_EQ(load_one<float>(slice(keys, 2, l, l + 1), head, n),
                          load_one<float>(w.kv_b.view, head * 11 + n, l));
            for (int64_t n = 0; n < 6; ++n)
                EXPECT_EQ(load_one<float>(slice(values, 2, l, l + 1), head, n),
                          load_one<float>(w.kv_b.view, head * 11 + 5 + n, l));
        }
}

TEST(DsaWeights, HeldOnceWhereStoredAsWanted) {
    const Checkpoint bf16 = dsa_store("model.layers.0.self_attn.", SMLA_BF16).in_memory();
    const Checkpoint f32 = dsa_store("model.layers.0.self_attn.", SMLA_F32).in_memory();
    EXPECT_EQ(load_dsa_weights(bf16, dsa_config(), 0, {SMLA_BF16, ""}).q_a.view.data,
              bf16.tensor("model.layers.0.self_attn.q_a_proj.weight").view.data);
    EXPECT_EQ(load_dsa_weights(f32, dsa_config(), 0).kv_norm.view.data,
              f32.tensor("model.layers.0.self_attn.kv_a_layernorm.weight").view.data);
    EXPECT_EQ(load_dsa_weights(bf16, dsa_config(), 0, {SMLA_BF16, ""}).kv_norm.view.dtype, SMLA_F32);
}

TEST(DsaWeights, SharedLayerHasNoIndexer) {
    Store store = dsa_store("model.layers.1.self_attn.", SMLA_BF16);
    for (const Shape& each : kDsaIndexer) store.remove("model.layers.1.self_attn." + std::string(each.name));
    EXPECT_FALSE(load_dsa_weights(store.open(), dsa_config(), 1).indexer.has_value());
}

TEST(DsaWeights, PrefixesAndInputNorm) {
    Store bare = dsa_store("layers.0.self_attn.", SMLA_BF16);
    bare.add("layers.0.input_layernorm.weight", SMLA_F32, {24});
    expect_same(load_dsa_weights(bare.open(), dsa_config(), 0).input_norm,
                bare.tensor("layers.0.input_layernorm.weight"));
    const Store prefixed = dsa_store("w.model.layers.0.self_attn.", SMLA_BF16);
    EXPECT_NO_THROW(load_dsa_weights(prefixed.open(), dsa_config(), 0, {SMLA_F32, "w."}));
    EXPECT_THROW(load_dsa_weights(prefixed.open(), dsa_config(), 0), Error);
}

TEST(DsaWeights, Fp8InBlocks) {
    const std::string prefix = "model.layers.0.self_attn.";
    Store store = dsa_store(prefix, SMLA_BF16);
    for (const Shape& each : kDsaMatrices) {
        const std::string name = prefix + each.name;
        store.remove(name);
        store.add(name, SMLA_E4M3, each.shape);
        store.add(name.substr(0, name.size() - 6) + "weight_scale_inv", SMLA_F32,
                  {ceil_div(each.shape[0], 8), ceil_div(each.shape[1], 4)});
    }
    const DsaWeights w = load_dsa_weights(store.open(), dsa_config(), 0, {SMLA_F64, ""});
    const Tensor codes = store.tensor(prefix + "kv_b_proj.weight");
    const Tensor scales = store.tensor(prefix + "kv_b_proj.weight_scale_inv");
    for (int64_t r = 0; r < 33; ++r)
        for (int64_t c = 0; c < 12; ++c)
            EXPECT_EQ(load_one<double>(w.kv_b.view, r, c),
                      load_one<double>(codes, r, c) * load_one<double>(scales, r / 8, c / 4));

    // what can be wrong with scales
    const auto error = [&](auto change) {
        Store broken = store;
        change(broken);
        return error_of([&] { load_dsa_weights(broken.open(), dsa_config(), 0); });
    };
    const std::string scale = prefix + "q_a_proj.weight_scale_inv",
                      at = "c.safetensors: layer 0: tensor " + prefix;
    const Error absent = error([&](Store& s) { s.remove(scale); });
    EXPECT_EQ(absent.field, at + "q_a_proj.weight");
    EXPECT_EQ(absent.got, "e4m3 without a scale");
    EXPECT_EQ(absent.wanted, "a scale in .weight_scale_inv or .scale with shape [2, 6]");
    const Error shape = error([&](Store& s) { s.add(scale, SMLA_F32, {1, 6}); });
    EXPECT_EQ(shape.field, at + "q_a_proj.weight_scale_inv");
    EXPECT_EQ(shape.wanted, "[2, 6]");
    const Error dtype = error([&](Store& s) { s.add(scale, SMLA_I32, {2, 6}); });
    EXPECT_EQ(dtype.field, at + "q_a_proj.weight_scale_inv: dtype");
    for (const float value : {NAN, INFINITY, -1.f}) {
        const Error bad = error([&](Store& s) {
            s.add(scale, SMLA_F32, {2, 6});
            static_cast<float*>(s.tensor(scale).data)[8] = value;
        });
        EXPECT_EQ(bad.field, at + "q_a_proj.weight_scale_inv[1, 2]");
    }
    const Error code = error([&](Store& s) {
        s.add(prefix + "q_a_proj.weight", SMLA_E4M3, {10, 24});
        static_cast<uint8_t*>(s.tensor(prefix + "q_a_proj.weight").data)[49] = 0xFF;
    });
    EXPECT_EQ(code.field, at + "q_a_proj.weight[2, 1]");
    EXPECT_EQ(code.wanted, "a finite value");
    // a scale beside a matrix that is not e4m3: one of the two is wrong
    const Error leftover = error([&](Store& s) { s.add(prefix + "q_a_proj.weight", SMLA_BF16, {10, 24}); });
    EXPECT_EQ(leftover.field, at + "q_a_proj.weight: dtype");
}

// Quantisation that is not read is named, in whatever tensor it shows, and never taken for plain weights.
TEST(DsaWeights, PackedFormatsAreRefusedByName) {
    const std::string prefix = "model.layers.0.self_attn.", name = prefix + "q_b_proj";
    const std::string field = "c.safetensors: layer 0: tensor " + name;
    const auto refused = [&](auto change, const std::string& at, const std::string& got) {
        Store store = dsa_store(prefix, SMLA_BF16);
        change(store);
        expect_error([&] { load_dsa_weights(store.open(), dsa_config(), 0); }, SMLA_DATA_ERROR, field + at,
                     got);
    };
    const char* const formats[] = {".qweight", ".weight_packed", ".weight_scale_2", ".weight_global_scale",
                                   ".pre_quant_scale"};
    for (const char* suffix : formats) {
        const std::string got = "a packed format with " + name + suffix;
        const auto beside = [&](Store& store) { store.add(name + suffix, SMLA_F32, {1}); };
        refused(beside, ".weight", got);  // a matrix of bf16 that is scaled in another way
        refused([&](Store& store) { beside(store), store.remove(name + ".weight"); }, ".weight", got);
        refused(  // codes with a scale of the right shape are still only half of it
            [&](Store& store) {
                beside(store);
                store.remove(name + ".weight");
                store.add(name + ".weight", SMLA_E4M3, {27, 10});
                store.add(name + ".weight_scale", SMLA_F32, {4, 3});
            },
            ".weight", got);
    }
    // also where the first matrix, by which the spelling of names is known, has no .weight
    const std::string inner = "language_model.model.layers.0.self_attn.";
    Store wrapped = dsa_store(inner, SMLA_BF16);
    wrapped.rename(inner + "q_a_proj.weight", inner + "q_a_proj.qweight");
    expect_error([&] { load_dsa_weights(wrapped.open(), dsa_config(), 0); }, SMLA_DATA_ERROR,
                 "c.safetensors: layer 0: tensor " + inner + "q_a_proj.weight",
                 "a packed format with " + inner + "q_a_proj.qweight");
    // bitsandbytes, MLX, int8: by the dtype of the codes
    for (const smla_dtype codes : {SMLA_U8, SMLA_I32})
        refused(
            [&](Store& store) {
                store.add(name + ".weight", codes, {27, 10});
            },
            ".weight: dtype", codes == SMLA_U8 ? "\"U8\"" : "\"I32\"");
    // one scale per row, one for all, one per group of 8 columns
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{27, 1}, {1}, {27, 2}}) {
        Store store = dsa_store(prefix, SMLA_BF16);
        store.add(name + ".weight", SMLA_E4M3, {27, 10});
        store.add(name + ".weight_scale", SMLA_F32, shape);
        const Error error = error_of([&] { load_dsa_weights(store.open(), dsa_config(), 0); });
        EXPECT_EQ(error.field, field + ".weight_scale");
        EXPECT_EQ(error.wanted, "[4, 3]");
    }
}

struct Sharded {
    test::Folder folder;

    Sharded() {
        const std::string prefix = "model.layers.0.self_attn.";
        const Store store = dsa_store(prefix, SMLA_BF16);
        std::vector<NamedTensor> files[3];
        std::string map;
        for (const std::vector<Shape>* list : {&kDsaMatrices, &kDsaVectors, &kDsaIndexer})
            for (size_t i = 0; i < list->size(); ++i) {
                const std::string name = prefix + (*list)[i].name;
                map += text(map.empty() ? "" : ",", "\"", name, "\":\"s", i % 3, "\"");
                files[i % 3].push_back({name, store.tensor(name)});
            }
        for (int n = 0; n < 3; ++n) write_safetensors(folder.path(text("s", n)), files[n]);
        folder.write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
    }
    Error error() const {
        const Checkpoint checkpoint = Checkpoint::open(folder.path());
        Error error = error_of([&] { load_dsa_weights(checkpoint, dsa_config(), 0); });
        error.field.erase(0, checkpoint.name().size());
        return error;
    }
};

TEST(DsaWeights, MissingShardsAreListedWithAllElse) {
    const Sharded layer;
    const std::string s0 = layer.folder.path("s0"), s1 = layer.folder.path("s1");
    std::filesystem::remove(s0);
    std::filesystem::remove(s1);
    write_safetensors(layer.folder.path("s2"), {});
    const Error error = layer.error();
    EXPECT_EQ(error.status, SMLA_IO_ERROR);
    EXPECT_EQ(error.field.find(": layer 0: " + s0 + ", " + s1 + ", s2: tensor "), 0u) << error.field;
}

TEST(DsaWeights, ABrokenShardIsNamedOnceWithItsOwnField) {
    const Sharded layer;
    const std::string whole = layer.folder.read("s1");
    layer.folder.write("s1", whole.substr(0, whole.size() - 1));
    const std::string cut = layer.error().field;
    EXPECT_EQ(cut.find(": layer 0: s1: tensor "), 0u);
    EXPECT_EQ(cut.find(": data_offsets"), cut.size() - 14) << cut;
    std::string odd = whole;
    layer.folder.write("s1", odd.replace(odd.find("\"BF16\""), 6, "\"\"    "));
    const Error dtype = layer.error();
    EXPECT_NE(dtype.field.find(".weight: dtype"), std::string::npos) << dtype.field;
    EXPECT_EQ(dtype.got, "\"\"");
    EXPECT_EQ(dtype.wanted.find("f32, bf16, f16"), 0u) << dtype.wanted;
}

TEST(DsaWeights, ValuesThatNoWeightHasAreListed) {
    const std::string prefix = "model.layers.0.self_attn.", t = "tensor " + prefix;
    Store store = dsa_store(prefix, SMLA_BF16);
    const auto put = [&](const char* name, int64_t at, double value) {
        Tensor flat = store.tensor(prefix + name);
        flat = make_tensor(flat.data, flat.dtype, {element_count(flat)});
        store_row(flat, address(flat, at), 1, &value);
    };
    put("kv_b_proj.weight", 33 * 12 - 1, NAN);  // the last of all
    put("indexer.wk.weight", 24, -INFINITY);
    put("kv_a_layernorm.weight", 2, INFINITY);
    const Error error = error_of([&] { load_dsa_weights(store.open(), dsa_config(), 0); });
    EXPECT_EQ(error.status, SMLA_DATA_ERROR);
    EXPECT_EQ(error.field, "c.safetensors: layer 0: " + t + "kv_a_layernorm.weight[2], " + t +
                               "kv_b_proj.weight[32, 11], " + t + "indexer.wk.weight[1, 0]");
    EXPECT_NE(error.got.find("kv_b_proj.weight[32, 11] nan"), std::string::npos) << error.got;
    EXPECT_NE(error.got.find("indexer.wk.weight[1, 0] -inf"), std::string::npos) << error.got;
    EXPECT_NE(error.wanted.find("a finite value"), std::string::npos) << error.wanted;
    for (const smla_dtype matrices : {SMLA_BF16, SMLA_F64})
        EXPECT_EQ(error_of([&] {
                      load_dsa_weights(store.open(), dsa_config(), 0, {matrices, ""});
                  }).field,
                  error.field);

    Store wide = dsa_store(prefix, SMLA_F64);  // finite in f64 alone
    const double large = 1e300;
    std::memcpy(wide.tensor(prefix + "o_proj.weight").data, &large, sizeof large);
    load_dsa_weights(wide.open(), dsa_config(), 0, {SMLA_F64, ""});
    expect_error([&] { load_dsa_weights(wide.open(), dsa_config(), 0); }, SMLA_DATA_ERROR,
                 "c.safetensors: layer 0: " + t + "o_proj.weight[0, 0]", "inf", "a finite value");
}

TEST(DsaWeights, AllThatIsWrongIsListed) {
    const std::string prefix = "model.layers.0.self_attn.";
    Store store = dsa_store(prefix, SMLA_BF16);
    store.remove(prefix + "q_b_proj.weight");
    store.remove(prefix + "indexer.k_norm.bias");
    store.add(prefix + "o_proj.weight", SMLA_BF16, {18, 24});
    store.add(prefix + "kv_a_layernorm.weight", SMLA_I32, {12});
    const Error error = error_of([&] { load_dsa_weights(store.open(), dsa_config(), 0); });
    EXPECT_EQ(error.status, SMLA_DATA_ERROR);
    const std::string t = "tensor " + prefix;
    EXPECT_EQ(error.field, "c.safetensors: layer 0: " + t + "q_b_proj.weight, " + t +
                               "kv_a_layernorm.weight: dtype, " + t + "o_proj.weight, " + t +
                               "indexer.k_norm.bias");
    EXPECT_NE(error.got.find(t + "q_b_proj.weight absent; "), std::string::npos) << error.got;
    EXPECT_NE(error.got.find(t + "o_proj.weight bf16[18,24] on cpu"), std::string::npos) << error.got;
    EXPECT_NE(error.wanted.find(t + "o_proj.weight [24, 18]"), std::string::npos) << error.wanted;
    // each tensor alone
    for (const std::vector<Shape>* list : {&kDsaMatrices, &kDsaVectors, &kDsaIndexer})
        for (const Shape& each : *list) {
            Store one = dsa_store(prefix, SMLA_BF16);
            one.remove(prefix + each.name);
            expect_error([&] { load_dsa_weights(one.open(), dsa_config(), 0); }, SMLA_DATA_ERROR,
                         "c.safetensors: layer 0: " + t + each.name, "absent");
        }
    expect_error(
        [&] {
            load_dsa_weights(store.open(), dsa_config(), 0, {SMLA_E4M3, ""});
        },
        SMLA_INVALID_ARGUMENT, "options.matrices", "5");
    expect_error([&] { load_hybrid_weights(store.open(), dsa_config(), 0); }, SMLA_INVALID_ARGUMENT,
                 "config.model_type", "glm_moe_dsa", "deepseek_v4 or deepseek_v41");
    expect_error([&] { load_dsa_weights(store.open(), dsa_config(), 9); }, SMLA_INVALID_ARGUMENT, "layer",
                 "9");
}

}  // namespace
}  // namespace smla
