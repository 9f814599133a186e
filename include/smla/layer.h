/* smla/layer.h: complete attention layers of a checkpoint: hidden states in, hidden states out.
 * An inference engine brings its own caches and plan and calls smla_layer_forward. A session brings both.
 * Letters in shapes: T tokens of a step, X hidden_size, R requests, MB pages of a block table's row. */
#ifndef SMLA_LAYER_H
#define SMLA_LAYER_H

#include <smla/context.h>
#include <smla/model.h>
#include <smla/plan.h>
#include <smla/stages.h>
#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_layer smla_layer; /* Any number of threads may use a layer at once. */

/* Reads a layer's weights. SMLA_DATA_ERROR lists every missing or misshapen tensor in one error, those of
 * `tensors` too. The context must outlive the layer. */
SMLA_API smla_status smla_layer_create(smla_context* context, const smla_layer_args* args, smla_layer** out);
/* Null is allowed. */
SMLA_API void smla_layer_destroy(smla_layer* layer);
/* Fills `info`, whose struct_size the caller has set. */
SMLA_API smla_status smla_layer_get_info(const smla_layer* layer, smla_layer_info* info);

/* A cache that the caller owns. Format NONE where the layer has none. */
typedef struct smla_layer_cache {
    smla_cache cache;
    /* [R,MB] i32: pages of each request, as the plan was built with. */
    smla_tensor block_table;
} smla_layer_cache;

typedef struct smla_layer_step {
    uint32_t struct_size;
    /* Bound of the longest seq_len of the step (V4: its entries, GLM-5.3: pools). 0: the plan's maximum. */
    int32_t max_columns;
    /* Built for this step, with the layer's groups, window, ratio and list_entries, and the caches' pages. */
    const smla_plan* plan;
    /* [T,X] f32, bf16, f16 (f64). */
    smla_tensor hidden;
    /* [T,X] f32, bf16, f16 (f64): written. May be `hidden`. */
    smla_tensor out;
    /* [T,k] i32, ascending, -1 last: positions (V4: entries, GLM-5.3: pools) to attend to. Shared layers need
     * it, layers that select nothing refuse it. The numbers are followed as they stand, also to later tokens;
     * those outside of the block table are left out. */
    smla_tensor forced_topk;
    /* [T,topk] i32, optional, written: the selection, for layers that share it. Untouched where forced_topk
     * is given and in layers without an indexer. */
    smla_tensor topk;
    smla_layer_cache primary, window, compressed, index, state, index_state;
    /* V4.1, [T,B] i32: the blocks of entries that the layer's indexer looks at, in any order, -1 for none.
     * Needed without forced_topk where smla_layer_info.candidates_of names another layer. */
    smla_tensor candidates;
    /* [T,B] i32, B = candidate_blocks, optional, written; refused unless candidates_of is this layer. */
    smla_tensor best_blocks;
} smla_layer_step;

/* Bytes of workspace that a step of these shapes needs; data pointers may be null. Stages keep their scratch
 * within `stage_budget` bytes where they can (0: no bound). */
SMLA_API smla_status smla_layer_workspace_size(const smla_layer* layer, const smla_layer_step* step,
                                               size_t stage_budget, size_t* bytes);
/* Runs one step. `workspace` was initialised by smla_workspace_init; `stage_budget` is that of the size. A
 * refused step writes nothing. On a GPU a step whose addresses come again is recorded as a CUDA graph, which
 * later ones launch with one call, unless SMLA_STEP_GRAPHS is 0 or the stream is being captured. */
SMLA_API smla_status smla_layer_forward(const smla_layer* layer, const smla_layer_step* step,
                                        size_t stage_budget, smla_workspace workspace, smla_stream stream);

typedef struct smla_session smla_session;

typedef struct smla_session_args {
    uint32_t struct_size;
    /* 0: row_f32 (row_f64 with f64 activations). */
    smla_format kv_format;
    /* 0: kv_format if that is a row format, else index_fp8_132. */
    smla_format index_format;
    /* Tokens per page. 0: 64. */
    int32_t page_tokens;
    /* 0: 1. */
    int32_t max_requests;
    /* Tokens that a request may hold. 0: 4096. */
    int32_t max_tokens;
    /* Tokens of all requests in one step. 0: 512. */
    int32_t max_step_tokens;
    /* Scale of fp8_576 and fp8_512, which must be above 0. Other formats: 0 or 1. */
    float kv_scale;
    /* Bytes of scratch that a stage may use. 0: as much as pays. */
    size_t stage_budget;
    /* V4, GLM-5.3: tokens that smla_session_truncate may take off beyond those of the last step. */
    int32_t rewind_tokens;
    /* SMLA_WRITER_* bits of kv_format: how its records are written. 0: as vLLM does. */
    smla_writer kv_writer;
    /* The session of layer smla_layer_info.entries_of, if that is another one. It runs each step first, with
     * requests in any order; steps after its end are refused. smla_session_get_args gives null. */
    smla_session* entries_of;
} smla_session_args;

