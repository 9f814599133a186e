/* smla/backend.h: attention backends, the units that an inference engine plugs in. A backend has a name,
 * supported types and shapes, a cache shape, metadata built once per step, and a forward call per layer.
 * Names, fields and rules follow the published backends; docs/backends has a table for each. A backend
 * serves one kind of layer: V3.2 and GLM-5.x (SMLA_FAMILY_DSA), or one compression ratio of V4
 * (SMLA_FAMILY_HYBRID) or V4.1 (SMLA_FAMILY_HYBRID_SHARED). All layers of one kind share one metadata object.
 * "DSA:" and "HYBRID:" mark fields of one family; "HYBRID:" means V4 and V4.1. */
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

/* Description of a device, which need not be present. */
typedef struct smla_device_info {
    uint32_t struct_size;
    smla_device_type type;
    int32_t capability; /* GPU: compute capability 10 * major + minor, such as 90 for sm_90. */
    /* Multiprocessors of a GPU, or threads of a CPU. 0 means unknown, also in memory_bytes. */
    int32_t multiprocessors;
    int64_t memory_bytes;
} smla_device_info;

/* Describes a device by name: "cpu" (the threads of this machine) or a compute capability such as "sm_90" (a
 * common GPU of that capability, present or not). For any other name, the error lists the valid names. */
SMLA_API smla_status smla_describe_device(const char* name, smla_device_info* out);

/* Features that no backend supports; setting one of these bits is an error. */
enum {
    SMLA_WANTS_ALIBI = 1,
    SMLA_WANTS_SLIDING_WINDOW = 2, /* any sliding window except V4's */
    SMLA_WANTS_SOFT_CAP = 4,
    SMLA_WANTS_ENCODER = 8, /* any attention except decoder self-attention */
    SMLA_WANTS_FUSED_OUTPUT_QUANT = 16
};

typedef struct smla_backend_args {
    uint32_t struct_size;
    smla_family family;
    /* "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla" or a record format. "auto" (null) selects
     * the backend's default; if that is row_bf16, f32 and f64 queries use row_f32 and row_f64. */
    const char* kv_cache_dtype;
    /* Dtype of the queries: bf16 (0), f16, f32, f64 (reference), e4m3 (HYBRID, per-tensor caches). */
    smla_dtype dtype;
    int32_t wants;        /* Unsupported features, as SMLA_WANTS_* bits. */
    int32_t heads;        /* Query heads on this device. */
    int32_t kv_lora_rank; /* DSA: width of the latent; 0 means 512. */
    int32_t rope_dim;     /* Number of rotated channels; 0 means 64, -1 means none. */
    int32_t nope_dim;     /* DSA: query channels without rope, before absorption; 0 means 128. */
    int32_t v_head_dim;   /* DSA: value channels per head; 0 means 128. */
    int32_t head_dim;     /* HYBRID: width of a head; 0 means 512. */
    /* Smallest number of tokens per page of host batches; 0: the default. HYBRID: of compressed groups. */
    int32_t page_tokens;
    int32_t window_page_tokens; /* HYBRID: tokens per page of the window cache; 0 means 64 (V4.1: 32). */
    int32_t topk;               /* index_topk of the model; 0 means no indexer. */
    int32_t window;             /* HYBRID: tokens in the window; 0 means 128. */
    /* HYBRID: 0 or 1 (window only), 4, 128; V4.1: 0 (window only), 1, 2. DSA: index_kpool, or 0. */
    int32_t ratio;
    /* This and the next three fields are as in smla_plan_args. */
    int32_t max_tokens;
    int32_t max_requests;
    int32_t max_seq_len;
    int32_t speculative_tokens;
    /* Additional groups in the metadata: SMLA_GROUP_INDEX; HYBRID: STATE and INDEX_STATE as well. */
    int32_t plan_groups;
    int32_t batch_invariant; /* 1 selects the batch-invariant schedule of smla_plan_args. */
    /* Softmax scale of attention, > 0, also after rounding to f32. There is no default. */
    double softmax_scale;
    double q_scale; /* Scale of e4m3 queries; 0 means 1. */
    /* Scale of per-tensor caches that set no scale. For other formats, 0 or 1. */
    double kv_scale;
    int64_t max_logits_bytes; /* Bound on the logits of one chunk of indexer prefill; 0 means 512 MiB. */
    /* Device of the backend. struct_size 0: the context's device or, without a context, this processor. */
    smla_device_info device;
    smla_allocator allocator; /* Allocator for the metadata. If all members are null, malloc is used. */
    smla_precision precision; /* Precision of attention, as in smla_attend_args; 0 means exact. */
    int32_t reserved;
} smla_backend_args;

