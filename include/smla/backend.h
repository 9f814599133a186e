/* smla/backend.h: attention backends, the units that an inference engine plugs in. A backend has a name, the
 * types and shapes that it supports, a cache shape, metadata built once per step, and a forward called once
 * per layer. Names, fields and rules are those of the published backends: docs/backends has a table for each.
 * A backend serves one kind of layer: V3.2 and GLM-5.x (SMLA_FAMILY_DSA), or one compression ratio of V4
 * (SMLA_FAMILY_HYBRID) or V4.1 (SMLA_FAMILY_HYBRID_SHARED). Layers of a kind share one metadata. "DSA:" and
 * "HYBRID:" say whose a field is; "HYBRID:" means V4 and V4.1. */
#ifndef SMLA_BACKEND_H
#define SMLA_BACKEND_H

#include <smla/context.h>
#include <smla/plan.h>
#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_family;
enum { SMLA_FAMILY_DSA = 0, SMLA_FAMILY_HYBRID = 1, SMLA_FAMILY_HYBRID_SHARED = 2 };

/* A device, real or only described. */
typedef struct smla_device_info {
    uint32_t struct_size;
    smla_device_type type;
    /* GPU: 10 * major + minor, 90 for sm_90. */
    int32_t capability;
    /* CPU: threads. 0: unknown, here and below. */
    int32_t multiprocessors;
    int64_t memory_bytes;
} smla_device_info;

/* Describes a device by name: "cpu" (the threads of this machine) or a compute capability such as "sm_90" (a
 * common GPU of that capability, present or not). Any other name is an error that lists the names. */
SMLA_API smla_status smla_describe_device(const char* name, smla_device_info* out);

/* Features that no backend supports: setting any bit is an error. */
enum {
    SMLA_WANTS_ALIBI = 1,
    SMLA_WANTS_SLIDING_WINDOW = 2, /* besides V4's own */
    SMLA_WANTS_SOFT_CAP = 4,
    SMLA_WANTS_ENCODER = 8, /* any attention type but decoder self-attention */
    SMLA_WANTS_FUSED_OUTPUT_QUANT = 16
};

typedef struct smla_backend_args {
    uint32_t struct_size;
    smla_family family;
    /* "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla" or a record format. "auto" (null): the
     * backend's default; if that is row_bf16, queries of f32 and f64 use row_f32 and row_f64. */
    const char* kv_cache_dtype;
    /* Dtype of the queries: bf16 (0), f16, f32, f64 (reference), e4m3 (HYBRID, per-tensor caches). */
    smla_dtype dtype;
    /* SMLA_WANTS_* bits. */
    int32_t wants;
    /* Query heads on this device. */
    int32_t heads;
    /* DSA; 0: 512. */
    int32_t kv_lora_rank;
    /* 0: 64; -1: none. */
    int32_t rope_dim;
    /* DSA: query channels without rope, before absorption; 0: 128. */
    int32_t nope_dim;
    /* DSA; 0: 128. */
    int32_t v_head_dim;
    /* HYBRID; 0: 512. */
    int32_t head_dim;
    /* Smallest tokens per page of host batches; 0: the backend's default. HYBRID: of compressed groups. */
    int32_t page_tokens;
    /* HYBRID; 0: 64, V4.1 32. */
    int32_t window_page_tokens;
    /* index_topk of the model; 0: no indexer. */
    int32_t topk;
    /* HYBRID: tokens; 0: 128. */
    int32_t window;
    /* HYBRID: 0 or 1 (window only), 4, 128; V4.1: 0 (window only), 1, 2. DSA: index_kpool, 0 or 1. */
    int32_t ratio;
    /* The next four: as in smla_plan_args. */
    int32_t max_tokens;
    int32_t max_requests;
    int32_t max_seq_len;
    int32_t speculative_tokens;
    /* More groups for the metadata: SMLA_GROUP_INDEX; HYBRID: STATE and INDEX_STATE, too. */
    int32_t plan_groups;
    /* 1: as in smla_plan_args. */
    int32_t batch_invariant;
    /* Softmax scale of attention: > 0, also after rounding to f32; there is no default. */
    double softmax_scale;
    /* Scale of e4m3 queries; 0 means 1. */
    double q_scale;
    /* Scale of per-tensor caches that set no scale. Other formats: 0 or 1. */
    double kv_scale;
    /* Bound on the logits of one chunk of indexer prefill; 0 means 512 MiB. */
    int64_t max_logits_bytes;
    /* struct_size 0: what the backend's context runs on; without a context, this processor. Else its size. */
    smla_device_info device;
    /* Allocator for the metadata. If all members are null, malloc is used. */
    smla_allocator allocator;
    /* Precision of attention, as in smla_attend_args; 0 means exact. */
    smla_precision precision;
    int32_t reserved;
} smla_backend_args;

