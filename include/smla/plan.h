/* smla/plan.h: plans. A plan contains the data about a batch that the kernels of a step use; it is computed
 * once per step and shared by all layers.
 *
 * smla_plan_create allocates buffers for the largest step. A build only changes their contents: addresses
 * never change and nothing is allocated, so captured graphs may read the buffers. A plan serves one build, or
 * any number of readers, at a time; any other call returns SMLA_INVALID_ARGUMENT.
 *
 * One plan covers the cache groups of one compression ratio: V3.2 and GLM need one plan, V4 one per ratio (4
 * and 128). For letters of shapes, see smla/types.h; here N is any length within the stated bounds. */
#ifndef SMLA_PLAN_H
#define SMLA_PLAN_H

#include <smla/context.h>
#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Cache groups, as bits of smla_plan_args.groups. */
enum {
    SMLA_GROUP_PRIMARY = 1,     /* KV rows of every token (V3.2, GLM) */
    SMLA_GROUP_WINDOW = 2,      /* KV rows of every token, attended to through a sliding window (V4) */
    SMLA_GROUP_COMPRESSED = 4,  /* KV entries, one per `ratio` tokens */
    SMLA_GROUP_INDEX = 8,       /* index keys: one per token or, with a ratio, one per entry */
    SMLA_GROUP_STATE = 16,      /* compressor state of the KV entries, one row per token */
    SMLA_GROUP_INDEX_STATE = 32 /* compressor state of the index entries */
};

/* Largest step of a plan, and values that are the same in all steps. */
typedef struct smla_plan_args {
    uint32_t struct_size;
    int32_t groups; /* SMLA_GROUP_* bits, at least one. */
    /* Query tokens of a step, including padding. */
    int32_t max_tokens;
    int32_t max_requests;
    int32_t max_seq_len;        /* Tokens of a request, including the step's tokens. */
    int32_t speculative_tokens; /* Requests of at most 1 + speculative_tokens query tokens are decodes. */
    int32_t uniform_decodes;    /* 1: decodes must also have as many query tokens as the first request. */
    /* With SMLA_GROUP_WINDOW, tokens in the window, including the query token; otherwise 0. */
    int32_t window;
    /* With SMLA_GROUP_COMPRESSED, tokens per entry. With PRIMARY or INDEX but not COMPRESSED, tokens per pool
     * of GLM-5.3, or 0. Otherwise 0. */
    int32_t ratio;
    int32_t list_entries; /* 1: entry_rows lists every visible entry, for ratios without an indexer. */
    /* For the schedule: number of rows that an indexer selects; 0 means no indexer. */
    int32_t topk;
    int32_t heads; /* For the schedule: number of query heads; 0 means no schedule. */
    /* For the schedule: number of threads or multiprocessors; 0 means no schedule. */
    int32_t workers;
    int32_t batch_invariant; /* 1: the schedule depends only on heads and list widths. */
    /* Allocator for plans on the host. If all members are null, malloc is used. */
    smla_allocator allocator;
    /* Context on whose device the fields are; null means the host. The context must outlive the plan. */
    smla_context* context;
} smla_plan_args;

/* Block table, slots and page size of one cache group in a step. */
typedef struct smla_plan_group {
    /* Pages of each request, [R,MB] i32; the columns must cover seq_lens. smla_plan_build documents which
     * entries must be pages; the others may have any value. */
    smla_tensor block_table;
    /* Row that each token writes, [N] i64 or i32, N >= query tokens; negative for padding. If absent, slots
     * are looked up in the table. Must be absent for entries, whose slots are always looked up. */
    smla_tensor slots;
    int32_t page_tokens; /* Tokens, or entries, per page of the group's cache. */
    int32_t page_rows;   /* Rows from one page to the next; 0 means page_tokens. */
} smla_plan_group;

/* One step. Groups that the plan does not have must be zero. Groups with slots need no tables, except for
 * window, compressed entries and index entries.
 *
 * Lifetime: tensors on the host may be changed or freed when the build has returned. Tensors on a GPU are
 * read in the order of `stream` and must stay valid until that work has finished; smla_backend_metadata_build
 * documents which of them later forward calls read. */
typedef struct smla_plan_batch {
    uint32_t struct_size;
    int32_t tokens; /* T, including padding; 0 means query_start_loc[R]. */
    /* Ascending offsets from 0, [R+1] i32: request r has tokens [query_start_loc[r],
     * query_start_loc[r+1]). */
    smla_tensor query_start_loc;
    /* Tokens of each request after this step, [R] i32; at least the request's query tokens. */
    smla_tensor seq_lens;
    /* Optional positions for RoPE that fit int32, [N] i64 or i32, N >= query tokens. Default: the order in
     * the request. */
    smla_tensor rope_positions;
    smla_plan_group primary;
    smla_plan_group window;
    smla_plan_group compressed;
    smla_plan_group index;
    smla_plan_group state;
    smla_plan_group index_state;
    smla_stream stream; /* Stream for the kernels of plans on a GPU. */
    /* Number of leading decode requests, and of their tokens. smla_backend_metadata_build reads this and the
     * following numbers for a batch on a GPU; for a batch on the host, it computes them. */
    int32_t decodes;
    int32_t decode_tokens;
    int32_t query_tokens; /* Tokens of all requests, before the padding; 0 means `tokens`. */
    /* Bounds of the query lengths and of seq_lens. 0 means query_tokens, and the plan's max_seq_len. */
    int32_t max_query_len;
    int32_t max_seq_len;
    int32_t reserved;
} smla_plan_batch;

