/* smla/stages_index.h: the indexer, which selects the tokens (or compressed entries) that attention reads.
 * Here, D is the width of an index key. smla/stages.h documents the rules of all stage calls, smla/types.h
 * the letters of shapes. */
#ifndef SMLA_STAGES_INDEX_H
#define SMLA_STAGES_INDEX_H

#include <smla/stages_linear.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_quant_index_q_args {
    uint32_t struct_size;
    /* 1: multiplies queries, like the keys, by the Hadamard matrix H_D / sqrt(D); D must be a power of
     * two. */
    int32_t hadamard;
    /* Lower bound of a query head's amax; 0 means 1e-4 (V4). V3.2 uses 1e-10. */
    double amax_floor;
    /* Factor of the weights, Hi^-0.5 * D^-0.5: > 0, also after rounding to f32. */
    double factor;
    /* Queries, [T,Hi,D] */
    smla_tensor q;
    /* Weights of the heads, [T,Hi] */
    smla_tensor w;
    /* Output queries, [T,Hi,D] e4m3, e2m1, bf16, f32 (f64) */
    smla_tensor q_out;
    /* Output scales, [T,Hi,D/32] e8m0; only with e2m1. */
    smla_tensor scales;
    /* Output weights, [T,Hi] f32 (f64). May be w. */
    smla_tensor w_out;
    /* Channel pairs of the rotation by position; see smla_rope_args. */
    smla_rope_style rope_style;
    /* First rotated channel. */
    int32_t rope_first;
    /* Positions, [T] i32 or i64, optional: first rotates channels [rope_first, rope_first + 2n) of q by
     * positions[t] * frequencies[i]. */
    smla_tensor positions;
    /* Radians per position of each channel pair, [n] f64; only with positions. */
    smla_tensor frequencies;
    /* Output, [T,Hi,D] f32, bf16, f16 (f64), optional: the queries rotated by position, before hadamard. */
    smla_tensor rotated;
} smla_quant_index_q_args;

/* Converts index queries to the type of the keys and multiplies their scales into the weights:
 *
 *   q_out e4m3       q_out[t,h] = q[t,h] / s, s = 2^ceil(log2(max(amax, amax_floor) / 448));
 *                    w_out = w * factor * s
 *   q_out e2m1       one scale per 32 values in `scales`; w_out = w * factor
 *   q_out f32, bf16  a copy; w_out = w * factor
 * Errors: SMLA_INVALID_ARGUMENT for scales without e2m1, e2m1 if D is not a multiple of 32, hadamard if D is
 * not a power of two, or a rotation beyond D. */
SMLA_API smla_status smla_quant_index_q(smla_context* context, const smla_quant_index_q_args* args,
                                        smla_workspace workspace, smla_stream stream);

typedef struct smla_score_args {
    uint32_t struct_size;
    /* 1: columns outside of [starts[t], ends[t]) become -inf; 0: such columns are not written. */
    int32_t fill;
    /* Queries, [T,Hi,D] e4m3, e2m1, bf16, f32 (f64) */
    smla_tensor q;
    /* Scales of the queries, [T,Hi,D/32] e8m0; only with e2m1. */
    smla_tensor q_scales;
    /* Weights of the heads, [T,Hi] f32 (f64), which include all other scales of q. */
    smla_tensor w;
    /* Cache of the keys, in an index or row format of width D. */
    smla_cache keys;
    /* Pages of each request, [R,MB] i32, optional. If present (paged), column j is token j of the request; if
     * absent (ragged), column j is row j of `keys`. */
    smla_tensor block_table;
    /* Request of each token, [T] i32; only with block_table. */
    smla_tensor request_of_token;
    /* First column of each token, [T] i32, optional. Default: 0. Clamped to [0, N]. */
    smla_tensor starts;
    /* End of the columns of each token, [T] i32. Clamped to [0, N]. */
    smla_tensor ends;
    /* Output, [T,N] f32, bf16 (f64). bf16 logits are f32 logits rounded to nearest, ties to even. */
    smla_tensor logits;
    smla_precision precision;
    int32_t reserved;
} smla_score_args;

/* Computes logits[t,j] = key_scale[j] * sum_h w[t,h] * relu(q[t,h] . k[j]) for starts[t] <= j < ends[t]. A
 * NaN product stays NaN.
 * Errors: SMLA_INVALID_ARGUMENT for keys that are not as wide as q, more than 256 heads or 1024 channels, or
 * one of block_table and request_of_token without the other. */
SMLA_API smla_status smla_score(smla_context* context, const smla_score_args* args, smla_workspace workspace,
                                smla_stream stream);

