/* smla/plan.h: what the kernels of a step need to know of its batch, computed once and shared by all layers.
 *
 * A plan owns buffers that create allocates from the maxima. A build changes their contents only: addresses
 * never move and nothing is allocated, so captured graphs may read them. A plan serves one build, or any
 * number of readers, at a time; any other call returns SMLA_INVALID_ARGUMENT.
 *
 * One plan covers the cache groups of one compression ratio: V3.2 and GLM need one plan, V4 one per ratio (4
 * and 128). Letters of shapes: smla/types.h; here N is any length that a comment bounds. */
#ifndef SMLA_PLAN_H
#define SMLA_PLAN_H

#include <smla/context.h>
#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Cache groups, as bits of smla_plan_args.groups. */
enum {
    SMLA_GROUP_PRIMARY = 1,     /* KV of every token (V3.2, GLM) */
    SMLA_GROUP_WINDOW = 2,      /* KV of every token, attended to through a sliding window (V4) */
    SMLA_GROUP_COMPRESSED = 4,  /* KV entries, one per `ratio` tokens */
    SMLA_GROUP_INDEX = 8,       /* index keys: one per token, or with a ratio one per entry */
    SMLA_GROUP_STATE = 16,      /* compressor state of the KV entries, one row per token */
    SMLA_GROUP_INDEX_STATE = 32 /* compressor state of the index entries */
};

/* The largest step, and what never changes between steps. */
typedef struct smla_plan_args {
    uint32_t struct_size;
    /* SMLA_GROUP_* bits, at least one. */
    int32_t groups;
    /* Query tokens of a step, padding included. */
    int32_t max_tokens;
    int32_t max_requests;
    /* Tokens of a request, those of the step included. */
    int32_t max_seq_len;
    /* A request of at most 1 + this many query tokens is a decode. */
    int32_t speculative_tokens;
    /* 1: a decode also has as many query tokens as the first request. */
    int32_t uniform_decodes;
    /* With SMLA_GROUP_WINDOW: tokens in the window, the query token included. Else 0. */
    int32_t window;
    /* With SMLA_GROUP_COMPRESSED: tokens per entry. Without, with PRIMARY or INDEX: tokens per pool of
     * GLM-5.3, or 0. Else 0. */
    int32_t ratio;
    /* 1: entry_rows lists every visible entry, for ratios that have no indexer. */
    int32_t list_entries;
    /* For the schedule: rows that an indexer selects; 0: no indexer. */
    int32_t topk;
    /* For the schedule: query heads; 0: no schedule. */
    int32_t heads;
    /* For the schedule: what runs at once, threads or multiprocessors; 0: no schedule. */
    int32_t workers;
    /* 1: the schedule depends on heads and list widths only. */
    int32_t batch_invariant;
    /* Allocator for plans on the host. If all members are null, malloc is used. */
    smla_allocator allocator;
    /* The fields lie where this context runs; null: on the host. The context outlives the plan. */
    smla_context* context;
} smla_plan_args;

/* One cache group of a step. */
typedef struct smla_plan_group {
    /* [R,MB] i32: pages of each request. Columns must cover seq_lens. smla_plan_build documents which entries
     * must be pages; the others may have any value. */
    smla_tensor block_table;
    /* [N] i64 or i32, N >= query tokens: the row that each token writes, < 0: padding. Optional: looked up in
     * the table. Absent for entries, which are always looked up. */
    smla_tensor slots;
    /* Tokens, or entries, per page of the group's cache. */
    int32_t page_tokens;
    /* Rows from one page to the next; 0: page_tokens. */
    int32_t page_rows;
} smla_plan_group;

/* One step. Groups that the plan was not created with must be zero. Tables may be absent where slots are
 * given, except those of window, compressed and index entries.
 *
 * Lifetime: the caller may change or free tensors on the host when the build has returned. Tensors on a GPU
 * are read in the order of `stream` and must stay valid until that work has finished;
 * smla_backend_metadata_build documents which of them later forward calls also read. */
typedef struct smla_plan_batch {
    uint32_t struct_size;
    /* T, padding included; 0: query_start_loc[R]. */
    int32_t tokens;
    /* [R+1] i32, from 0, ascending: tokens [query_start_loc[r], query_start_loc[r+1]) belong to request r. */
    smla_tensor query_start_loc;
    /* [R] i32: tokens of the request after this step, at least its query tokens. */
    smla_tensor seq_lens;
    /* [N] i64 or i32, N >= query tokens; values fit int32. Optional: the order in the request. */
    smla_tensor rope_positions;
    smla_plan_group primary;
    smla_plan_group window;
    smla_plan_group compressed;
    smla_plan_group index;
    smla_plan_group state;
    smla_plan_group index_state;
    /* Stream for the kernels of plans on a GPU. */
    smla_stream stream;
    /* Number of leading decode requests, and of their tokens. A backend's metadata takes these and the
     * following numbers from here for a batch on a GPU (smla/backend.h); on the host it counts them. */
    int32_t decodes;
    int32_t decode_tokens;
    /* Tokens of all requests; padding follows. 0: `tokens`. */
    int32_t query_tokens;
    /* Bounds of the query lengths and of seq_lens. 0: query_tokens, and max_seq_len. */
    int32_t max_query_len;
    int32_t max_seq_len;
    int32_t reserved;
} smla_plan_batch;