typedef struct smla_step_request {
    /* 0 to max_requests - 1, each at most once in a step. */
    int32_t request;
    /* Tokens that the request appends, 0 or more. */
    int32_t tokens;
} smla_step_request;

typedef struct smla_session_step {
    uint32_t struct_size;
    /* Length of `requests`. */
    int32_t request_count;
    const smla_step_request* requests;
    /* [T,X] f32, bf16, f16 (f64): the requests' tokens one after the other. */
    smla_tensor hidden;
    /* [T,X] f32, bf16, f16 (f64): written. */
    smla_tensor out;
    /* [T] i32 or i64, optional: what RoPE follows. Absent: the order in the request. */
    smla_tensor rope_positions;
    /* As in smla_layer_step, k at most topk. On the host, numbers that a token does not see are refused;
     * those in a GPU's memory are not looked at. */
    smla_tensor forced_topk;
    /* As in smla_layer_step. */
    smla_tensor candidates;
} smla_session_step;

/* Creates a session with its caches, plan and scratch. The layer must outlive it. On a GPU it runs on the
 * default stream. A session serves one call at a time; a concurrent call returns SMLA_INVALID_ARGUMENT. */
SMLA_API smla_status smla_session_create(const smla_layer* layer, const smla_session_args* args,
                                         smla_session** out);
/* Null is allowed. */
SMLA_API void smla_session_destroy(smla_session* session);
/* What the session was made with, defaults filled in. The caller has set args->struct_size. */
SMLA_API smla_status smla_session_get_args(const smla_session* session, smla_session_args* args);
/* Runs one step. Tensors lie on the host or on the context's device; if all lie on a GPU, the call returns
 * when the step is queued. A step that fails or is cancelled changes no request. Allocates only lists. */
SMLA_API smla_status smla_session_forward(smla_session* session, const smla_session_step* step);
/* Selection of the last step, if it had no forced_topk: [T,k] i32 on the host, valid until the next step.
 * ndim 0 in layers without an indexer. */
SMLA_API smla_status smla_session_topk(const smla_session* session, smla_tensor* out);
/* Likewise the blocks that the layer named: [T,B] i32, ndim 0 in layers that name none. */
SMLA_API smla_status smla_session_candidates(const smla_session* session, smla_tensor* out);
/* Tokens that a request holds. */
SMLA_API smla_status smla_session_length(const smla_session* session, int32_t request, int32_t* tokens);
/* Forgets all tokens of a request; its pages serve others. */
SMLA_API smla_status smla_session_end_request(smla_session* session, int32_t request);
/* Forgets all but the first `tokens` tokens of a request, after rejected speculation. The next step has the
 * bits of a session that never saw the others. V3.2 and GLM before 5.3: any length. V4 and GLM-5.3 hold
 * window rows and compressor states only as far back as the last step reached: 0, or at least the length
 * before it less rewind_tokens; a shorter one is refused once its pages went back. Entries and pools stay but
 * for those that end in a forgotten token, which the states make again when that position comes again. */
SMLA_API smla_status smla_session_truncate(smla_session* session, int32_t request, int32_t tokens);
/* Request `target` drops what it holds and holds what `source` holds, in pages of its own. */
SMLA_API smla_status smla_session_copy_request(smla_session* session, int32_t source, int32_t target);
/* Beam search: request i holds what request sources[i] held before, for every i < count; others stay. A
 * request may be named often; pages are copied only then. */
SMLA_API smla_status smla_session_reorder(smla_session* session, const int32_t* sources, int32_t count);
/* Makes another session of the layer with the same requests. args may be null; fields of 0 are those of
 * `session`. The maxima may differ if the requests fit, formats, page_tokens, kv_scale, kv_writer may not. */
SMLA_API smla_status smla_session_clone(const smla_session* session, const smla_session_args* args,
                                        smla_session** out);
/* Other maxima, to grow beyond max_tokens, as if `session` were the clone. The call holds both caches. */
SMLA_API smla_status smla_session_resize(smla_session* session, const smla_session_args* args);
/* Bytes of its caches and of its scratch; each pointer may be null. */
SMLA_API smla_status smla_session_bytes(const smla_session* session, size_t* cache_bytes,
                                        size_t* workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_LAYER_H */