/* Writes the names of all backends, as static strings, in the order of the library. */
SMLA_API smla_status smla_backend_list(const char* const** names, int32_t* count);

/* Writes the reasons why a backend cannot serve the arguments to buffer[*bytes], one per line. The text is
 * empty if the backend can serve them. Writes the length with the final zero to *bytes, and nothing else if
 * `buffer` is null. If `original` is 1, applies the checks of the published backend. */
SMLA_API smla_status smla_backend_why_not(const char* name, const smla_backend_args* args, int32_t original,
                                          char* buffer, size_t* bytes);

/* Writes which backend serves the arguments, and why the others cannot, as JSON text to buffer[*bytes], as
 * above. `wanted`, or if that is null the environment variable SMLA_BACKEND, requires a name or an alias. */
SMLA_API smla_status smla_backend_select(const smla_backend_args* args, const char* wanted, char* buffer,
                                         size_t* bytes);

typedef struct smla_backend smla_backend; /* Any number of threads may use a backend concurrently. */
/* A metadata object serves one build, or any number of readers, at a time; other calls return
 * SMLA_INVALID_ARGUMENT. */
typedef struct smla_backend_metadata smla_backend_metadata;

/* Creates the backend `name` or, if null, the selected one, and logs the choice. The context must outlive the
 * backend, and the backend its metadata. SMLA_UNSUPPORTED: no backend, or not the named one, can serve the
 * arguments. SMLA_INVALID_ARGUMENT: the name is unknown; args.device is not of the context's kind. */
SMLA_API smla_status smla_backend_create(smla_context* context, const char* name,
                                         const smla_backend_args* args, smla_backend** out);
SMLA_API void smla_backend_destroy(smla_backend* backend);

typedef int32_t smla_graph_support;
enum {
    SMLA_GRAPH_NEVER = 0,
    SMLA_GRAPH_UNIFORM_DECODE = 1, /* Steps of decodes with one query length can be captured. */
    /* Steps in which all requests have the same query length can be captured. */
    SMLA_GRAPH_UNIFORM_BATCH = 2,
    SMLA_GRAPH_ALWAYS = 3
};

typedef struct smla_backend_info {
    uint32_t struct_size;
    smla_family family;
    const char* name;
    /* Name of `format`, which "auto" and aliases select. */
    const char* kv_cache_dtype;
    smla_format format;
    /* Values per record. */
    int32_t head_size;
    int32_t page_tokens, window_page_tokens;
    int32_t reorder_threshold; /* Requests of at most this many query tokens are decodes. */
    /* Number of heads that the published kernel requires; here, any number is accepted. */
    int32_t padded_heads;
    smla_graph_support graph_support;
    /* HYBRID: format of the compressed cache (`format` is the window's); NONE if the layer has none. */
    smla_format compressed_format;
} smla_backend_info;
SMLA_API smla_status smla_backend_get_info(const smla_backend* backend, smla_backend_info* info);

typedef struct smla_cache_shape {
    uint32_t struct_size;
    /* u8 if records contain scales, e4m3 with one scale per cache, otherwise the type of the values. */
    smla_dtype dtype;
    /* [pages, rows per page (COMPRESSED: page_tokens / ratio), elements of `dtype` per record]. */
    int64_t shape[3];
    /* Bytes from one page to the next, with the alignment of the published caches. */
    int64_t page_stride_bytes;
    int64_t bytes;
} smla_cache_shape;
/* Describes a cache of `pages` pages. `group`: SMLA_GROUP_PRIMARY, WINDOW or COMPRESSED. */
SMLA_API smla_status smla_backend_cache_shape(const smla_backend* backend, int32_t group, int64_t pages,
                                              smla_cache_shape* out);

/* Allocates buffers for the maxima. A build changes contents, never addresses, and allocates nothing. */
SMLA_API smla_status smla_backend_metadata_create(const smla_backend* backend, smla_backend_metadata** out);
SMLA_API void smla_backend_metadata_destroy(smla_backend_metadata* metadata);

