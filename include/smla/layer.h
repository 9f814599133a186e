/* smla/layer.h: complete attention layers of a checkpoint, from hidden states to hidden states. An inference
 * engine allocates its own caches and plan and calls smla_layer_forward; a session allocates both itself.
 * Letters in shapes: T tokens of a step, X hidden_size, R requests, MB columns of a block table. */
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

typedef struct smla_layer smla_layer; /* Any number of threads may use a layer concurrently. */

/* Reads a layer's weights. SMLA_DATA_ERROR lists every missing or misshapen tensor of the files or of
 * `tensors` in one error. The context must outlive the layer. */
SMLA_API smla_status smla_layer_create(smla_context* context, const smla_layer_args* args, smla_layer** out);
/* Destroys a layer, which may be null. */
SMLA_API void smla_layer_destroy(smla_layer* layer);
/* Fills `info`, whose struct_size the caller sets. */
SMLA_API smla_status smla_layer_get_info(const smla_layer* layer, smla_layer_info* info);

/* Cache that the caller owns. The format is NONE if the layer does not have this cache. */
typedef struct smla_layer_cache {
    smla_cache cache;
    /* Pages of each request, [R,MB] i32: the block table with which the plan was built. */
    smla_tensor block_table;
} smla_layer_cache;

typedef struct smla_layer_step {
    uint32_t struct_size;
    /* Upper bound of the step's seq_lens (V4: entries, GLM-5.3: pools). 0 means the plan's maximum. */
    int32_t max_columns;
    /* Plan built for this step, with the layer's groups, window, ratio and list_entries and the caches'
     * pages. */
    const smla_plan* plan;
    smla_tensor hidden; /* Input, [T,X] f32, bf16, f16 (f64). */
    smla_tensor out;    /* Output, [T,X] f32, bf16, f16 (f64). May be `hidden`. */
    /* Positions (V4: entries, GLM-5.3: pools) to attend to, [T,k] i32, ascending, then -1. Shared layers
     * require this tensor; layers that select nothing do not support it. Attention includes all listed
     * positions that the block table has, even positions of later tokens. */
    smla_tensor forced_topk;
    /* Optional output, [T,topk] i32: the selection, for layers that share it. Not written if forced_topk is
     * set or the layer has no indexer. */
    smla_tensor topk;
    smla_layer_cache primary, window, compressed, index, state, index_state;
    /* V4.1: candidate blocks of entries that the indexer scores, [T,B] i32, in any order, -1 for none.
     * Required without forced_topk if smla_layer_info.candidates_of is another layer. */
    smla_tensor candidates;
    /* Optional output, [T,B] i32, B = candidate_blocks. Only allowed if candidates_of is this layer. */
    smla_tensor best_blocks;
} smla_layer_step;

/* Writes the workspace bytes of a step with these shapes; data pointers may be null. `stage_budget` bounds
 * the scratch bytes of stages that can work in pieces (0: no bound). */
SMLA_API smla_status smla_layer_workspace_size(const smla_layer* layer, const smla_layer_step* step,
                                               size_t stage_budget, size_t* bytes);
/* Runs one step with a workspace from smla_workspace_init and the `stage_budget` of
 * smla_layer_workspace_size. An invalid step writes nothing. On a GPU, a step whose addresses recur is
 * recorded as a CUDA graph, which later steps launch with one call, unless SMLA_STEP_GRAPHS is 0 or the
 * stream is being captured. */
SMLA_API smla_status smla_layer_forward(const smla_layer* layer, const smla_layer_step* step,
                                        size_t stage_budget, smla_workspace workspace, smla_stream stream);

typedef struct smla_session smla_session;

typedef struct smla_session_args {
    uint32_t struct_size;
    smla_format kv_format; /* Format of KV rows; 0 means row_f32 (row_f64 with f64 activations). */
    /* Format of index keys; 0 means kv_format if that is a row format, otherwise index_fp8_132. */
    smla_format index_format;
    int32_t page_tokens;     /* Tokens per page; 0 means 64. */
    int32_t max_requests;    /* Largest number of requests; 0 means 1. */
    int32_t max_tokens;      /* Largest number of tokens per request; 0 means 4096. */
    int32_t max_step_tokens; /* Largest number of tokens of all requests in one step; 0 means 512. */
    float kv_scale;          /* Scale of fp8_576 and fp8_512, > 0. For other formats, 0 or 1. */
    size_t stage_budget;     /* Bound on the scratch bytes of a stage; 0 means the fastest size. */
    /* V4, GLM-5.3: tokens that smla_session_truncate may remove in addition to the last step. */
    int32_t rewind_tokens;
    smla_writer kv_writer; /* SMLA_WRITER_* bits of kv_format; 0 selects vLLM's rules. */
    /* Session of layer smla_layer_info.entries_of, if that is another layer. That session must run each step
     * first, with the requests in any order; steps after its destruction fail. smla_session_get_args returns
     * null. */
    smla_session* entries_of;
} smla_session_args;

