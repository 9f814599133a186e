/* smla/layer.h: complete attention layers of a checkpoint: hidden states in, hidden states out.
 * An inference engine brings its own caches and plan and calls smla_layer_forward. A session brings both with
 * it. */
#ifndef SMLA_LAYER_H
#define SMLA_LAYER_H

#include <smla/context.h>
#include <smla/plan.h>
#include <smla/stages.h>
#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_layer_args {
    uint32_t struct_size;
    int32_t layer;
    const char* checkpoint; /* folder (config.json, model.safetensors or shards), or a .safetensors file with
                               `config` */
    const char* config;     /* path of a config.json; null: the checkpoint folder's */
    smla_dtype activations; /* f32 (0), or f64 with the reference engine */
    smla_dtype queries;     /* what attention multiplies with: f32 (0), bf16, or f64 with f64 activations */
} smla_layer_args;

typedef int32_t smla_layer_kind;
enum {
    SMLA_LAYER_DSA = 0,               /* V3.2, GLM: with an indexer of its own */
    SMLA_LAYER_DSA_SHARED = 1,        /* GLM-5.2: attends to the selection of an earlier layer */
    SMLA_LAYER_SLIDING = 2,           /* V4: window only */
    SMLA_LAYER_COMPRESSED_SPARSE = 3, /* V4: window and selected entries, one per 4 tokens */
    SMLA_LAYER_HEAVILY_COMPRESSED = 4 /* V4: window and all entries */
};

typedef struct smla_layer_info {
    uint32_t struct_size;
    smla_layer_kind kind;
    int32_t hidden_size, heads;
    int32_t kv_width;          /* values of a KV row */
    int32_t index_width, topk; /* 0: no indexer */
    int32_t window, ratio;     /* V4; else 0 */
    int32_t plan_groups;       /* SMLA_PLAN_* bits of the caches that it has */
} smla_layer_info;

typedef struct smla_layer smla_layer;

/* Every missing or misshapen tensor is listed in one error. The context must outlive the layer. */
SMLA_API smla_status smla_layer_open(smla_context* context, const smla_layer_args* args, smla_layer** out);
SMLA_API void smla_layer_close(smla_layer* layer);
SMLA_API smla_status smla_layer_get_info(const smla_layer* layer, smla_layer_info* info);

/* A cache that the caller owns and the table of its pages; format NONE where the layer has none. */
typedef struct smla_layer_cache {
    smla_cache cache;
    smla_tensor block_table; /* [R,MB] i32, as the plan was built with */
} smla_layer_cache;

typedef struct smla_layer_step {
    uint32_t struct_size;
    int32_t max_columns;     /* bound of the longest seq_len of the step (V4: of its entries); 0: the plan's
                                maximum */
    const smla_plan* plan;   /* built for this step, with the layer's groups */
    smla_tensor hidden;      /* [T,X] f32, bf16, f16 (f64) */
    smla_tensor out;         /* [T,X] f32, bf16, f16 (f64) */
    smla_tensor forced_topk; /* [T,k] i32, ascending, -1 last: positions (entries) to attend to; shared layers
                                need it, layers that select nothing refuse it. Attended to as they stand:
                                later tokens' too, and those outside of the block table are left out */
    smla_tensor topk;        /* optional out [T,topk] i32: the selection, for layers that share it. Stays as
                                it is with forced_topk, and in layers without an indexer */
    smla_layer_cache primary, window, compressed, index, state, index_state;
} smla_layer_step;

/* A refused step writes nothing. Sizes from shapes alone; stages keep their scratch within `stage_budget`
 * where they can (0: no bound). */
SMLA_API smla_status smla_layer_workspace_size(const smla_layer* layer, const smla_layer_step* step,
                                               size_t stage_budget, size_t* bytes);
SMLA_API smla_status smla_layer_forward(const smla_layer* layer, const smla_layer_step* step,
                                        size_t stage_budget, smla_workspace workspace, smla_stream stream);

typedef struct smla_session_args {
    uint32_t struct_size;
    smla_format kv_format;    /* 0: row_f32 (row_f64 with f64 activations) */
    smla_format index_format; /* 0: as kv_format if that is a row format, else index_fp8_132 */
    int32_t page_tokens;      /* 0: 64 */
    int32_t max_requests;     /* 0: 1 */
    int32_t max_tokens;       /* per request; 0: 4096 */
    int32_t max_step_tokens;  /* of all requests in a step; 0: 512 */
    float kv_scale;           /* per-tensor formats; 0: 1 */
    size_t stage_budget;      /* bytes of scratch a stage may use; 0: as much as pays */
} smla_session_args;

typedef struct smla_step_request {
    int32_t request; /* 0 to max_requests - 1, each at most once in a step */
    int32_t tokens;  /* query tokens, 0 or more */
} smla_step_request;

typedef struct smla_session_step {
    uint32_t struct_size;
    int32_t request_count;
    const smla_step_request* requests;
    smla_tensor hidden;         /* [T,X]: the requests' tokens one after the other */
    smla_tensor out;            /* [T,X] */
    smla_tensor rope_positions; /* [T] i32 or i64, optional: the order in the request */
    smla_tensor forced_topk;    /* as in smla_layer_step, k at most topk. What a token does not see is refused
                                   on the host; in a GPU's memory nobody looks */
} smla_session_step;

typedef struct smla_session smla_session;

/* A session serves one call at a time; its layer must outlive it. Caches, plan and scratch are made by create
 * alone; a step takes small lists from the heap. Tensors of a step lie on the host or on the context's
 * device; a GPU works in its default stream. */
SMLA_API smla_status smla_session_create(const smla_layer* layer, const smla_session_args* args,
                                         smla_session** out);
SMLA_API void smla_session_destroy(smla_session* session);
SMLA_API smla_status smla_session_forward(smla_session* session, const smla_session_step* step);
/* Selection of the last step (one without forced_topk), [T,k] i32, valid until the next; absent (ndim 0)
 * without an indexer. */
SMLA_API smla_status smla_session_topk(const smla_session* session, smla_tensor* out);
/* Tokens that a request holds; its pages go back when it ends. */
SMLA_API smla_status smla_session_length(const smla_session* session, int32_t request, int32_t* tokens);
SMLA_API smla_status smla_session_end_request(smla_session* session, int32_t request);
SMLA_API smla_status smla_session_bytes(const smla_session* session, size_t* cache_bytes,
                                        size_t* workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_LAYER_H */