typedef struct smla_plan smla_plan;

/* Allocates for the maxima.
 * Refused: no group; a window, ratio or list_entries that does not fit the groups. */
SMLA_API smla_status smla_plan_create(const smla_plan_args* args, smla_plan** out);
/* Null is allowed. */
SMLA_API void smla_plan_destroy(smla_plan* plan);

/* Computes the fields of a step. An invalid batch (SMLA_INVALID_ARGUMENT) changes nothing.
 *
 * A plan on the host also checks numbers, and requires a page wherever a token stores or may read something.
 * Let p be the positions of a request's query tokens, from the first to the last token for which the batch
 * has no negative slot. If there is such a token, the table entries for the following positions or entries
 * must be pages whose rows fit int32:
 *   primary, index       positions 0 to the last p
 *   window               positions from the start of the window of the first p to the last p
 *   compressed, index    with a ratio: all entries visible to the last p
 *   state, index_state   the first p to the last p, unless the group has slots
 * Pages that a window has left may be freed, and a request whose tokens are all padding needs no pages.
 *
 * A plan on a GPU reads tensors of that device and computes the same bits. It queues two kernels on
 * batch.stream, waits for nothing and copies nothing to the host. It may be captured in a graph: replays use
 * the tensors' current contents, while T, R and addresses are as captured. `tokens` is required, and only
 * shapes are checked. Numbers that are errors on the host make padding:
 *   query_start_loc      counts as 0, then as its running maximum, cut at T
 *   seq_lens             a request shorter than its query tokens, or longer than max_seq_len, has none
 *   rope_positions       a token whose position does not fit int32 is padding; one past the end takes its
 *                        order in the request
 *   tables               a position past the columns or on a negative page has row -1
 *   slots                a token past the end has none
 *   ragged_*             stop at 2^31 - 1 */
SMLA_API smla_status smla_plan_build(smla_plan* plan, const smla_plan_batch* batch);

/* A field by name. Shapes are those of the last build; the addresses never change. Fails for a name that this
 * plan does not have.
 *
 * A token is valid if all its slots are >= 0. One that is not attends to nothing: its lengths, windows and
 * visible counts are 0, its rows -1. Padding tokens have request 0 and position 0 and are not valid. Behind
 * T, up to max_tokens, the memory holds what padding tokens hold.
 *   request_of_token  [T] i32
 *   position          [T] i32         order in the request
 *   rope_position     [T] i32
 *   is_valid          [T] u8
 *   visible_tokens    [T] i32         position + 1
 *   batch_split       [4] i32         decode requests, prefill requests, decode tokens, prefill tokens
 *   primary_slot      [T] i64         row that the token writes, -1: none
 *   window_slot       [T] i64
 *   state_slot        [T] i64
 *   index_state_slot  [T] i64
 *   window_rows       [T,window] i32  rows of the last `window` tokens, oldest first, then -1
 *   window_len        [T] i32
 *   visible_entries   [T] i32         (position + 1) / ratio
 *   compressed_slot   [T] i64         row of the entry that the token closes, -1: none
 *   entry_rows        [T,E] i32       rows of all visible entries, then -1. E: those of max_seq_len,
 *                                     rounded up to a multiple of 128
 *   entry_len         [T] i32
 *   index_slot        [T] i64         row of the token's index key, or of the index entry that it closes
 *   score_start       [T] i32         first column to score through the index table (paged): 0
 *   score_end         [T] i32         one past the last
 *   ragged_cu         [R+1] i32       where prefill requests' keys begin if gathered one behind the other;
 *                                     decodes take none
 *   ragged_start      [T] i32         the prefill tokens' columns of the gathered keys
 *   ragged_end        [T] i32
 *   schedule          [2] i32         splits per decode token, rows per split (a multiple of 64): from the
 *                                     maxima alone. Split s takes list columns [s * rows, (s + 1) * rows) */
SMLA_API smla_status smla_plan_field(const smla_plan* plan, const char* name, smla_tensor* out);
/* Names of the fields that this plan has; they live as long as the plan. */
SMLA_API smla_status smla_plan_fields(const smla_plan* plan, const char* const** names, int32_t* count);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_PLAN_H */