typedef struct smla_step_request {
    int32_t request; /* 0 to max_requests - 1, at most once per step. */
    int32_t tokens;  /* Tokens that the request appends, 0 or more. */
} smla_step_request;

typedef struct smla_session_step {
    uint32_t struct_size;
    /* Length of `requests`. */
    int32_t request_count;
    const smla_step_request* requests;
    /* Input, [T,X] f32, bf16, f16 (f64): the tokens of the requests, one request after the other. */
    smla_tensor hidden;
    smla_tensor out; /* Output, [T,X] f32, bf16, f16 (f64). */
    /* Optional positions for RoPE, [T] i32 or i64. Default: the order in the request. */
    smla_tensor rope_positions;
    /* Positions to attend to, as in smla_layer_step, k <= topk. On the host, a position that its token does
     * not see is an error; in GPU memory, positions are not checked. */
    smla_tensor forced_topk;
    smla_tensor candidates; /* Candidate blocks, as in smla_layer_step. */
} smla_session_step;

/* Creates a session with its caches, plan and scratch. The layer must outlive the session. On a GPU, the
 * session runs on the default stream. A session serves one call at a time; a concurrent call returns
 * SMLA_INVALID_ARGUMENT. */
SMLA_API smla_status smla_session_create(const smla_layer* layer, const smla_session_args* args,
                                         smla_session** out);
/* Destroys a session, which may be null. */
SMLA_API void smla_session_destroy(smla_session* session);
/* Writes the arguments of the session, including defaults. The caller sets args->struct_size. */
SMLA_API smla_status smla_session_get_args(const smla_session* session, smla_session_args* args);
/* Runs one step. Tensors are on the host or on the context's device; if all are on a GPU, the call returns
 * when the step is queued. A step that fails or is cancelled changes no request. Allocates only lists. */
SMLA_API smla_status smla_session_forward(smla_session* session, const smla_session_step* step);
/* Returns the selection of the last step, if it had no forced_topk: [T,k] i32 on the host, valid until the
 * next step. ndim is 0 in layers without an indexer. */
SMLA_API smla_status smla_session_topk(const smla_session* session, smla_tensor* out);
/* Returns the candidate blocks that the layer selected: [T,B] i32 on the host, ndim 0 if it selects none. */
SMLA_API smla_status smla_session_candidates(const smla_session* session, smla_tensor* out);
/* Writes the number of tokens of a request. */
SMLA_API smla_status smla_session_length(const smla_session* session, int32_t request, int32_t* tokens);
/* Removes all tokens of a request and makes its pages available to other requests. */
SMLA_API smla_status smla_session_end_request(smla_session* session, int32_t request);
/* Removes all but the first `tokens` tokens of a request, after rejected speculation. The next step has the
 * same bits as if the removed tokens had never been added. V3.2 and GLM before 5.3 support any length. V4 and
 * GLM-5.3 keep window rows and compressor states only as far back as the last step needs: `tokens` may be 0,
 * or at least the length before that step minus rewind_tokens. A smaller value is an error if its pages have
 * been freed. Entries and pools that end in a removed token are computed again from the states. */
SMLA_API smla_status smla_session_truncate(smla_session* session, int32_t request, int32_t tokens);
/* Replaces the tokens of request `target` by the tokens of request `source`, in separate pages. */
SMLA_API smla_status smla_session_copy_request(smla_session* session, int32_t source, int32_t target);
/* Beam search: request i gets the tokens that request sources[i] had, for every i < count; other requests do
 * not change. A request may occur several times; only then are pages copied. */
SMLA_API smla_status smla_session_reorder(smla_session* session, const int32_t* sources, int32_t count);
/* Creates another session of the layer with the same requests. `args` may be null; fields of 0 are taken from
 * `session`. The maxima may differ if the requests fit; formats, page_tokens, kv_scale and kv_writer must not
 * differ. */
SMLA_API smla_status smla_session_clone(const smla_session* session, const smla_session_args* args,
                                        smla_session** out);
/* Changes the maxima, for example to exceed max_tokens, as if `session` were the clone. During the call, both
 * the old and the new caches need memory. */
SMLA_API smla_status smla_session_resize(smla_session* session, const smla_session_args* args);
/* Writes the bytes of the session's caches and of its scratch; each pointer may be null. */
SMLA_API smla_status smla_session_bytes(const smla_session* session, size_t* cache_bytes,
                                        size_t* workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_LAYER_H */
