/* smla/backend.h: attention backends, the units that an inference engine plugs in. A backend has a name, the
 * types and shapes that it supports, a cache shape, metadata built once per step, and a forward called once
 * per layer. Names, fields and rules are those of the published backends: docs/backends has a table for each.
 *
 * A backend serves one kind of layer: V3.2 and GLM-5.x (SMLA_FAMILY_DSA), or one compression ratio of V4
 * (SMLA_FAMILY_HYBRID). Layers of a kind share one metadata. */
#ifndef SMLA_BACKEND_H
#define SMLA_BACKEND_H

#include <smla/context.h>
#include <smla/plan.h>
#include <smla/stages.h>
#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_family;
enum { SMLA_FAMILY_DSA = 0, SMLA_FAMILY_HYBRID = 1 };

/* A device, real or only described: nothing is asked of it. */
typedef struct smla_device_info {
    uint32_t struct_size;
    smla_device_type type;
    int32_t capability;      /* cuda: 10 * major + minor, 90 for sm_90 */
    int32_t multiprocessors; /* cpu: threads; 0: unknown */
    int64_t memory_bytes;    /* 0: unknown */
} smla_device_info;
/* "cpu", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121" or another sm_XY. "cpu" tells this
 * machine's threads; the others a common device of that kind. */
SMLA_API smla_status smla_describe_device(const char* name, smla_device_info* out);

/* What cannot be: refused as the originals refuse it. */
enum {
    SMLA_WANTS_ALIBI = 1,
    SMLA_WANTS_SLIDING_WINDOW = 2, /* beside V4's own window */
    SMLA_WANTS_SOFT_CAP = 4,
    SMLA_WANTS_ENCODER = 8, /* any attention type but decoder self-attention */
    SMLA_WANTS_FUSED_OUTPUT_QUANT = 16
};

typedef struct smla_backend_args {
    uint32_t struct_size;
    smla_family family;
    const char*
        kv_cache_dtype;   /* null: "auto"; "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla" or a record format */
    smla_dtype dtype;     /* of queries: bf16 (0), f16, f32, f64 (reference), e4m3 (per-tensor caches) */
    int32_t wants;        /* SMLA_WANTS_* bits */
    int32_t heads;        /* query heads on this device */
    int32_t kv_lora_rank; /* DSA: 0: 512 */
    int32_t rope_dim;     /* 0: 64; -1: none */
    int32_t nope_dim;     /* DSA: query channels without rope, before absorption; 0: 128 */
    int32_t v_head_dim;   /* DSA: 0: 128 */
    int32_t head_dim;     /* HYBRID: 0: 512 */
    int32_t page_tokens;  /* tokens per page; 0: the backend's first. HYBRID: of the compressed groups, 256 */
    int32_t window_page_tokens; /* HYBRID: 0: 64 */
    int32_t topk;               /* index_topk; 0: the model has no indexer */
    int32_t window;             /* HYBRID: 0: 128 */
    int32_t ratio;              /* HYBRID: 0 or 1 window only, 4, 128 */
    int32_t max_tokens, max_requests, max_seq_len, speculative_tokens;
    int32_t plan_groups; /* more groups for the metadata: SMLA_PLAN_INDEX, STATE, INDEX_STATE */
    int32_t batch_invariant;
    double softmax_scale;
    double q_scale, kv_scale; /* per-tensor fp8; 0: 1 */
    int64_t max_logits_bytes; /* of one chunk of indexer prefill; 0: 512 MiB */
    smla_device_info device;  /* struct_size 0: what a backend's context runs on; else this processor */
    smla_allocator allocator; /* of the metadata; all null: malloc */
} smla_backend_args;

/* Names of all backends, in the order of the library; they live for ever. */
SMLA_API smla_status smla_backend_list(const char* const** names, int32_t* count);

/* Why a backend cannot serve the arguments, one reason per line, into buffer[*bytes]; *bytes becomes the
 * length with its zero. An empty text: it can. A null buffer asks for the length. `original`: 1 asks instead
 * what the published backend's own gate would say. */
SMLA_API smla_status smla_backend_why_not(const char* name, const smla_backend_args* args, int32_t original,
                                          char* buffer, size_t* bytes);

/* Which backend serves the arguments, and why not the others: JSON text, as above. `wanted` (or, if that is
 * null, SMLA_BACKEND of the environment) forces one by name or alias. */
SMLA_API smla_status smla_backend_select(const smla_backend_args* args, const char* wanted, char* buffer,
                                         size_t* bytes);

typedef struct smla_backend smla_backend;
typedef struct smla_backend_metadata smla_backend_metadata;

/* `name` null: selected as above. Logs one line with the choice. args.device must be of the context's kind.
 * The context outlives the backend, the backend its metadata. */
SMLA_API smla_status smla_backend_create(smla_context* context, const char* name,
                                         const smla_backend_args* args, smla_backend** out);
SMLA_API void smla_backend_destroy(smla_backend* backend);

typedef int32_t smla_graph_support;
enum {
    SMLA_GRAPH_NEVER = 0,
    SMLA_GRAPH_UNIFORM_DECODE = 1, /* steps of decodes with one query length can be captured and replayed */
    SMLA_GRAPH_UNIFORM_BATCH = 2,  /* of any one query length */
    SMLA_GRAPH_ALWAYS = 3
};