typedef struct smla_plan smla_plan;

/* Creates a plan and allocates its buffers. SMLA_INVALID_ARGUMENT: there is no group, or a window, ratio or
 * list_entries does not fit the groups. */
SMLA_API smla_status smla_plan_create(const smla_plan_args* args, smla_plan** out);
/* Destroys a plan, which may be null. */
SMLA_API void smla_plan_destroy(smla_plan* plan);

/* Computes the fields of a step. An invalid batch (SMLA_INVALID_ARGUMENT) changes nothing.
 *
 * A plan on the host also checks numbers, and requires a page wherever a token stores or may read something.
 * Let p be the positions of a request's query tokens, from the first to the last token for which the batch
 * has no negative slot. If there is such a token, the table entries for the following positions or entries
 * must be pages whose rows fit int32:
 *
 *   primary, index       positions 0 to the last p
 *   window               positions from the start of the window of the first p to the last p
 *   compressed, index    with a ratio: all entries visible to the last p
 *   state, index_state   the first p to the last p, unless the group has slots
 *
 * Pages before the window may be freed, and a request whose tokens are all padding needs no pages.
 *
 * A plan on a GPU reads tensors of that device and computes the same bits. A build queues two kernels on
 * batch.stream, waits for nothing and copies nothing to the host. The build may be captured in a graph:
 * replays use the tensors' current contents, but T, R and addresses as captured. `tokens` is required, and
 * only shapes are checked. Numbers that are errors on the host turn tokens into padding:
 *
 *   query_start_loc      the first is treated as 0, the others as their running maximum, at most T
 *   seq_lens             a request shorter than its query tokens, or longer than max_seq_len, has no tokens
 *   rope_positions       a token whose position does not fit int32 is padding; a token beyond the end uses
 *                        its order in the request
 *   tables               a position beyond the columns or on a negative page has row -1
 *   slots                a token beyond the end has no slot
 *   ragged_*             the values stop at 2^31 - 1 */
SMLA_API smla_status smla_plan_build(smla_plan* plan, const smla_plan_batch* batch);

/* Returns a field by name. Shapes are as in the last build; addresses never change. Fails for a name that
 * this plan does not have.
 *
 * A token is valid if all its slots are >= 0. A token that is not valid attends to nothing: its lengths,
 * windows and visible counts are 0, its rows -1. Padding tokens are not valid and have request 0 and position
 * 0. The memory of tokens T to max_tokens has the contents of padding tokens.
 *
 *   request_of_token  [T] i32
 *   position          [T] i32         order in the request
 *   rope_position     [T] i32
 *   is_valid          [T] u8
 *   visible_tokens    [T] i32         position + 1
 *   batch_split       [4] i32         decode requests, prefill requests, decode tokens, prefill tokens
 *   primary_slot      [T] i64         row that the token writes, or -1
 *   window_slot       [T] i64
 *   state_slot        [T] i64
 *   index_state_slot  [T] i64
 *   window_rows       [T,window] i32  rows of the last `window` tokens, oldest first, then -1
 *   window_len        [T] i32
 *   visible_entries   [T] i32         (position + 1) / ratio
 *   compressed_slot   [T] i64         row of the entry that the token completes, or -1
 *   entry_rows        [T,E] i32       rows of all visible entries, then -1. E: entries of max_seq_len
 *                                     tokens, rounded up to a multiple of 128
 *   entry_len         [T] i32
 *   index_slot        [T] i64         row of the token's index key, or of the index entry that it completes
 *   score_start       [T] i32         first column to score through the index table (paged): 0
 *   score_end         [T] i32         end of the columns to score
 *   ragged_cu         [R+1] i32       offsets of the prefill requests' keys if gathered contiguously;
 *                                     decodes have no keys there
 *   ragged_start      [T] i32         first column of the prefill token in the gathered keys
 *   ragged_end        [T] i32
 *   schedule          [2] i32         splits per decode token, and rows per split (a multiple of 64), which
 *                                     depend only on the maxima. Split s has columns [s * rows, (s + 1) *
 * rows) */
SMLA_API smla_status smla_plan_field(const smla_plan* plan, const char* name, smla_tensor* out);
/* Writes the names of the fields that this plan has; they are valid as long as the plan. */
SMLA_API smla_status smla_plan_fields(const smla_plan* plan, const char* const** names, int32_t* count);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_PLAN_H */
