/* smla/stages_cache.h: writing, compressing, gathering, copying and mapping cached tokens. smla/stages.h
 * documents the rules of all stage calls, smla/types.h the letters of shapes. */
#ifndef SMLA_STAGES_CACHE_H
#define SMLA_STAGES_CACHE_H

#include <smla/stages_linear.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_write_args {
    uint32_t struct_size;
    /* write_index: 1 multiplies the row by the Hadamard matrix H_D / sqrt(D) before encoding; D must be a
     * power of two. write_kv: 0. */
    int32_t hadamard;
    /* First part of the rows, [T,Dhead] f32, bf16, f16 (f64: row_f64) */
    smla_tensor head;
    /* Second part of the rows, [T,Dtail], optional: the rope part. */
    smla_tensor tail;
    /* Row that each token writes, [N] i64 or i32, N <= T. Tokens without a slot, or with a masked slot, write
     * nothing. If two tokens have the same slot, the row has the values of one of them or a mixture of both,
     * which may differ between calls; check_indices does not report it. */
    smla_tensor slots;
    /* Cache of width Dhead + Dtail. */
    smla_cache cache;
    /* Kind of norm; see smla_norm_args. */
    smla_norm_kind norm_kind;
    /* Channel pairs of the rotation by position; see smla_rope_args. */
    smla_rope_style rope_style;
    /* First rotated channel of the row. */
    int32_t rope_first;
    int32_t reserved;
    /* Epsilon of the norm: > 0, also after rounding to f32; ignored without norm_weight. */
    double eps;
    /* Weights of the norm of head, [Dhead], optional. Default: no norm. */
    smla_tensor norm_weight;
    /* Bias of the norm, [Dhead], optional, only with norm_weight and LAYER. Default: zeros. */
    smla_tensor norm_bias;
    /* Positions, [T] i32 or i64, optional: rotates channels [rope_first, rope_first + 2n) of the row by
     * positions[t] * frequencies[i], after the norm. */
    smla_tensor positions;
    /* Radians per position of each channel pair, [n] f64; only with positions. */
    smla_tensor frequencies;
    /* Output, [T,Dhead + Dtail], optional: the normed and rotated row before hadamard and encoding, also of a
     * token with a masked slot. Rows of tokens without a slot are not written. */
    smla_tensor values;
} smla_write_args;

/* Encodes [head | tail] of token t into row slots[t] of a KV cache, optionally normed and rotated.
 * Errors: SMLA_INVALID_ARGUMENT for an index format, hadamard, a row whose width is not the cache's, or a
 * rotation beyond the row. */
SMLA_API smla_status smla_write_kv(smla_context* context, const smla_write_args* args,
                                   smla_workspace workspace, smla_stream stream);

/* Encodes [head | tail] like smla_write_kv, into a cache of index keys in an index or row format.
 * Errors: SMLA_INVALID_ARGUMENT for a KV format, hadamard if D is not a power of two, and as in
 * smla_write_kv. */
SMLA_API smla_status smla_write_index(smla_context* context, const smla_write_args* args,
                                      smla_workspace workspace, smla_stream stream);

typedef struct smla_save_state_args {
    uint32_t struct_size;
    int32_t reserved;
    /* Values and scores, each [T,W], W = coff * D. coff is 2 at ratio 4 of V4, where windows overlap;
     * otherwise 1, also in GLM-5.3. */
    smla_tensor kv;
    smla_tensor score;
    /* Bias of the scores by the token's place in its group, [ratio,W] f32 (f64), optional. V4.1 has none. */
    smla_tensor ape;
    /* Positions of the tokens in their requests, [T] i32 or i64. */
    smla_tensor positions;
    /* Row that each token writes, [N] i64 or i32, N <= T; masked values write nothing. For duplicate slots,
     * see smla_write_args. */
    smla_tensor slots;
    /* Cache of format state_f32 (state_f64), width 2 * W. */
    smla_cache state;
} smla_save_state_args;

/* Saves the inputs of compress: row slots[t] of `state` = kv[t] | score[t] + ape[positions[t] % ratio], or
 * score[t] without ape.
 * Errors: SMLA_INVALID_ARGUMENT for another format of `state`, or a width other than 2 * W. */
SMLA_API smla_status smla_save_state(smla_context* context, const smla_save_state_args* args,
                                     smla_workspace workspace, smla_stream stream);

typedef struct smla_compress_args {
    uint32_t struct_size;
    /* Tokens per entry, >= 1. At 4, windows overlap: of 8 rows, the older four contribute channels [0,D) and
     * the newer four channels [D,2D). */
    int32_t ratio;
    /* Index entries: 1 applies the Hadamard matrix, as in smla_write_args. */
    int32_t hadamard;
    /* 1: windows do not overlap, even at ratio 4 (GLM-5.3). */
    int32_t no_overlap;
    /* Epsilon of the entry's RMS norm: > 0, also after rounding to f32; ignored without norm_weight. */
    double eps;
    /* Cache of format state_f32 (state_f64), width 2 * coff * D: coff is 2 at ratio 4 unless no_overlap,
     * otherwise 1. */
    smla_cache state;
    /* Pages of each request in `state`, [R,MB] i32. */
    smla_tensor state_table;
    /* Request of each token, [T] i32 */
    smla_tensor request_of_token;
    /* Positions of the tokens in their requests, [T] i32 or i64 */
    smla_tensor positions;
    /* Row of the entry in `cache`, [N] i64 or i32, N <= T; masked if the token completes no entry. For
     * duplicate slots, see smla_write_args. */
    smla_tensor slots;
    /* Weights of the entry's norm, [D], optional. Default: no norm (GLM-5.3). */
    smla_tensor norm_weight;
    /* Radians per position of each channel pair, [n] f64; rotates the last 2n channels, interleaved. */
    smla_tensor frequencies;
    /* Cache of the entries, in any KV or index format of width D. */
    smla_cache cache;
    /* Output, [T,D], optional: the entry before encoding. Rows of tokens without an entry are not written. */
    smla_tensor entries;
    /* Output, [T,D], optional: the entry before rotation, from which V4.1 computes its index keys. */
    smla_tensor latents;
} smla_compress_args;