/* Names of all backends, in the order of the library; they live for ever. */
SMLA_API smla_status smla_backend_list(const char* const** names, int32_t* count);

/* Why a backend cannot serve the arguments, one reason per line, into buffer[*bytes]; an empty text: it can.
 * *bytes becomes the length with its zero; a null buffer only asks for the length. `original` 1: what the
 * published backend's own gate would say. */
SMLA_API smla_status smla_backend_why_not(const char* name, const smla_backend_args* args, int32_t original,
                                          char* buffer, size_t* bytes);

/* Which backend serves the arguments, and why not the others: JSON text into buffer[*bytes], as above.
 * `wanted`, or if that is null the environment variable SMLA_BACKEND, forces one by name or alias. */
SMLA_API smla_status smla_backend_select(const smla_backend_args* args, const char* wanted, char* buffer,
                                         size_t* bytes);

typedef struct smla_backend smla_backend; /* Any number of threads may use a backend at once. */
/* Serves one build, or any number of readers, at a time; any other call gets SMLA_INVALID_ARGUMENT. */
typedef struct smla_backend_metadata smla_backend_metadata;

/* `name` null: selected as above. Logs one line with the choice. The context outlives the backend, the
 * backend its metadata. SMLA_UNSUPPORTED: no backend, or not the named one, can serve the arguments.
 * SMLA_INVALID_ARGUMENT: no backend has the name; args.device is not of the context's kind. */
SMLA_API smla_status smla_backend_create(smla_context* context, const char* name,
                                         const smla_backend_args* args, smla_backend** out);
SMLA_API void smla_backend_destroy(smla_backend* backend);

typedef int32_t smla_graph_support;
enum {
    SMLA_GRAPH_NEVER = 0,
    /* Steps of decodes with one query length can be captured and replayed. */
    SMLA_GRAPH_UNIFORM_DECODE = 1,
    /* Steps of requests with any one query length. */
    SMLA_GRAPH_UNIFORM_BATCH = 2,
    SMLA_GRAPH_ALWAYS = 3
};

typedef struct smla_backend_info {
    uint32_t struct_size;
    smla_family family;
    const char* name;
    /* The name of `format`: what "auto" and aliases stand for. */
    const char* kv_cache_dtype;
    smla_format format;
    /* Values of a record. */
    int32_t head_size;
    int32_t page_tokens, window_page_tokens;
    /* Requests of at most so many query tokens are decodes. */
    int32_t reorder_threshold;
    /* Heads that the published kernel wants; any number is accepted here. */
    int32_t padded_heads;
    smla_graph_support graph_support;
    /* HYBRID: of the compressed cache, `format` is the window's. NONE: the layer has no compressed cache. */
    smla_format compressed_format;
} smla_backend_info;
SMLA_API smla_status smla_backend_get_info(const smla_backend* backend, smla_backend_info* info);

typedef struct smla_cache_shape {
    uint32_t struct_size;
    /* u8 where the record holds scales, e4m3 with one scale per cache, else the type of the values. */
    smla_dtype dtype;
    /* [pages, rows of a page (COMPRESSED: page_tokens / ratio), a record's elements of dtype]. */
    int64_t shape[3];
    /* With the alignment of the published caches. */
    int64_t page_stride_bytes;
    int64_t bytes;
} smla_cache_shape;
/* The cache of `pages` pages. `group`: SMLA_GROUP_PRIMARY, WINDOW or COMPRESSED. */
SMLA_API smla_status smla_backend_cache_shape(const smla_backend* backend, int32_t group, int64_t pages,
                                              smla_cache_shape* out);

/* Buffers for the maxima. A build changes contents, never addresses, and allocates nothing. */
SMLA_API smla_status smla_backend_metadata_create(const smla_backend* backend, smla_backend_metadata** out);
SMLA_API void smla_backend_metadata_destroy(smla_backend_metadata* metadata);

