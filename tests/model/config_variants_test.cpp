// config.json as publishers and tools write it: other names of a model, wrappers, quantised checkpoints, MTP
// layers beside shared selections, and what Python's json module writes for numbers that are not finite.
#include "configs.h"
#include "files.h"
#include "model/config.h"
#include "model/json.h"

#include <map>

namespace smla {
namespace {

using test::expect_error;

AttentionConfig parse(const Json& json) { return parse_config(json.dump(), "config.json"); }

Json changed(const std::string& config, const Json& members) {  // null members go
    Json out = Json::parse(config);
    out.merge_patch(members);
    return out;
}

// What a config says of attention, for comparing two spellings of one model.
std::string meaning(const AttentionConfig& config) {
    std::string out = text(config.common.model_type, " ", config.common.hidden_size, " ", config.common.heads,
                           " ", config.common.latent_norm_eps, " ", config.common.weight_block_rows, " ",
                           config.softmax_scale(), " ", config.indexer->topk, ";");
    for (int64_t layer = 0; layer < config.common.layers + config.common.mtp_layers; ++layer)
        out += text(" ", layer_kind_name(config.layer_kind(layer)), config.compress_ratio(layer), "/",
                    config.sources(layer).selection, "/", config.rope(layer).theta);
    return out;
}

void expect_same(const Json& variant, const std::string& original) {
    SCOPED_TRACE(variant.dump().substr(0, 200));
    EXPECT_EQ(meaning(parse(variant)), meaning(parse_config(original, "original")));
}

TEST(ConfigVariants, ModelsUnderOtherNames) {
    const Json v32_class = {{"architectures", {"DeepseekV32ForCausalLM"}}};
    const Json v3_class = {{"architectures", {"DeepseekV3ForCausalLM"}}, {"model_type", "deepseek_v3"}};
    Json named = v32_class;
    for (const Json& type : {Json(), Json("deepseek_v3"), Json("my_finetune")}) {
        named["model_type"] = type;
        expect_same(changed(test::kV32, named), test::kV32);
    }
    expect_same(changed(test::kV32, v3_class), test::kV32);
    for (const char* member : {"type", "rope_type"})  // vLLM's name of DeepSeek's yarn
        expect_same(changed(test::kV32, {{"rope_scaling", {{member, "deepseek_yarn"}}}}), test::kV32);
    const Json glm = {{"model_type", nullptr}, {"architectures", {"GlmMoeDsaForCausalLM"}}};
    expect_same(changed(test::kGlm5, glm), test::kGlm5);
    // DeepSeek-V4-Flash-FP8 of sgl-project; it has neither rope_theta nor rms_norm_eps
    const Json fp8 = {{"architectures", {"DeepseekV4ForCausalLM"}},
                      {"model_type", "deepseek_ref"},
                      {"rope_theta", nullptr},
                      {"rms_norm_eps", nullptr}};
    expect_same(changed(test::v4_flash(), fp8), test::v4_flash());
    // the class of V4.1 begins as that of V4 does
    const Json v41 = {{"model_type", nullptr}, {"architectures", {"X", "DeepseekV41ForCausalLM"}}};
    expect_same(changed(test::v41(), v41), test::v41());
    Json flat = Json::parse(test::v41())["text_config"];
    for (const char* type : {"deepseek_v41", "deepseek_v41_text"}) {
        flat["model_type"] = type;
        expect_same(flat, test::v41());
    }
    for (const char* type : {"glm53_flash", "glm5_next"})
        expect_same(changed(test::kGlm53, {{"model_type", type}, {"text_config", {{"model_type", nullptr}}}}),
                    test::kGlm53);
    expect_same(Json::parse(test::kGlm53)["text_config"], test::kGlm53);
}

TEST(ConfigVariants, WrappersAroundALanguageModel) {
    const Json glm = Json::parse(test::kGlm52);
    for (const char* member : {"text_config", "language_config", "llm_config"}) {
        expect_same({{"architectures", {"Glm5vForConditionalGeneration"}},
                     {"model_type", "glm5v"},
                     {member, glm},
                     {"vision_config", {{"hidden_size", 1152}}}},
                    test::kGlm52);
        expect_same({{"hidden_size", 1152}, {member, glm}}, test::kGlm52);
    }
    Json both = glm;
    both["text_config"] = glm;
    expect_same(both, test::kGlm52);
    // the blocks of scales stand beside the language model or in it
    Json inner = glm;
    inner["quantization_config"] = {{"weight_block_size", {64, 32}}};
    EXPECT_EQ(parse({{"text_config", inner}}).common.weight_block_columns, 32);
    inner.erase("quantization_config");
    EXPECT_EQ(parse({{"text_config", inner}, {"quantization_config", {{"weight_block_size", {64, 16}}}}})
                  .common.weight_block_columns,
              16);
    inner.erase("kv_lora_rank");
    expect_error(
        [&] {
            parse({{"model_type", "glm5v"}, {"text_config", inner}});
        },
        SMLA_DATA_ERROR, "config.json: text_config.kv_lora_rank", "absent");
}

TEST(ConfigVariants, OtherModelsAreRefusedByName) {
    const std::string known = "one of deepseek_v32, glm_moe_dsa, glm5_next, deepseek_v4, deepseek_v41";
    const auto refused = [&](const Json& json, const std::string& got) {
        expect_error([&] { parse(json); }, SMLA_DATA_ERROR, "config.json: model_type", got, known);
    };
    for (const char* type : {"mistral_large4", "axk2", "hy_v4", "hy_v4_vl", "dots3_note", "deepseek_v42",
                             "deepseek_v4_text_text", "deepseek_v3"})
        refused(changed(test::kV32, {{"model_type", type},
                                     {"index_topk", nullptr},
                                     {"architectures", {"DeepseekV42ForCausalLM", 7}}}),
                "\"" + std::string(type) + "\"");
    refused({{"text_config", {{"model_type", "llama"}}}}, "\"llama\"");
    refused({{"architectures", {"LlamaForCausalLM"}}}, "absent");
}

// An MTP layer has an indexer of its own in every checkpoint, however the main stack shares selections.
TEST(ConfigVariants, MtpLayersSelectForThemselves) {
    const auto check = [](const std::string& base, const Json& members) {
        SCOPED_TRACE(members.dump());
        const AttentionConfig config = parse(changed(base, members));
        const int64_t mtp = config.common.layers;
        EXPECT_EQ(config.layer_kind(mtp), LayerKind::dsa);
        EXPECT_EQ(config.sources(mtp).selection, mtp);
        EXPECT_TRUE(config.selects(mtp));
        EXPECT_THROW(config.layer_kind(mtp + 1), Error);
        EXPECT_EQ(config.layer_kind(3), LayerKind::dsa_shared);  // the rule itself holds
    };
    for (const int frequency : {3, 4, 5, 6, 7, 8})
        for (const Json& offset : {Json(), Json(2), Json(3)})
            for (const std::string& base : {test::kV32, test::kGlm52})
                check(base, {{"index_topk_freq", frequency}, {"index_skip_topk_offset", offset}});
    Json types(78, "shared");
    types[0] = "full";
    check(test::kGlm52, {{"indexer_types", types}});
    for (const char* last : {"shared", "full"}) {
        types[78] = last;  // a list that goes on over the MTP layer
        check(test::kGlm52, {{"indexer_types", types}});
    }
    check(test::kV32, {{"index_topk_pattern", "F" + std::string(60, 'S')}});
    check(test::kV32, {{"index_topk_pattern", "F" + std::string(61, 'S')}});
}

// Attention of these checkpoints is often not quantised; what is, the tensors tell when they are read.
TEST(ConfigVariants, QuantisationOfAnyMethod) {
    const std::map<const char*, Json> methods{
        {"modelopt", {{"quant_algo", "NVFP4"}, {"ignore", {"lm_head", "model.layers.0.self_attn*"}}}},
        {"modelopt_fp4", {{"exclude_modules", {"*self_attn*"}}, {"group_size", 16}}},
        {"compressed-tensors", {{"ignore", {"re:.*self_attn.*"}}, {"format", "nvfp4-pack-quantized"}}},
        {"awq", {{"modules_to_not_convert", {"self_attn"}}, {"bits", 4}}},
        {"gptq", {{"dynamic", {{"-:.*self_attn.*", Json::object()}}}, {"bits", 4}}},
        {"auto-round", {{"extra_config", {{"model.layers.0.self_attn.o_proj", {{"bits", 16}}}}}}},
        {"quark", {{"exclude", {"re:model.layers.*self_attn.*"}}, {"layer_quant_config", Json::object()}}},
        {"mxfp4", {{"modules_to_not_convert", nullptr}}},
        {"fbgemm_fp8", {{"modules_to_not_convert", {"model.layers.0.self_attn.q_a_proj"}}}},
        {"bitsandbytes", {{"llm_int8_skip_modules", {"self_attn"}}, {"load_in_4bit", true}}},
        {"fp8", {{"ignored_layers", {"model.layers.0.self_attn"}}, {"weight_block_size", nullptr}}}};
    for (const auto& [method, members] : methods) {
        Json quantization = members;
        quantization["quant_method"] = method;
        for (const std::string& base : {test::kV32, test::kGlm52, test::v4_flash()}) {
            Json json = Json::parse(base);
            json["quantization_config"] = quantization;
            expect_same(json, base);
        }
    }
    for (const Json& odd : {Json(nullptr), Json::object(), Json({{"quant_method", 7}})}) {
        Json json = Json::parse(test::kV32);
        json["quantization_config"] = odd;
        expect_same(json, test::kV32);
    }
    Json mlx = Json::parse(test::kGlm52);
    mlx["quantization"] = mlx["quantization_config"] = {{"group_size", 64}, {"bits", 4}, {"mode", "affine"}};
    expect_same(mlx, test::kGlm52);
}

// Python's json module writes these for floats that are not finite.
TEST(ConfigVariants, BareConstants) {
    const std::string v32 = Json::parse(test::kV32).dump();
    const auto with = [&](const std::string& members) { return "{" + members + "," + v32.substr(1); };
    for (const char* constant : {"NaN", "Infinity", "-Infinity"}) {
        const auto put = [&](const std::string& before, const std::string& after = "") {
            return with(before + constant + after);
        };
        for (const std::string& json :
             {put("\"swiglu_limit\": "), put("\"swiglu_limit\":"), put("\"x\": [1, ", ",{\"y\":NaN}]"),
              put("\"x\": \"\\\"", " \\\\\""), put("\"x\": \"a\\\\\",\"y\":", "\n")})
            EXPECT_EQ(meaning(parse_config(json, "config.json")), meaning(parse_config(v32, "v32"))) << json;
        // a member that is read must be finite, in either spelling
        Json numbers = Json::parse(v32);
        numbers["rms_norm_eps"] = nullptr;
        numbers["rope_scaling"]["factor"] = nullptr;
        numbers["num_attention_heads"] = nullptr;
        std::string json = numbers.dump();
        for (size_t at; (at = json.find("null")) != std::string::npos;) json.replace(at, 4, constant);
        const Error error = test::error_of([&] { parse_config(json, "config.json"); });
        EXPECT_EQ(error.field, "config.json: num_attention_heads, rms_norm_eps, rope_scaling.factor");
        EXPECT_NE(error.got.find(text("rms_norm_eps \"", constant, "\"")), std::string::npos) << error.got;
        EXPECT_NE(error.wanted.find("rms_norm_eps a number from 1e-30 to 1"), std::string::npos);
        // nothing else than JSON is taken for it
        for (const std::string& json :
             {put("\"x\": 1"), put("\"x\": ", "1"), put("\"x\": ", constant), put("\"x\": a"), put("")})
            EXPECT_EQ(test::error_of([&] { parse_config(json, "config.json"); }).wanted, "valid JSON")
                << json;
    }
    EXPECT_EQ(quote_constants("[NaN,-Infinity, Infinity]"), "[\"NaN\",\"-Infinity\", \"Infinity\"]");
    EXPECT_EQ(quote_constants("\"NaN\\\"NaN\""), "\"NaN\\\"NaN\"");
    EXPECT_EQ(quote_constants("\"\\"), "\"\\");
    EXPECT_EQ(quote_constants("Nan -inf Infinit"), "Nan -inf Infinit");
    EXPECT_THROW(parse_json("[NaN]", "header"), Error);  // other files stay strict
}

}  // namespace
}  // namespace smla