typedef struct smla_select_args {
    uint32_t struct_size;
    /* 1: indices are relative to starts[t]. */
    int32_t relative;
    /* Scores, [T,N] f32, bf16, f16 (f64) */
    smla_tensor scores;
    /* Ids of the columns, [T,N] i32, optional. indices then contains ids instead of columns, to merge lists
     * of several ranks. Columns with ids < 0 are skipped. */
    smla_tensor ids;
    /* First column of each token, [T] i32, optional. Default: 0 */
    smla_tensor starts;
    /* End of the columns of each token, [T] i32, optional. Default: N */
    smla_tensor ends;
    /* Output, [T,k] i32: the selected columns in ascending order, then -1. */
    smla_tensor indices;
    /* Output, [T,k] f32 (f64), optional: the score of each index, -inf after the last. */
    smla_tensor selected;
    /* Output, [T] i32, optional: number of selected columns. */
    smla_tensor counts;
    /* Output, [T,k] i32, optional: the selected columns as rows of a cache, as by smla_map: column j is
     * position j of the token's request. -1 after the last, and where row_table has no page. Not with ids. */
    smla_tensor rows;
    /* Pages of each request in that cache, [RC,MC] i32; only with rows. */
    smla_tensor row_table;
    /* Request of each token, [T] i32; only with rows. */
    smla_tensor request_of_token;
    /* Tokens per page of that cache; only with rows. */
    int32_t page_tokens;
    /* Rows from one page to the next; 0 means page_tokens. */
    int32_t page_rows;
} smla_select_args;

/* Selects the k best columns of [starts[t], ends[t]) in each row: the columns with the highest scores, of
 * equal scores those with the lowest index (or id). -0 equals +0, and NaN ranks below -inf.
 * Errors: SMLA_INVALID_ARGUMENT for relative or rows with ids; if page_rows is below page_tokens. */
SMLA_API smla_status smla_select(smla_context* context, const smla_select_args* args,
                                 smla_workspace workspace, smla_stream stream);

typedef struct smla_score_select_args {
    uint32_t struct_size;
    /* Upper bound N of ends. */
    int32_t columns;
    /* Arguments of score, without logits. struct_size is its size or 0. */
    smla_score_args score;
    /* Arguments of select, without scores, ids, starts, ends and request_of_token, which come from
     * `score`; rows therefore need score.block_table. struct_size is its size or 0. */
    smla_select_args select;
} smla_score_select_args;

/* Runs score, then select, with the same bits but without storing all logits: the workspace bounds the
 * scratch.
 * Errors: as in score and select ("args.score.q", "args.select.indices"), and SMLA_INVALID_ARGUMENT for
 * fields that must be absent. */
SMLA_API smla_status smla_score_select(smla_context* context, const smla_score_select_args* args,
                                       smla_workspace workspace, smla_stream stream);

typedef struct smla_score_select_blocks_args {
    uint32_t struct_size;
    /* Upper bound N of ends. */
    int32_t columns;
    /* Columns per block, > 0. Block b of a token begins at column starts[t] + b * block_size; the last block
     * ends at ends[t]. */
    int32_t block_size;
    /* 1: indices are relative to starts[t]. */
    int32_t relative;
    /* Queries, [T,Hi,D] e4m3, e2m1, bf16, f32 (f64). This and the fields up to ends are as in
     * smla_score_args. */
    smla_tensor q;
    /* Scales of the queries, [T,Hi,D/32] e8m0; only with e2m1. */
    smla_tensor q_scales;
    /* Weights of the heads, [T,Hi] f32 (f64), which include all other scales of q. */
    smla_tensor w;
    /* Cache of the keys, in an index or row format of width D. */
    smla_cache keys;
    /* Pages of each request, [R,MB] i32, optional. */
    smla_tensor block_table;
    /* Request of each token, [T] i32; only with block_table. */
    smla_tensor request_of_token;
    /* First column of each token, [T] i32, optional. Default: 0. */
    smla_tensor starts;
    /* End of the columns of each token, [T] i32 */
    smla_tensor ends;
    /* Candidate blocks in any order, [T,B] i32, optional. Default: all blocks. Invalid block numbers are
     * skipped, and a duplicate block counts once. */
    smla_tensor blocks;
    /* Output, [T,k] i32. This and the next two fields are as in smla_select_args. */
    smla_tensor indices;
    /* Output, [T,k] f32 (f64), optional. */
    smla_tensor selected;
    /* Output, [T] i32, optional. */
    smla_tensor counts;
    /* Output, [T,NB] f32 (f64), optional, NB = ceil(N / block_size): the best score of each candidate block,
     * NaN only if all its scores are NaN; +inf for the token's last block, -inf for all other blocks. */
    smla_tensor block_maxima;
    /* Output, [T,KB] i32, optional: the best candidate blocks by block_maxima, always including the token's
     * last block, in ascending order, then -1. Can be `blocks` of later calls. */
    smla_tensor best_blocks;
} smla_score_select_blocks_args;

/* Runs score and select on candidate blocks of columns, without reading keys of other blocks. With all
 * blocks, the selection has the bits of score_select.
 * Errors: as in score and select; SMLA_INVALID_ARGUMENT for block_maxima of another width than NB. */
SMLA_API smla_status smla_score_select_blocks(smla_context* context,
                                              const smla_score_select_blocks_args* args,
                                              smla_workspace workspace, smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_INDEX_H */
