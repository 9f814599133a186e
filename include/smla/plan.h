/* smla/plan.h: what the kernels of a step need to know of its batch, computed once and shared by all layers.
 * A plan owns persistent buffers, allocated at create from the maxima; a build changes their contents only:
 * addresses never move and nothing is allocated, so captured graphs may read them. A plan serves one build or
 * reader at a time.
 *
 * One plan covers the cache groups of one compression ratio: V3.2 and GLM need one plan, V4 one per ratio (4
 * and 128). */
#ifndef SMLA_PLAN_H
#define SMLA_PLAN_H

#include <smla/context.h>
#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Cache groups, as bits of smla_plan_args.groups. */
enum {
    SMLA_PLAN_PRIMARY = 1,     /* KV of every token (V3.2, GLM) */
    SMLA_PLAN_WINDOW = 2,      /* KV of every token, attended to through a sliding window (V4) */
    SMLA_PLAN_COMPRESSED = 4,  /* KV entries, one per `ratio` tokens */
    SMLA_PLAN_INDEX = 8,       /* index keys: one per token, or with COMPRESSED one per entry */
    SMLA_PLAN_STATE = 16,      /* compressor state of the KV entries, one row per token */
    SMLA_PLAN_INDEX_STATE = 32 /* compressor state of the index entries */
};

/* The largest step, and what never changes between steps. */
typedef struct smla_plan_args {
    uint32_t struct_size;
    int32_t groups;     /* SMLA_PLAN_* bits, at least one */
    int32_t max_tokens; /* query tokens of a step, padding included */
    int32_t max_requests;
    int32_t max_seq_len;        /* tokens of a request, those of the step included */
    int32_t speculative_tokens; /* a request of at most 1 + this many query tokens is a decode */
    int32_t uniform_decodes;    /* 1: decodes are those of the first request's query length */
    int32_t window;             /* WINDOW: tokens in the window, the own one included; else 0 */
    int32_t ratio;              /* COMPRESSED: tokens per entry; else 0 */
    int32_t list_entries;       /* 1: entry_rows lists every visible entry (ratios that have no indexer) */
    int32_t topk;               /* rows that an indexer selects; 0: none. For the schedule only */
    int32_t heads;              /* query heads; 0: no schedule */
    int32_t workers;            /* what runs at once: threads or multiprocessors; 0: no schedule */
    int32_t batch_invariant;    /* 1: the schedule depends on heads and list widths only */
    smla_allocator allocator;   /* all null: malloc; none with a GPU's context */
    smla_context* context;      /* whose device the fields lie on; null: this machine. Outlives the plan */
} smla_plan_args;

typedef struct smla_plan_group {
    smla_tensor block_table; /* [R,MB] i32. Columns must cover seq_lens; a block id < 0 makes rows of -1 */
    smla_tensor slots;       /* [N] i64 or i32, N >= query tokens: row that each token writes, < 0: padding.
                                Optional: looked up in the table. Absent for entries: always looked up */
    int32_t page_tokens;     /* tokens, or entries, per page of the group's cache */
    int32_t page_rows;       /* 0: page_tokens */
} smla_plan_group;

/* One step. Groups that the plan was not created with must be zero. Tables may be absent where slots are
 * given, except for window, compressed and index entries. */
typedef struct smla_plan_batch {
    uint32_t struct_size;
    int32_t tokens;              /* T, padding included; 0: query_start_loc[R] */
    smla_tensor query_start_loc; /* [R+1] i32, from 0, ascending: tokens [q[r], q[r+1]) belong to request r */
    smla_tensor seq_lens; /* [R] i32: tokens of the request after this step, at least its query tokens */
    smla_tensor rope_positions; /* [N] i64 or i32, N >= query tokens; values fit int32. Optional: the order in
                                   the request */
    smla_plan_group primary, window, compressed, index, state, index_state;
    smla_stream stream; /* of plans on a GPU: the kernels are queued here */
} smla_plan_batch;

typedef struct smla_plan smla_plan;

SMLA_API smla_status smla_plan_create(const smla_plan_args* args, smla_plan** out);
SMLA_API void smla_plan_destroy(smla_plan* plan);
/* A refused batch (SMLA_INVALID_ARGUMENT) changes nothing.
 *
 * A plan on a GPU takes tensors of that device and gives the same bits as one on the host. A build queues two
 * kernels on batch.stream: it waits for nothing, copies nothing to the host, and may be captured in a graph,
 * whose replays follow what the tensors then hold (T, R and the addresses are the captured ones). `tokens`
 * must be given, and shapes alone are checked: numbers that a host build would refuse make padding instead.
 * query_start_loc counts as 0, then as its running maximum, cut at T. A request shorter than its query tokens
 * or longer than max_seq_len has none: they become padding, as does a token whose rope position does not fit
 * int32. Positions past the columns of a table have row
 * -1, a token past the end of `slots` has none, one past rope_positions takes its order in the request, and
 * ragged numbers stop at 2^31 - 1. */
SMLA_API smla_status smla_plan_build(smla_plan* plan, const smla_plan_batch* batch);

/* Fields. T is the last build's; behind it, up to max_tokens, the memory holds what padding tokens hold.
 * Those belong to no request: request 0, position 0, not valid. A token is valid if all its slots are >= 0;
 * one that is not attends to nothing: its lengths, windows and visible counts are 0, its rows -1.
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