/* Computes compressed entries. A token with (position + 1) % ratio == 0 and a valid slot completes an entry:
 * the state rows of its window are pooled, normed, rotated at position / ratio * ratio, and written to row
 * slots[t]. The state rows of the step's own tokens must have been saved.
 * Errors: SMLA_INVALID_ARGUMENT if the width of `state` does not match ratio and D; for hadamard with a KV
 * format. */
SMLA_API smla_status smla_compress(smla_context* context, const smla_compress_args* args,
                                   smla_workspace workspace, smla_stream stream);

typedef struct smla_gather_args {
    uint32_t struct_size;
    /* 1 copies codes and scales as they are stored (only index_fp8_132), 0 copies values. */
    int32_t raw;
    smla_cache cache;
    /* Pages of each request, [R,MB] i32 */
    smla_tensor block_table;
    /* First token of each request, [R] i32, optional. Default: 0. */
    smla_tensor starts;
    /* Prefix sums of the requests' token counts, [R+1] i32. */
    smla_tensor cu;
    /* Output, [N,D]; e4m3 if raw. Rows from cu[R] on are not written. */
    smla_tensor out;
    /* Output, [N] f32; only if raw. */
    smla_tensor scales;
} smla_gather_args;

/* Copies cached rows of each request to dense rows: tokens [starts[r], starts[r] + n) of request r go to rows
 * [cu[r], cu[r+1]) of out, n = cu[r+1] - cu[r].
 * Errors: SMLA_INVALID_ARGUMENT for raw with another format, or scales without raw. */
SMLA_API smla_status smla_gather(smla_context* context, const smla_gather_args* args,
                                 smla_workspace workspace, smla_stream stream);

typedef struct smla_copy_pages_args {
    uint32_t struct_size;
    int32_t reserved;
    smla_cache source;
    smla_cache target;
    /* Pages to copy, [N,2] i32: page of source, page of target. */
    smla_tensor pairs;
} smla_copy_pages_args;

/* Copies whole pages, for prefix sharing and preemption. `source` and `target` may be the same cache. A pair
 * with a page that does not exist is skipped. A page that is the target of one pair and occurs in another
 * pair has undefined contents.
 * Errors: SMLA_INVALID_ARGUMENT if format, width, page size or (on the host) scale of the caches differ. */
SMLA_API smla_status smla_copy_pages(smla_context* context, const smla_copy_pages_args* args,
                                     smla_workspace workspace, smla_stream stream);

typedef struct smla_map_args {
    uint32_t struct_size;
    int32_t page_tokens;
    /* Rows from one page to the next; 0 means page_tokens. */
    int32_t page_rows;
    /* Consecutive tokens per position, as in the pools of GLM-5.3. 0 means 1. */
    int32_t pool_tokens;
    /* Positions in the requests, [T,P] i32 */
    smla_tensor positions;
    /* Request of each token, [T] i32 */
    smla_tensor request_of_token;
    /* Pages of each request, [R,MB] i32 */
    smla_tensor block_table;
    /* Output, [T,K] i32; K = P * pool_tokens, plus pool_tokens - 1 with visible_tokens. If K = P, may be
     * positions. */
    smla_tensor rows;
    /* Output, [T] i32, optional: number of rows[t] that are not -1. */
    smla_tensor counts;
    /* Output, [T] i32, optional: columns of rows[t] up to the last that is not -1, for attend's lengths. */
    smla_tensor lengths;
    /* Lengths of the lists of positions, [T] i32, optional. Columns from there on are treated as -1. */
    smla_tensor limits;
    /* Number of tokens that each token sees, [T] i32, optional. With this tensor, rows also lists the tokens
     * after the last whole pool, after the tokens of the last pool of positions[t] that is not negative. */
    smla_tensor visible_tokens;
} smla_map_args;

/* Converts positions of a request to rows of a cache, with p = positions[t,j]:
 *
 *   rows[t,j] = block_table[request_of_token[t]][p / page_tokens] * page_rows + p % page_tokens
 *
 * A position < 0 or beyond the table becomes -1. No row changes its column. A pool p lists its tokens,
 * pool_tokens * p and on, in consecutive columns.
 * Errors: SMLA_INVALID_ARGUMENT if page_rows is below page_tokens. */
SMLA_API smla_status smla_map(smla_context* context, const smla_map_args* args, smla_workspace workspace,
                              smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_CACHE_H */
