/* smla/model.h: attention layers of a model: the arguments that open a layer, and its description (kind,
 * widths, softmax scale, rotation), which can be read from config.json without weights. */
#ifndef SMLA_MODEL_H
#define SMLA_MODEL_H

#include <smla/stages_linear.h>
#include <smla/types.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A weight in memory under its name in a checkpoint, "model.layers.0.self_attn.o_proj.weight". */
typedef struct smla_named_tensor {
    const char* name;
    smla_tensor tensor;
} smla_named_tensor;

/* How a layer holds its matrices. Vectors, sinks and position biases are f32, or f64 with f64 activations. */
typedef int32_t smla_weight_storage;
enum {
    /* In the dtype of `activations`. */
    SMLA_WEIGHTS_CONVERTED = 0,
    /* f32 and bf16 matrices are not converted. Products widen bf16 when they read it, so it takes half the
     * memory of f32. Other dtypes are converted. */
    SMLA_WEIGHTS_AS_STORED = 1
};

/* Weights come from `checkpoint` or from `tensors`, never from both. */
typedef struct smla_layer_args {
    uint32_t struct_size;
    /* Number of the layer, from 0. */
    int32_t layer;
    /* A folder (config.json, model.safetensors or shards), or a .safetensors file with a config. */
    const char* checkpoint;
    /* Path of a config.json or of its folder. Null: the checkpoint's folder. */
    const char* config;
    /* 0 is f32. f64: reference engine. bf16: f32, which products round to bf16, except for `hidden`. */
    smla_dtype activations;
    /* Dtype of attention's queries: f32 (0), bf16, or f64 (0) with f64 activations. */
    smla_dtype queries;
    smla_weight_storage weights;
    /* Length of `tensors`. */
    int32_t tensor_count;
    /* Weights in memory; other tensors of a model are ignored. Each is on the host or on the context's GPU
     * and complete when create is called. Only create reads the list and the names. A dense tensor of the
     * required dtype on the layer's device is borrowed: its memory must stay valid until the layer is
     * destroyed, and the layer uses its current contents. Create copies all others. */
    const smla_named_tensor* tensors;
    /* Text of a config.json instead of `config`. Only create reads it. */
    const char* config_json;
} smla_layer_args;

typedef int32_t smla_layer_kind;
enum {
    /* V3.2, GLM: runs an indexer, in GLM-5.3 over pools of tokens. */
    SMLA_LAYER_DSA = 0,
    /* GLM-5.2: attends to the selection of an earlier layer. */
    SMLA_LAYER_DSA_SHARED = 1,
    /* V4: window only. */
    SMLA_LAYER_SLIDING = 2,
    /* V4: window and selected entries, one per 4 tokens. */
    SMLA_LAYER_COMPRESSED_SPARSE = 3,
    /* V4: window and all entries. */
    SMLA_LAYER_HEAVILY_COMPRESSED = 4,
    /* V4.1: window and selected entries, which an earlier layer may have written or selected. */
    SMLA_LAYER_SHARED_SPARSE = 5
};

typedef struct smla_layer_info {
    uint32_t struct_size;
    smla_layer_kind kind;
    int32_t hidden_size;
    int32_t heads;
    /* Values of a KV row. */
    int32_t kv_width;
    /* Values of an index key, and how many keys are selected. 0: no indexer. */
    int32_t index_width;
    int32_t topk;
    /* V4: tokens of the window, and tokens per entry (GLM-5.3: per pool). Otherwise 0. */
    int32_t window;
    int32_t ratio;
    /* SMLA_GROUP_* bits of its caches. */
    int32_t plan_groups;
    /* Bytes of all weights, and of the weights in the caller's memory. */
    size_t weight_bytes;
    size_t borrowed_bytes;
    /* Numbers of the layers (possibly this one; -1: none) that write the compressed entries and index keys,
     * that select the attended rows, and that select the blocks that the indexer scores. */
    int32_t entries_of, selection_of, candidates_of;
    /* Number of blocks that candidates_of selects; 0 if there are none. */
    int32_t candidate_blocks;
    /* Number of query heads of the indexer, and the channel pairs that it rotates. All other rows rotate the
     * pairs (2i, 2i + 1). Both are 0 without an indexer. */
    int32_t index_heads;
    smla_rope_style index_rope_style;
    /* Number of rotated channels; 0 if there is no rotation. They are the last channels of query heads and KV
     * rows. In index queries and keys, V3.2 and GLM rotate the first channels, V4 and V4.1 the last. */
    int32_t rope_width;
    /* Base of the layer's rotation frequencies, in V4 and V4.1 rope_theta or compress_rope_theta; 0 if
     * there is no rotation. smla_config_rope_frequencies returns the frequencies, including YaRN. */
    double rope_theta;
    /* softmax_scale of smla_attend: (width of a query head before absorption)^-0.5, multiplied by the square
     * of YaRN's magnitude in models that have one, such as DeepSeek-V3.2. */
    double softmax_scale;
} smla_layer_info;

/* Describes layer args->layer of a config, without its weights. Reads config, config_json or, without both,
 * the config.json of checkpoint; ignores the other arguments. weight_bytes and borrowed_bytes are 0. The
 * caller sets info->struct_size. SMLA_UNSUPPORTED: the layer has linear attention. */
SMLA_API smla_status smla_config_layer_info(const smla_layer_args* args, smla_layer_info* info);
/* Writes the rotation frequencies of a layer to host memory, in radians per position, including YaRN, for the
 * stages that rotate. `count` must be rope_width / 2. args: as in smla_config_layer_info. */
SMLA_API smla_status smla_config_rope_frequencies(const smla_layer_args* args, int32_t count,
                                                  double* frequencies);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_MODEL_H */
