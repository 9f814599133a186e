/* smla/rows.h: integer operations of the attention backends. They convert the selection of an indexer
 * (positions, or entries of a compressed cache, both local to a request) to the rows that attention kernels
 * read. Tensors must be on the host. Results are exact; masked entries are -1, and so are rows beyond a
 * request's table.
 *
 * For letters of shapes, see smla/types.h; B is the number of requests of a chunk. Every function returns
 * SMLA_INVALID_ARGUMENT for a wrong type or shape, for lengths and offsets that contradict each other
 * ("args.seq_lens[3]"), and for an output that overlaps another tensor or itself. */
#ifndef SMLA_ROWS_H
#define SMLA_ROWS_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_request_rows_args {
    uint32_t struct_size;
    int32_t page_tokens;
    /* Rows from one page to the next; 0 means page_tokens. Pages of several layers may interleave. */
    int32_t page_rows;
    int32_t compact; /* 1: moves entries of -1 behind the other rows, which keep their order. */
    /* Number of context-parallel ranks; 0 means 1. This rank keeps the positions p with (p / interleave) %
     * ranks == rank and looks them up in its local numbering. */
    int32_t ranks;
    int32_t rank;
    int32_t interleave; /* Consecutive positions of one rank; 0 means 1. */
    int32_t reserved;
    smla_tensor positions;        /* Positions in the requests, [T,K] i32 */
    smla_tensor request_of_token; /* Request of each token, [T] i32 */
    smla_tensor block_table;      /* Pages of each request, [R,MB] i32 */
    /* Validity of each token, [T] u8, optional. Tokens that are not valid have count 0. */
    smla_tensor is_valid;
    /* Workspace w of each token, [T] i32, optional. If w >= 0, rows are workspace_starts[w] + p, otherwise
     * rows of the cache. */
    smla_tensor workspace_of_token;
    smla_tensor workspace_starts; /* First row of each workspace, [B] i32; with workspace_of_token. */
    smla_tensor rows;             /* Output rows, [T,K] i32 */
    /* Output, [T] i32, optional: number of rows that are not -1. Equals the length of the list only if all -1
     * are at the end; see compact. */
    smla_tensor counts;
} smla_request_rows_args;

/* Computes rows[t,j], the row of positions[t,j] in the block table of the token's request: the stage `map`,
 * with context parallelism and gathered prefills. */
SMLA_API smla_status smla_request_rows(const smla_request_rows_args* args);

typedef struct smla_split_context_args {
    uint32_t struct_size;
    int32_t reserved;
    smla_tensor positions;    /* Positions in the requests, [T,K] i32 */
    smla_tensor context_lens; /* Cached tokens of each token's request, [T] i32 */
    smla_tensor context_rows; /* Output, [T,K] i32: positions < context_lens[t], the others are -1. */
    smla_tensor new_rows;     /* Output, [T,K] i32: position - context_lens[t], or -1 if that is negative. */
} smla_split_context_args;

/* Splits positions into positions in the cached context and positions in the tokens after it. */
SMLA_API smla_status smla_split_context(const smla_split_context_args* args);

/* Computes lse[i] = ln 2 * log2_lse[i] for [T,H] f32 tensors. Both arguments may be the same tensor. */
SMLA_API smla_status smla_lse_from_log2(const smla_tensor* log2_lse, const smla_tensor* lse);

typedef struct smla_combined_rows_args {
    uint32_t struct_size;
    int32_t window; /* Tokens in the window. */
    int32_t ratio;  /* Tokens per entry; 0 means that there is only a window. */
    int32_t topk;   /* Number of columns of `selected` that are used. */
    /* Rows per request in the workspace: `entries` rows of entries, then the gathered tokens. */
    int32_t stride;
    int32_t entries;
    /* Selected entries of the token's request, [T,>=topk] i32. Absent if topk is 0. */
    smla_tensor selected;
    /* Ascending token offsets of the requests, [B+1] i32; the first may be any number. */
    smla_tensor query_start_loc;
    smla_tensor seq_lens;    /* Tokens of each request, [B] i32 */
    smla_tensor gather_lens; /* Number of tokens gathered from the end of each request, [B] i32. */
    /* Output rows, [T,>=topk+window] i32; DeepSeek's kernels require a multiple of 128 columns. */
    smla_tensor rows;
    smla_tensor lens; /* Output: number of rows of each token, [T] i32 */
} smla_combined_rows_args;

/* Lists the rows of prefill tokens in a gathered workspace: the selected entries (-1 if >= `entries`),
 * immediately followed by the window rows, padded with -1. */
