/* Reads the widths, softmax scale and rotation frequencies of a layer from config.json. Without arguments,
 * describes a layer of DeepSeek-V3.2 and checks the numbers.
 *
 *     example_layer_info_c [CONFIG LAYER]      CONFIG: a config.json or its folder */
#include <smla/smla.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char* const V32 =
    "{\"model_type\": \"deepseek_v32\", \"num_hidden_layers\": 61, \"hidden_size\": 7168,"
    " \"num_attention_heads\": 128, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128,"
    " \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"index_n_heads\": 64, \"index_head_dim\": 128,"
    " \"index_topk\": 2048, \"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40,"
    " \"original_max_position_embeddings\": 4096, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0,"
    " \"mscale_all_dim\": 1.0}}";

static int failed(const char* call) {
    fprintf(stderr, "%s: %s\n", call, smla_last_error());
    return 1;
}

int main(int argc, char** argv) {
    const int given = argc == 3;
    const smla_layer_args args = {
        .struct_size = sizeof args,
        .layer = given ? atoi(argv[2]) : 3,
        .config = given ? argv[1] : NULL,
        .config_json = given ? NULL : V32,
    };
    smla_layer_info layer = {.struct_size = sizeof layer};
    if (smla_config_layer_info(&args, &layer) != SMLA_OK) return failed("smla_config_layer_info");
    double frequencies[512];
    if (layer.rope_width > 2 * 512) return 1;
    if (smla_config_rope_frequencies(&args, layer.rope_width / 2, frequencies) != SMLA_OK)
        return failed("smla_config_rope_frequencies");
    printf("heads %d, KV row %d, softmax scale %.10f, theta %g, frequencies", layer.heads, layer.kv_width,
           layer.softmax_scale, layer.rope_theta);
    for (int i = 0; i < layer.rope_width / 2; i += 8) printf(" %.6g", frequencies[i]);
    printf("\n");
    if (given) return 0;

    /* YaRN scales queries and keys by 0.1 ln(factor) + 1 each and divides frequencies 23 to 31 by factor. */
    const double magnitude = 0.1 * log(40) + 1, scale = magnitude * magnitude / sqrt(128 + 64);
    const int right = fabs(layer.softmax_scale - scale) < 1e-15 && frequencies[0] == 1 &&
                      fabs(frequencies[31] * 40 / pow(10000, -62. / 64) - 1) < 1e-14;
    printf("%s\n", right ? "ok" : "WRONG");
    return !right;
}
