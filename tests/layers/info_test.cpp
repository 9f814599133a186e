// What smla_config_layer_info and smla_config_rope_frequencies say of published models, against numbers
// computed from the published formulas by another program in double.
#include "layer_of_kind.h"
#include "model/configs.h"

#include <cmath>
#include <cstring>

namespace smla::layers_test {
namespace {

// YaRN's magnitude for DeepSeek-V3.2 is 0.1 ln(40) + 1, and the scale has its square, 1.8738542070926265.
constexpr double kV32Scale = 0.1352337788608801;
constexpr double kDigits = 1e-13;

smla_layer_args args_of(const std::string& config, int32_t layer) {
    return {.struct_size = sizeof(smla_layer_args), .layer = layer, .config_json = config.c_str()};
}

smla_layer_info info_of(const std::string& config, int32_t layer) {
    const smla_layer_args args = args_of(config, layer);
    smla_layer_info out{.struct_size = sizeof out};
    EXPECT_EQ(smla_config_layer_info(&args, &out), SMLA_OK) << smla_last_error();
    return out;
}

using Frequencies = std::vector<std::pair<size_t, double>>;  // some pairs of 32

void expect_rotation(const std::string& config, int32_t layer, double scale, double theta,
                     const Frequencies& wanted) {
    SCOPED_TRACE(text("layer ", layer, ", theta ", theta));
    const smla_layer_info info = info_of(config, layer);
    EXPECT_NEAR(info.softmax_scale / scale, 1, kDigits);
    EXPECT_EQ(info.rope_theta, theta);
    ASSERT_EQ(info.rope_width, 64);
    std::vector<double> all(33, -1);
    const smla_layer_args args = args_of(config, layer);
    ASSERT_EQ(smla_config_rope_frequencies(&args, 32, all.data()), SMLA_OK) << smla_last_error();
    for (const auto& [pair, value] : wanted) EXPECT_NEAR(all[pair] / value, 1, kDigits) << pair;
    EXPECT_EQ(all[32], -1);
}

TEST(LayerInfo, RotationAndScaleOfPublishedModels) {
    const Frequencies base_1e4{{0, 1}, {1, 0.7498942093324559}, {16, 0.01}, {31, 0.0001333521432163324}};
    expect_rotation(test::kV32, 3, kV32Scale, 1e4,
                    {{0, 1},
                     {8, 0.1},
                     {12, 0.026879360111431223},
                     {16, 0.0055},
                     {20, 0.0007905694150420945},
                     {23, 3.33380358040831e-05},
                     {31, 3.33380358040831e-06}});
    expect_rotation(test::kV32, 61, kV32Scale, 1e4, {{31, 3.33380358040831e-06}});  // MTP
    expect_rotation(test::kGlm5, 77, 1. / 16, 1e6, {{16, 1e-3}, {31, 1.539926526059492e-06}});
    expect_rotation(test::kGlm52, 3, 1. / 16, 8e6, {{1, 0.6085250180429372}, {31, 2.0541472625399943e-07}});
    const double v4_scale = 0.04419417382415922;  // 512^-0.5: no magnitude
    const Frequencies compressed{{0, 1},
                                 {8, 0.05},
                                 {15, 0.003635538583622384},
                                 {16, 0.0022656250000000003},
                                 {20, 0.00029697777826169085},
                                 {24, 1.9531249999999997e-05},
                                 {31, 5.680529036909976e-07}};
    for (const int32_t layer : {0, 1, 43}) expect_rotation(test::v4_flash(), layer, v4_scale, 1e4, base_1e4);
    for (const int32_t layer : {2, 3, 42})
        expect_rotation(test::v4_flash(), layer, v4_scale, 1.6e5, compressed);
    expect_rotation(test::v41(), 1, v4_scale, 1e4, base_1e4);
    for (const int32_t layer : {2, 20}) expect_rotation(test::v41(), layer, v4_scale, 1.6e5, compressed);
    const smla_layer_info pools = info_of(test::kGlm53, 3);  // rotates nothing
    EXPECT_EQ(pools.softmax_scale, 1. / 16);
    EXPECT_EQ(pools.rope_width, 0);
    EXPECT_EQ(pools.rope_theta, 0);
    const smla_layer_args args = args_of(test::kGlm53, 3);
    EXPECT_EQ(smla_config_rope_frequencies(&args, 0, nullptr), SMLA_OK);
}

TEST(LayerInfo, IndexersOfPublishedModels) {
    const auto check = [](const std::string& config, int32_t layer, int32_t heads, smla_rope_style style) {
        const smla_layer_info info = info_of(config, layer);
        EXPECT_EQ(info.index_heads, heads);
        EXPECT_EQ(info.index_rope_style, style);
        EXPECT_EQ(info.index_width, heads ? 128 : 0);
    };
    check(test::kV32, 0, 64, SMLA_ROPE_HALF);
    check(test::kGlm52, 2, 32, SMLA_ROPE_INTERLEAVED);
    check(test::kGlm52, 3, 0, 0);
    check(test::v4_flash(), 2, 64, SMLA_ROPE_INTERLEAVED);
    check(test::v4_flash(), 3, 0, 0);
    check(test::v41(), 24, 32, SMLA_ROPE_INTERLEAVED);
}

// The same of a config and of a layer with its weights, but for their bytes.
TEST(LayerInfo, OfAConfigIsThatOfTheLayer) {
    for (const KindOfLayer& kind : kKinds) {
        SCOPED_TRACE(kind.name);
        const LayerOfKind layer(kind);
        smla_layer_info of_config = info_of(kind.config(kHidden), kind.layer);
        EXPECT_EQ(of_config.weight_bytes, 0u);
        EXPECT_EQ(of_config.borrowed_bytes, 0u);
        EXPECT_GT(layer.info.weight_bytes, 0u);
        of_config.weight_bytes = layer.info.weight_bytes;
        of_config.borrowed_bytes = layer.info.borrowed_bytes;
        EXPECT_EQ(std::memcmp(&of_config, &layer.info, sizeof of_config), 0);
    }
}

TEST(LayerInfo, WrongArgumentsAreRefusedByName) {
    const auto refused = [](const smla_layer_args* args, int32_t count, double* frequencies) {
        EXPECT_NE(smla_config_rope_frequencies(args, count, frequencies), SMLA_OK);
        return std::string(smla_last_error());
    };
    const auto has = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos;
    };
    double frequencies[32] = {};
    smla_layer_args args = args_of(test::kV32, 0);
    EXPECT_PRED2(has, refused(&args, 31, frequencies), "count: got 31, wanted 32");
    EXPECT_PRED2(has, refused(&args, 32, nullptr), "frequencies: got null");
    EXPECT_PRED2(has, refused(nullptr, 32, frequencies), "args: got null");
    args.layer = 62;
    EXPECT_PRED2(has, refused(&args, 32, frequencies), "layer: got 62, wanted 0 to 61");
    args = args_of(test::kGlm53, 0);
    smla_layer_info info{.struct_size = sizeof info, .kind = -7};
    EXPECT_EQ(smla_config_layer_info(&args, &info), SMLA_UNSUPPORTED);
    EXPECT_PRED2(has, std::string(smla_last_error()), "linear attention");
    const std::string empty = "{}";
    args = args_of(empty, 0);
    EXPECT_EQ(smla_config_layer_info(&args, &info), SMLA_DATA_ERROR);
    args.config_json = nullptr;
    EXPECT_EQ(smla_config_layer_info(&args, &info), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(info.kind, -7);
    args = args_of(test::kV32, 0);
    EXPECT_EQ(smla_config_layer_info(&args, nullptr), SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(frequencies[0], 0);
}

}  // namespace
}  // namespace smla::layers_test