SMLA_API smla_status smla_combined_rows(const smla_combined_rows_args* args);

typedef struct smla_mixed_rows_args {
    uint32_t struct_size;
    int32_t window; /* Tokens in the window. */
    int32_t ratio;  /* Tokens per entry; 0 means that there is only a window. */
    int32_t topk;   /* Selected entries per prefill token. */
    /* 1: decode_entries are entries of the request. 0: decode_entries are rows of the cache. */
    int32_t local;
    /* Page sizes of the window cache and of the compressed cache; page_rows 0 means page_tokens. */
    int32_t window_page_tokens;
    int32_t window_page_rows;
    int32_t entry_page_tokens;
    int32_t entry_page_rows;
    int32_t reserved;
    smla_tensor decode_window_rows; /* Window rows of the Td decode tokens, [Td,window] i32. */
    /* Selected entries or rows of the decode tokens, [Td,Kd] i32, optional. */
    smla_tensor decode_entries;
    /* Number of decode_entries of each token, [Td] i32, optional. Default: Kd. Only if `local` is 0. */
    smla_tensor decode_lens;
    smla_tensor is_valid; /* Validity of each token, [>=Td] u8, if `local` is 1. */
    /* Selected entries of the Tp prefill tokens, [Tp,>=topk] i32; [Tp,0] if topk is 0. If absent, Tp = 0. */
    smla_tensor prefill_entries;
    smla_tensor query_start_loc;  /* Ascending token offsets of all requests of the batch, [R+1] i32. */
    smla_tensor seq_lens;         /* Tokens of each request, [R] i32 */
    smla_tensor request_of_token; /* Request of each token, [>=Td+Tp] i32 */
    smla_tensor window_table;     /* Pages of each request in the window cache, [R,MB] i32 */
    /* Pages of each request in the compressed cache, [R,MB] i32; absent if ratio is 0. */
    smla_tensor entry_table;
    /* Output rows, [Td+Tp, window + P] i32; P is max(topk, Kd) rounded up to a multiple of 4. */
    smla_tensor rows;
    /* Output, [Td+Tp] i32: number of columns, including all `window` columns of a window that is not full. */
    smla_tensor lens;
} smla_mixed_rows_args;

/* Lists the rows of a mixed batch, decode tokens first: `window` columns of rows of the window cache, then
 * rows of the compressed cache. */
SMLA_API smla_status smla_mixed_rows(const smla_mixed_rows_args* args);

typedef struct smla_decode_schedule_args {
    uint32_t struct_size;
    int32_t reserved;
    smla_tensor lens; /* Number of listed rows of each request, [B] i32. */
    /* Output, [parts,8] i32: first request (-1: idle), first block, last request, end block, first split, 0,
     * 0, 0. */
    smla_tensor schedule;
    /* Output, [B+1] i32: prefix sums of the number of parts that work on each request. */
    smla_tensor splits;
} smla_decode_schedule_args;

/* Computes FlashMLA's decode schedule, which divides the requests among `parts` of a GPU in blocks of 64
 * rows. */
SMLA_API smla_status smla_decode_schedule(const smla_decode_schedule_args* args);

typedef struct smla_prefill_chunks_args {
    uint32_t struct_size;
    int32_t ratio; /* Tokens per row: a request has seq_len / ratio rows. 0 means 1. */
    /* Bound on the gathered rows of a chunk, at most 2^31 - 1; 0 means 2^31 - 1. */
    int64_t max_rows;
    /* Bound on the bytes of a chunk's f32 logits (query tokens x rows); 0 means no bound. */
    int64_t max_logits_bytes;
    int32_t first_request;       /* First request of the prefill. */
    int32_t max_requests;        /* Bound on the requests of a chunk; 0 means no bound. */
    smla_tensor query_start_loc; /* Ascending token offsets of the requests, [R+1] i32 */
    smla_tensor seq_lens;        /* Tokens of each request, [R] i32 */
    /* Output, [N,6] i32: first request, end request, first query token, end query token of the batch, rows, 1
     * if the rows are still there from the previous chunk. N = query tokens + requests is always enough. */
    smla_tensor chunks;
    int32_t count; /* Output: number of chunks. */
    int32_t reserved;
} smla_prefill_chunks_args;

/* Divides prefill requests into chunks within the bounds. A request whose logits alone exceed
 * max_logits_bytes is divided along its query tokens into pieces of at least one token; later pieces reuse
 * the gathered rows. Fails if a request has more than max_rows rows, or if `chunks` has too few rows. */
SMLA_API smla_status smla_prefill_chunks(smla_prefill_chunks_args* args);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_ROWS_H */