/* Computes the metadata of a step. An invalid batch changes nothing. All tensors of a batch must be on the
 * host, or all on the context's GPU. With a GPU, fields are in its memory and change in the order of
 * batch.stream; numbers stay on the host.
 *
 * A batch on the host may be changed or freed when the call returns: block_table fields show copies, without
 * columns past max_seq_len. Its tables must have the pages that smla_plan_build requires, not smaller than
 * the backend's pages. With a GPU, a build queues kernels that read one of two pinned buffers, so the host
 * waits only for the build before the last. It cannot be captured: capture a forward, then build before each
 * replay. The graph serves later steps of the same T, decode tokens and page sizes.
 *
 * For a batch on the GPU, the host waits for nothing, and the build may be captured in a graph. Replays use
 * the tensors' current contents, but T, R, addresses and numbers as captured. Tensors must stay valid until
 * that work has finished; block tables, which the block_table fields show, until the last forward of the step
 * has. The batch contains the numbers that the host does not read (decodes and the following). max_query_len,
 * max_seq_len and *_max_q_len are then bounds, prefill.has_context is 1 with any prefill, wrong numbers make
 * padding, indexer.prefill_chunks is empty, and forward attends in one call. */
SMLA_API smla_status smla_backend_metadata_build(smla_backend_metadata* metadata,
                                                 const smla_plan_batch* batch);

/* Returns a field by the original's name ("swa.decode_swa_lens"), or field NAME of smla/plan.h by the name
 * "plan.NAME". Numbers are i32 [1]. Shapes are those of the last build. */
SMLA_API smla_status smla_backend_metadata_field(const smla_backend_metadata* metadata, const char* name,
                                                 smla_tensor* out);
SMLA_API smla_status smla_backend_metadata_fields(const smla_backend_metadata* metadata,
                                                  const char* const** names, int32_t* count);

/* One layer's step. N rows, the step's tokens first; rows behind them are neither read nor written. */
typedef struct smla_backend_forward_args {
    uint32_t struct_size;
    int32_t reserved;
    /* Bytes of scratch that a stage keeps within, where it can; 0: no bound. */
    size_t stage_budget;
    /* Null: warm-up; out becomes 0 and caches stay as they are. */
    const smla_backend_metadata* metadata;
    /* DSA: [N,H,nope + rope], rope rotated (without w_uk_t [N,H,latent + rope]). HYBRID: [N,H,D], rotated. */
    smla_tensor q;
    /* DSA, optional, [N,H,rope]: q comes as a pair; then q is [N,H,latent], absorbed already. */
    smla_tensor q_pe;
    /* Optional: the cache is written already. DSA: [N,latent], normed. HYBRID: [N,D], rotated. */
    smla_tensor k_c;
    /* DSA, with k_c: [N,rope] or [N,1,rope], rotated. */
    smla_tensor k_pe;
    /* [N,K] i32, any K: positions (HYBRID: entries) of the request. HYBRID: ratios 4, and V4.1's 1 and 2. */
    smla_tensor topk_indices;
    /* DSA: [H,nope,latent]; absent: q is absorbed already. */
    smla_tensor w_uk_t;
    /* DSA: [H,latent,v]; absent: out is the attended latent. */
    smla_tensor w_uv;
    /* HYBRID, optional: [>=H]. */
    smla_tensor sink;
    /* DSA: [N,H * v] or [N,H,v] (v: latent without w_uv). HYBRID: [N,>=H,D], others 0; bf16 for e4m3. */
    smla_tensor out;
    /* Optional: [N,H]. */
    smla_tensor lse;
    /* Unsupported; must be absent. */
    smla_tensor output_scale, output_block_scale;
    /* DSA: the cache. HYBRID: the compressed one. pages 0: there is none yet and nothing is written. */
    smla_cache kv_cache;
    /* HYBRID: the cache of the window. Both have the pages of the metadata; page_rows 0: theirs. */
    smla_cache swa_cache;
} smla_backend_forward_args;

/* Workspace of a call with these shapes. Data and metadata are not looked at. Never shrinks when N grows. */
SMLA_API smla_status smla_backend_workspace_size(const smla_backend* backend,
                                                 const smla_backend_forward_args* args, size_t* bytes);
/* Writes the step's tokens to the cache and attends. An invalid step writes nothing. On a GPU the step may be
 * recorded as a CUDA graph: see smla_layer_forward. */
SMLA_API smla_status smla_backend_forward(const smla_backend* backend, const smla_backend_forward_args* args,
                                          smla_workspace workspace, smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_BACKEND_H */
