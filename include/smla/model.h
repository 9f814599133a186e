/* smla/model.h: attention layers of a model: arguments that open a layer, and the description of a layer
 * (kind, widths, softmax scale, rotation), which needs only config.json and no weights. */
#ifndef SMLA_MODEL_H
#define SMLA_MODEL_H

#include <smla/stages_linear.h>
#include <smla/types.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A weight in memory with its name in a checkpoint, such as "model.layers.0.self_attn.o_proj.weight". */
typedef struct smla_named_tensor {
    const char* name;
    smla_tensor tensor;
} smla_named_tensor;

/* Storage of a layer's matrices. Vectors, sinks and position biases are f32, or f64 with f64 activations. */
typedef int32_t smla_weight_storage;
enum {
    SMLA_WEIGHTS_CONVERTED = 0, /* Matrices are converted to the dtype of `activations`. */
    /* f32 and bf16 matrices keep their dtype, others are converted. Products widen bf16 when they read it, so
     * bf16 needs half the memory of f32. */
    SMLA_WEIGHTS_AS_STORED = 1
};

/* Arguments of a layer. Weights come either from `checkpoint` or from `tensors`. */
typedef struct smla_layer_args {
    uint32_t struct_size;
    int32_t layer; /* Number of the layer, from 0. */
    /* Folder (config.json, model.safetensors or shards), or a .safetensors file with a config. */
    const char* checkpoint;
    /* Path of a config.json or of its folder. Null means the checkpoint's folder. */
    const char* config;
    /* f32 (0), f64 (reference engine), or bf16: f32 that products round to bf16, except for `hidden`. */
    smla_dtype activations;
    /* Dtype of attention's queries: f32 (0), bf16, or f64 (0) with f64 activations. */
    smla_dtype queries;
    smla_weight_storage weights;
    int32_t tensor_count; /* Length of `tensors`. */
    /* Weights in memory; other tensors of a model are ignored. Each tensor must be complete, on the host or
     * on the context's GPU, when create is called. Only create reads the list and the names. A dense tensor
     * of the required dtype on the layer's device is borrowed: its memory must stay valid until the layer is
     * destroyed, and the layer uses its current contents. All other tensors are copied. */
    const smla_named_tensor* tensors;
    const char* config_json; /* Text of a config.json instead of `config`. Only create reads it. */
} smla_layer_args;

typedef int32_t smla_layer_kind;
enum {
    /* V3.2, GLM: selects with its own indexer; in GLM-5.3, the indexer selects pools of tokens. */
    SMLA_LAYER_DSA = 0,
    SMLA_LAYER_DSA_SHARED = 1, /* GLM-5.2: attends to the selection of an earlier layer. */
    SMLA_LAYER_SLIDING = 2,    /* V4: attends only to the window. */
    /* V4: attends to the window and to selected entries, one entry per 4 tokens. */
    SMLA_LAYER_COMPRESSED_SPARSE = 3,
    SMLA_LAYER_HEAVILY_COMPRESSED = 4, /* V4: attends to the window and to all entries. */
    /* V4.1: attends to the window and to entries that this or an earlier layer has written and selected. */
    SMLA_LAYER_SHARED_SPARSE = 5
};

typedef struct smla_layer_info {
    uint32_t struct_size;
    smla_layer_kind kind;
    int32_t hidden_size;
    int32_t heads;
    int32_t kv_width; /* Values per KV row. */
    /* Values per index key, and number of selected keys. 0 without an indexer. */
    int32_t index_width;
    int32_t topk;
    /* V4: tokens in the window, and tokens per entry (GLM-5.3: per pool). Otherwise 0. */
    int32_t window;
    int32_t ratio;
    int32_t plan_groups; /* Cache groups of the layer, as SMLA_GROUP_* bits. */
    /* Bytes of all weights, and of the weights that the layer borrows. */
    size_t weight_bytes;
    size_t borrowed_bytes;
    /* Numbers of the layers (possibly this one; -1: none) that write the compressed entries and index keys,
     * that select the attended rows, and that select the blocks that the indexer scores. */
    int32_t entries_of, selection_of, candidates_of;
    int32_t candidate_blocks; /* Number of blocks that candidates_of selects; 0 if there are none. */
    /* Number of query heads of the indexer, and the channel pairs that the indexer rotates. All other rows
     * rotate the pairs (2i, 2i + 1). Both fields are 0 without an indexer. */
    int32_t index_heads;
    smla_rope_style index_rope_style;
    /* Number of rotated channels; 0 if there is no rotation. The last channels of query heads and KV rows are
     * rotated. In index queries and keys, V3.2 and GLM rotate the first channels, V4 and V4.1 the last. */
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
 * caller sets info->struct_size. Returns SMLA_UNSUPPORTED if the layer has linear attention. */
SMLA_API smla_status smla_config_layer_info(const smla_layer_args* args, smla_layer_info* info);
/* Writes the rotation frequencies of a layer, in radians per position and including YaRN, to host memory, for
 * the stages that rotate. `count` must be rope_width / 2. `args` are as in smla_config_layer_info. */
SMLA_API smla_status smla_config_rope_frequencies(const smla_layer_args* args, int32_t count,
                                                  double* frequencies);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_MODEL_H */
