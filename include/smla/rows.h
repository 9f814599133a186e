/* smla/rows.h: the integer operations of the attention backends. They turn what an indexer selected
 * (positions, or entries of a compressed cache, local to a request) into the index rows that attention
 * kernels take. All exact; a hole is -1. On the host; a row beyond a request's table is a hole. */
#ifndef SMLA_ROWS_H
#define SMLA_ROWS_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* rows[t,j] = row of positions[t,j] through the table of the token's request. Beyond the stage `map`: a
 * context-parallel rank keeps the positions that it owns, (p / interleave) % ranks == rank, and looks them up
 * in its own numbering; tokens with a workspace get workspace_starts[w] + p instead of a row of the cache.
 * counts[t]: rows that are not -1, 0 for a token that is not valid. A count is the length of a prefix only if
 * the holes trail: `compact` moves them there, and keeps the order of the rest. */
typedef struct smla_request_rows_args {
    uint32_t struct_size;
    int32_t page_tokens;
    int32_t page_rows; /* 0: page_tokens; larger when pages of several layers interleave */
    int32_t compact;
    int32_t ranks, rank; /* ranks 0: one */
    int32_t interleave;  /* consecutive positions of one rank; 0: 1 */
    int32_t reserved;
    smla_tensor positions;          /* [T,K] i32 */
    smla_tensor request_of_token;   /* [T] i32 */
    smla_tensor block_table;        /* [R,MB] i32 */
    smla_tensor is_valid;           /* [T] u8, optional */
    smla_tensor workspace_of_token; /* [T] i32, optional: < 0: rows of the cache */
    smla_tensor workspace_starts;   /* [B] i32, with it */
    smla_tensor rows;               /* [T,K] i32 */
    smla_tensor counts;             /* [T] i32, optional */
} smla_request_rows_args;
SMLA_API smla_status smla_request_rows(const smla_request_rows_args* args);

/* Splits positions into those of the cached context, position < context_lens[t], and those of the tokens
 * behind it, as position - context_lens[t]; -1 where the position belongs to the other. */
typedef struct smla_split_context_args {
    uint32_t struct_size;
    int32_t reserved;
    smla_tensor positions;    /* [T,K] i32 */
    smla_tensor context_lens; /* [T] i32 */
    smla_tensor context_rows; /* [T,K] i32 */
    smla_tensor new_rows;     /* [T,K] i32 */
} smla_split_context_args;
SMLA_API smla_status smla_split_context(const smla_split_context_args* args);

/* lse[i] = ln 2 * log2_lse[i], f32. */
SMLA_API smla_status smla_lse_from_log2(const smla_tensor* log2_lse, const smla_tensor* lse); /* [T,H] */

/* Rows of prefill tokens in a gathered workspace: request b of the chunk has `stride` rows, compressed
 * entries first, then from `entries` on the last gather_lens[b] tokens. Row: entries selected (-1: one that
 * is not below `entries`), then at once the window, then -1. */
typedef struct smla_combined_rows_args {
    uint32_t struct_size;
    int32_t window, ratio; /* ratio 0: window only */
    int32_t topk;          /* columns of `selected` that count */
    int32_t stride, entries;
    smla_tensor selected;        /* [T,>=topk] i32, entries of the token's request; absent with topk 0 */
    smla_tensor query_start_loc; /* [B+1] i32, from any base */
    smla_tensor seq_lens;        /* [B] i32 */
    smla_tensor gather_lens;     /* [B] i32 */
    smla_tensor rows;            /* [T,>=topk+window] i32; DeepSeek's kernels want a multiple of 128 */
    smla_tensor lens;            /* [T] i32 */
} smla_combined_rows_args;
SMLA_API smla_status smla_combined_rows(const smla_combined_rows_args* args);

/* Rows of a mixed batch, decode tokens first: `window` columns of the window cache, then the compressed ones,
 * each through its own table. lens counts the whole window even where it is not full yet. */
typedef struct smla_mixed_rows_args {
    uint32_t struct_size;
    int32_t window, ratio; /* ratio 0: window only */
    int32_t topk;          /* of prefill tokens */
    int32_t local;         /* 1: decode_entries are entries of the request; 0: rows of the cache */
    int32_t window_page_tokens, window_page_rows, entry_page_tokens, entry_page_rows;
    int32_t reserved;
    smla_tensor decode_window_rows; /* [Td,window] i32 */
    smla_tensor decode_entries;     /* [Td,Kd] i32, optional */
    smla_tensor decode_lens;        /* [Td] i32, optional: Kd; with local 0 */
    smla_tensor is_valid;           /* [>=Td] u8, with local 1 */
    smla_tensor prefill_entries;    /* [Tp,>=topk] i32, entries of the request; optional */
    smla_tensor query_start_loc;    /* [R+1] i32, of the whole batch */
    smla_tensor seq_lens;           /* [R] i32 */
    smla_tensor request_of_token;   /* [>=Td+Tp] i32 */
    smla_tensor window_table;       /* [R,MB] i32 */
    smla_tensor entry_table;        /* [R,MB] i32; absent with ratio 0 */
    smla_tensor rows;               /* [Td+Tp, window + P] i32, P = max(topk, Kd) rounded up to 4 */
    smla_tensor lens;               /* [Td+Tp] i32 */
} smla_mixed_rows_args;
SMLA_API smla_status smla_mixed_rows(const smla_mixed_rows_args* args);

/* FlashMLA's decode schedule: how `parts` of a GPU share requests of `lens` listed rows, in blocks of 64.
 * schedule[p] = first request (-1: idle), first block, last request, end block, first split, 0, 0, 0.
 * splits: prefix sums of how many parts work on each request. */
typedef struct smla_decode_schedule_args {
    uint32_t struct_size;
    int32_t reserved;
    smla_tensor lens;     /* [B] i32 */
    smla_tensor schedule; /* [parts,8] i32 */
    smla_tensor splits;   /* [B+1] i32 */
} smla_decode_schedule_args;
SMLA_API smla_status smla_decode_schedule(const smla_decode_schedule_args* args);

/* Prefill requests in chunks that fit: at most max_rows gathered rows, and at most max_logits_bytes of f32
 * logits, query tokens x rows. A request that is too large alone is cut along its query tokens; later pieces
 * reuse the gathered rows. chunk = first request, end request, first query token, end query token of the
 * batch, rows, 1 if the rows are still there from the chunk before. Rows of a request: seq_len / ratio. */
typedef struct smla_prefill_chunks_args {
    uint32_t struct_size;
    int32_t ratio;               /* 0: 1 */
    int64_t max_rows;            /* 0: no bound */
    int64_t max_logits_bytes;    /* 0: no bound */
    int32_t first_request;       /* prefill begins here */
    int32_t max_requests;        /* per chunk; 0: no bound */
    smla_tensor query_start_loc; /* [R+1] i32 */
    smla_tensor seq_lens;        /* [R] i32 */
    smla_tensor chunks;          /* [N,6] i32; N: at most query tokens + requests are needed */
    int32_t count;               /* out: chunks written */
    int32_t reserved;
} smla_prefill_chunks_args;
SMLA_API smla_status smla_prefill_chunks(smla_prefill_chunks_args* args);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_ROWS_H */