typedef struct smla_backend_info {
    uint32_t struct_size;
    smla_family family;
    const char* name;
    const char* kv_cache_dtype; /* what "auto" and aliases stand for, as a record format */
    smla_format format;
    int32_t head_size; /* values of a record */
    int32_t page_tokens, window_page_tokens;
    int32_t reorder_threshold; /* requests of at most so many query tokens are decodes */
    int32_t padded_heads;      /* heads that the published kernel wants; any are accepted here */
    smla_graph_support graph_support;
} smla_backend_info;
SMLA_API smla_status smla_backend_get_info(const smla_backend* backend, smla_backend_info* info);

/* Shape [pages, tokens per page, record] as the originals report it (record in bytes of u8 for fp8_ds_mla,
 * else values), dtype, and the bytes of `pages` pages. `group`: PRIMARY, WINDOW or COMPRESSED of SMLA_PLAN_*.
 */
typedef struct smla_cache_shape {
    uint32_t struct_size;
    smla_dtype dtype;
    int64_t shape[3];
    int64_t page_stride_bytes; /* with the alignment of the published caches */
    int64_t bytes;
} smla_cache_shape;
SMLA_API smla_status smla_backend_cache_shape(const smla_backend* backend, int32_t group, int64_t pages,
                                              smla_cache_shape* out);

/* Metadata: persistent buffers, sized once from the maxima. A build changes contents, never addresses, and
 * allocates nothing; a refused batch changes nothing. block_table fields show the caller's own tables.
 *
 * Of a GPU's context: the batch lies on the host all the same and may be changed when the call returns;
 * fields lie on the GPU and change in the order of batch.stream, numbers stay on the host. A build queues
 * three or four kernels that read pinned memory of the metadata's own. There are two, used in turn, so the
 * host waits only if the send before the last one is still under way. block_table fields show copies, for
 * pages no smaller than the backend's. A stream that captures is refused: capture a forward, then build
 * before each replay; the graph serves later steps of the same T, decode tokens and page sizes. */
SMLA_API smla_status smla_backend_metadata_create(const smla_backend* backend, smla_backend_metadata** out);
SMLA_API void smla_backend_metadata_destroy(smla_backend_metadata* metadata);
SMLA_API smla_status smla_backend_metadata_build(smla_backend_metadata* metadata,
                                                 const smla_plan_batch* batch);
/* By the original's name ("req_id_per_token", "swa.decode_swa_lens", "fp8_extra_metadata.num_splits");
 * numbers are i32 [1]. plan.* are the fields of smla/plan.h. Shapes are those of the last build. */
SMLA_API smla_status smla_metadata_field(const smla_backend_metadata* metadata, const char* name,
                                         smla_tensor* out);
SMLA_API smla_status smla_metadata_fields(const smla_backend_metadata* metadata, const char* const** names,
                                          int32_t* count);

/* One layer's step. N rows, the step's tokens first; rows behind them are neither read nor written. A refused
 * step writes nothing. */
typedef struct smla_backend_forward_args {
    uint32_t struct_size;
    int32_t reserved;
    size_t stage_budget; /* stages keep their scratch within it where they can; 0: no bound */
    const smla_backend_metadata* metadata; /* null: warm-up; out becomes 0 and caches stay as they are */
    smla_tensor q;                         /* DSA: [N,H,nope + rope], rotated. HYBRID: [N,H,D], rotated */
    smla_tensor q_pe; /* DSA, optional [N,H,rope]: then q is absorbed already, [N,H,latent] (q as a pair) */
    smla_tensor
        k_c; /* DSA: [N,latent], normed; HYBRID: [N,D], rotated. Optional: the cache is written already */
    smla_tensor k_pe;         /* DSA: [N,rope] or [N,1,rope], rotated */
    smla_tensor topk_indices; /* [N,K] i32, positions (V4: entries) of the request. HYBRID: ratio 4 only */
    smla_tensor w_uk_t;       /* DSA: [H,nope,latent]; absent: q is absorbed */
    smla_tensor w_uv;         /* DSA: [H,latent,v]; absent: out is the attended latent */
    smla_tensor sink;         /* HYBRID, optional [>=H] */
    smla_tensor out;          /* DSA: [N,H * v] or [N,H,v]; HYBRID: [N,>=H,D], further heads become 0 */
    smla_tensor lse;          /* optional [N,H] */
    smla_tensor output_scale, output_block_scale; /* refused: fused output quantisation */
    smla_cache
        kv_cache; /* DSA: the cache; HYBRID: the compressed one. pages 0: none yet, nothing is written */
    smla_cache swa_cache; /* HYBRID */
} smla_backend_forward_args;

/* Workspace of a call with these shapes; data and metadata are not looked at. Monotone in N. */
SMLA_API smla_status smla_backend_workspace_size(const smla_backend* backend,
                                                 const smla_backend_forward_args* args, size_t* bytes);
SMLA_API smla_status smla_backend_forward(const smla_backend* backend, const smla_backend_forward_args* args,
                                          smla_workspace workspace, smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_BACKEND_H */
