/* smla/rows.h: the integer operations of the attention backends. They turn what an indexer selected
 * (positions, or entries of a compressed cache, both local to a request) into the rows that attention kernels
 * take. Tensors lie on the host. Results are exact; a hole is -1, and so is a row beyond a request's table.
 *
 * Letters of shapes: smla/types.h; B requests of a chunk. Every function returns SMLA_INVALID_ARGUMENT for a
 * wrong type or shape, for lengths and offsets that contradict each other ("args.seq_lens[3]"), and for an
 * output that shares memory with another tensor or whose elements share a place. */
#ifndef SMLA_ROWS_H
#define SMLA_ROWS_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_request_rows_args {
    uint32_t struct_size;
    int32_t page_tokens;
    /* Rows from one page to the next; 0: page_tokens. Larger where pages of several layers interleave. */
    int32_t page_rows;
    /* 1: moves holes behind the other rows, which keep their order. */
    int32_t compact;
    /* Context-parallel ranks; 0: one. This rank keeps positions with (p / interleave) % ranks == rank and
     * looks them up in its own numbering. */
    int32_t ranks;
    int32_t rank;
    /* Consecutive positions of one rank; 0: 1. */
    int32_t interleave;
    int32_t reserved;
    /* [T,K] i32 */
    smla_tensor positions;
    /* [T] i32 */
    smla_tensor request_of_token;
    /* [R,MB] i32 */
    smla_tensor block_table;
    /* [T] u8, optional. Tokens that are not valid have count 0. */
    smla_tensor is_valid;
    /* [T] i32, optional: w >= 0: rows are workspace_starts[w] + p; < 0: rows of the cache. */
    smla_tensor workspace_of_token;
    /* [B] i32, with workspace_of_token. */
    smla_tensor workspace_starts;
    /* [T,K] i32 */
    smla_tensor rows;
    /* [T] i32, optional: rows that are not -1. The length of a prefix only if holes trail: see compact. */
    smla_tensor counts;
} smla_request_rows_args;

/* rows[t,j] = row of positions[t,j] through the table of the token's request: the stage `map`, and what
 * context parallelism and gathered prefills need. */
SMLA_API smla_status smla_request_rows(const smla_request_rows_args* args);

typedef struct smla_split_context_args {
    uint32_t struct_size;
    int32_t reserved;
    /* [T,K] i32 */
    smla_tensor positions;
    /* [T] i32 */
    smla_tensor context_lens;
    /* [T,K] i32: positions < context_lens[t], else -1. */
    smla_tensor context_rows;
    /* [T,K] i32: position - context_lens[t], or -1 where that is below 0. */
    smla_tensor new_rows;
} smla_split_context_args;

/* Splits positions into those of the cached context and those of the tokens behind it. */
SMLA_API smla_status smla_split_context(const smla_split_context_args* args);

/* lse[i] = ln 2 * log2_lse[i]; both [T,H] f32. lse may be the very same tensor as log2_lse. */
SMLA_API smla_status smla_lse_from_log2(const smla_tensor* log2_lse, const smla_tensor* lse);

typedef struct smla_combined_rows_args {
    uint32_t struct_size;
    /* Tokens. */
    int32_t window;
    /* 0: window only. */
    int32_t ratio;
    /* Columns of `selected` that count. */
    int32_t topk;
    /* Rows per request of the workspace: entries first, then from `entries` on the gathered tokens. */
    int32_t stride;
    int32_t entries;
    /* [T,>=topk] i32: entries of the token's request. Absent with topk 0. */
    smla_tensor selected;
    /* [B+1] i32, from any base. */
    smla_tensor query_start_loc;
    /* [B] i32 */
    smla_tensor seq_lens;
    /* [B] i32: how many of its last tokens are gathered. */
    smla_tensor gather_lens;
    /* [T,>=topk+window] i32; DeepSeek's kernels want a multiple of 128 columns. */
    smla_tensor rows;
    /* [T] i32 */
    smla_tensor lens;
} smla_combined_rows_args;

/* Rows of prefill tokens in a gathered workspace: the selected entries (-1 if >= `entries`), immediately
 * followed by the window rows, padded with -1. */