/* Computes the metadata of a step. An invalid batch changes nothing. All tensors of a batch must be on the
 * host, or all on the context's GPU. In a GPU context, fields are in GPU memory and change in the order of
 * batch.stream; numbers stay on the host.
 *
 * A batch on the host may be changed or freed when the call returns. block_table fields are copies without
 * the columns beyond max_seq_len. Tables must have the pages that smla_plan_build requires, and pages at
 * least as large as the backend's. In a GPU context, a build queues kernels that read one of two pinned
 * buffers, so the host waits only for the build before the last. The build cannot be captured: capture a
 * forward, then build before each replay. The graph serves later steps with the same T, decode tokens and
 * page sizes.
 *
 * For a batch on the GPU, the host does not wait, and the build may be captured in a graph. Replays use the
 * tensors' current contents, but T, R, addresses and numbers as captured. Tensors must stay valid until the
 * build's work has finished; block tables, which block_table fields refer to, until the last forward of the
 * step. The batch contains the numbers that the host does not read (`decodes` and the following).
 * max_query_len, max_seq_len and *_max_q_len are bounds, prefill.has_context is 1 with any prefill, and
 * indexer.prefill_chunks is empty. Tokens with wrong numbers become padding, and forward attends in one
 * call. */
SMLA_API smla_status smla_backend_metadata_build(smla_backend_metadata* metadata,
                                                 const smla_plan_batch* batch);

/* Returns a field by its published name ("swa.decode_swa_lens"), or field NAME of smla/plan.h by the name
 * "plan.NAME". Numbers are i32 tensors [1]. Shapes are as in the last build. */
SMLA_API smla_status smla_backend_metadata_field(const smla_backend_metadata* metadata, const char* name,
                                                 smla_tensor* out);
SMLA_API smla_status smla_backend_metadata_fields(const smla_backend_metadata* metadata,
                                                  const char* const** names, int32_t* count);

/* One step of one layer. Tensors have N rows; rows beyond the step's tokens are neither read nor written. */
typedef struct smla_backend_forward_args {
    uint32_t struct_size;
    int32_t reserved;
    /* Bound on the scratch bytes of each stage that can work in pieces; 0 means no bound. */
    size_t stage_budget;
    /* Metadata of the step. Null in a warm-up call, which zeroes `out` and leaves the caches unchanged. */
    const smla_backend_metadata* metadata;
    /* Queries, rotated. DSA: [N,H,nope + rope], without w_uk_t [N,H,latent + rope]. HYBRID: [N,H,D]. */
    smla_tensor q;
    /* DSA, optional: rope part [N,H,rope] of the queries; q is then [N,H,latent], already absorbed. */
    smla_tensor q_pe;
    /* New keys, absent if the cache contains them. DSA: [N,latent], normed. HYBRID: [N,D], rotated. */
    smla_tensor k_c;
    /* DSA, with k_c: rotated rope part of the new keys, [N,rope] or [N,1,rope]. */
    smla_tensor k_pe;
    /* Selected positions or, at V4's ratio 4 and in V4.1, entries of the request: [N,K] i32, any K. */
    smla_tensor topk_indices;
    /* DSA: weights [H,nope,latent] that absorb q; absent if q is already absorbed. */
    smla_tensor w_uk_t;
    /* DSA: weights [H,latent,v] of the value projection. If absent, out is the attended latent. */
    smla_tensor w_uv;
    smla_tensor sink; /* HYBRID, optional: sink logits [>=H]. */
    /* DSA: [N,H * v] or [N,H,v] (v: latent without w_uv). HYBRID: [N,>=H,D], 0 beyond H; bf16 for e4m3. */
    smla_tensor out;
    smla_tensor lse;                              /* Optional: lse [N,H]. */
    smla_tensor output_scale, output_block_scale; /* Unsupported; must be absent. */
    /* DSA: the cache. HYBRID: the compressed cache. If pages is 0, nothing is written. */
    smla_cache kv_cache;
    /* HYBRID: cache of the window. Page sizes, and page_rows if 0, come from the metadata. */
    smla_cache swa_cache;
} smla_backend_forward_args;

/* Writes the workspace bytes for these shapes; ignores data and metadata. Never shrinks as N grows. */
SMLA_API smla_status smla_backend_workspace_size(const smla_backend* backend,
                                                 const smla_backend_forward_args* args, size_t* bytes);
/* Writes the step's tokens to the cache and computes attention. An invalid step writes nothing. On a GPU, the
 * step may be recorded as a CUDA graph; see smla_layer_forward. */
SMLA_API smla_status smla_backend_forward(const smla_backend* backend, const smla_backend_forward_args* args,
                                          smla_workspace workspace, smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_BACKEND_H */