SMLA_API smla_status smla_combined_rows(const smla_combined_rows_args* args);

typedef struct smla_mixed_rows_args {
    uint32_t struct_size;
    /* Tokens. */
    int32_t window;
    /* 0: window only. */
    int32_t ratio;
    /* Selected entries per prefill token. */
    int32_t topk;
    /* 1: decode_entries are entries of the request. 0: they are rows of the cache. */
    int32_t local;
    /* Pages of the window cache and of the compressed one; page_rows 0: page_tokens. */
    int32_t window_page_tokens;
    int32_t window_page_rows;
    int32_t entry_page_tokens;
    int32_t entry_page_rows;
    int32_t reserved;
    /* [Td,window] i32, Td decode tokens. */
    smla_tensor decode_window_rows;
    /* [Td,Kd] i32, optional. */
    smla_tensor decode_entries;
    /* [Td] i32, optional: Kd. Only with local 0. */
    smla_tensor decode_lens;
    /* [>=Td] u8, with local 1. */
    smla_tensor is_valid;
    /* [Tp,>=topk] i32: entries of the request. Tp prefill tokens, none if absent; [Tp,0] if topk is 0. */
    smla_tensor prefill_entries;
    /* [R+1] i32, of the whole batch. */
    smla_tensor query_start_loc;
    /* [R] i32 */
    smla_tensor seq_lens;
    /* [>=Td+Tp] i32 */
    smla_tensor request_of_token;
    /* [R,MB] i32 */
    smla_tensor window_table;
    /* [R,MB] i32; absent with ratio 0. */
    smla_tensor entry_table;
    /* [Td+Tp, window + P] i32, P = max(topk, Kd) rounded up to a multiple of 4. */
    smla_tensor rows;
    /* [Td+Tp] i32: counts the whole window, even where it is not full yet. */
    smla_tensor lens;
} smla_mixed_rows_args;

/* Rows of a mixed batch, decode tokens first: `window` columns of the window cache, then the compressed rows,
 * each through its own table. */
SMLA_API smla_status smla_mixed_rows(const smla_mixed_rows_args* args);

typedef struct smla_decode_schedule_args {
    uint32_t struct_size;
    int32_t reserved;
    /* [B] i32: listed rows of each request. */
    smla_tensor lens;
    /* [parts,8] i32: first request (-1: idle), first block, last request, end block, first split, 0, 0, 0. */
    smla_tensor schedule;
    /* [B+1] i32: prefix sums of how many parts work on each request. */
    smla_tensor splits;
} smla_decode_schedule_args;

/* FlashMLA's decode schedule: how `parts` of a GPU share the requests, in blocks of 64 rows. */
SMLA_API smla_status smla_decode_schedule(const smla_decode_schedule_args* args);

typedef struct smla_prefill_chunks_args {
    uint32_t struct_size;
    /* A request has seq_len / ratio rows; 0: 1. */
    int32_t ratio;
    /* Gathered rows per chunk, at most 2^31 - 1; 0: so many. */
    int64_t max_rows;
    /* Bound on the f32 logits of a chunk, query tokens x rows; 0: no bound. */
    int64_t max_logits_bytes;
    /* Prefill begins with this request. */
    int32_t first_request;
    /* Per chunk; 0: no bound. */
    int32_t max_requests;
    /* [R+1] i32 */
    smla_tensor query_start_loc;
    /* [R] i32 */
    smla_tensor seq_lens;
    /* [N,6] i32: first request, end request, first query token, end query token of the batch, rows, 1 if the
     * rows are still there from the chunk before. N: query tokens + requests always suffice. */
    smla_tensor chunks;
    /* Out: chunks written. */
    int32_t count;
    int32_t reserved;
} smla_prefill_chunks_args;

/* Cuts prefill requests into chunks within the bounds. A request whose logits alone exceed
 * max_logits_bytes is cut along its query tokens, into pieces of at least one token; later pieces reuse the
 * gathered rows.
 * Refused: a request of more than max_rows rows; chunks that are too few. */
SMLA_API smla_status smla_prefill_chunks(smla_prefill_chunks_args* args);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_ROWS_H */
