/* smla/stages_index.h: the indexer, which chooses the tokens (or compressed entries) that attention reads.
 * Here D is the width of an index key. What all stage calls share stands in smla/stages.h, the letters of
 * shapes in smla/types.h. */
#ifndef SMLA_STAGES_INDEX_H
#define SMLA_STAGES_INDEX_H

#include <smla/stages_linear.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_quant_index_q_args {
    uint32_t struct_size;
    /* 1: rotate by H_D / sqrt(D) before the codes, as the keys were; D a power of two. */
    int32_t hadamard;
    /* Least amax of a query head; 0: 1e-4 (V4). V3.2 uses 1e-10. */
    double amax_floor;
    /* Hi^-0.5 * D^-0.5, > 0, also as an f32. */
    double factor;
    /* [T,Hi,D] */
    smla_tensor q;
    /* [T,Hi]: weights of the heads. */
    smla_tensor w;
    /* [T,Hi,D] e4m3, e2m1, bf16, f32 (f64) */
    smla_tensor q_out;
    /* [T,Hi,D/32] e8m0, with e2m1 only. */
    smla_tensor scales;
    /* [T,Hi] f32 (f64). May be w. */
    smla_tensor w_out;
    /* Channel pairs of the rotation by position; see smla_rope_args. */
    smla_rope_style rope_style;
    /* The first rotated channel. */
    int32_t rope_first;
    /* [T] i32 or i64, optional: rotates channels [rope_first, rope_first + 2n) of q by
     * positions[t] * frequencies[i] before all else. */
    smla_tensor positions;
    /* [n] f64, with positions only: radians per position of each pair. */
    smla_tensor frequencies;
    /* [T,Hi,D] f32, bf16, f16 (f64), optional: the queries rotated by position, before hadamard. */
    smla_tensor rotated;
} smla_quant_index_q_args;

/* Index queries in the type of the keys, their scale in the weights:
 *   q_out e4m3       q_out[t,h] = q[t,h] / s, s = 2^ceil(log2(max(amax, amax_floor) / 448));
 *                    w_out = w * factor * s
 *   q_out e2m1       one scale per 32 values in `scales`; w_out = w * factor
 *   q_out f32, bf16  a copy; w_out = w * factor
 * Refused: scales without e2m1; e2m1 where D is no multiple of 32; hadamard where D is no power of two; a
 * rotation beyond D. */
SMLA_API smla_status smla_quant_index_q(smla_context* context, const smla_quant_index_q_args* args,
                                        smla_workspace workspace, smla_stream stream);

typedef struct smla_score_args {
    uint32_t struct_size;
    /* 1: columns outside of the window become -inf. 0: they stay as they are. */
    int32_t fill;
    /* [T,Hi,D] e4m3, e2m1, bf16, f32 (f64) */
    smla_tensor q;
    /* [T,Hi,D/32] e8m0, with e2m1 only. */
    smla_tensor q_scales;
    /* [T,Hi] f32 (f64): all scales of q included. */
    smla_tensor w;
    /* Index or row format of width D. */
    smla_cache keys;
    /* [R,MB] i32, optional. Given (paged): column j is token j of the request. Absent (ragged): column j is
     * row j of `keys`. */
    smla_tensor block_table;
    /* [T] i32, with block_table only. */
    smla_tensor request_of_token;
    /* [T] i32, optional: 0. Clamped to [0, N]. */
    smla_tensor starts;
    /* [T] i32: one past the last column. Clamped to [0, N]. */
    smla_tensor ends;
    /* [T,N] f32, bf16 (f64). bf16: those of f32, rounded to nearest, ties to even. */
    smla_tensor logits;
    smla_precision precision;
    int32_t reserved;
} smla_score_args;

/* logits[t,j] = key_scale[j] * sum_h w[t,h] * relu(q[t,h] . k[j]) for starts[t] <= j < ends[t]. A NaN product
 * stays NaN.
 * Refused: keys that are not as wide as q; more than 256 heads or 1024 channels; one of block_table and
 * request_of_token without the other. */
SMLA_API smla_status smla_score(smla_context* context, const smla_score_args* args, smla_workspace workspace,
                                smla_stream stream);

typedef struct smla_select_args {
    uint32_t struct_size;
    /* 1: indices count from starts[t]. */
    int32_t relative;
    /* [T,N] f32, bf16, f16 (f64) */
    smla_tensor scores;
    /* [T,N] i32, optional: column j stands for ids[t,j], and ids are returned (to merge lists of several
     * ranks). Columns with ids < 0 are skipped. */
    smla_tensor ids;
    /* [T] i32, optional: 0 */
    smla_tensor starts;
    /* [T] i32, optional: N */
    smla_tensor ends;
    /* [T,k] i32 */
    smla_tensor indices;
    /* [T,k] f32 (f64), optional: the score of each index, -inf after the last. */
    smla_tensor selected;
    /* [T] i32, optional: how many were selected. */
    smla_tensor counts;
    /* [T,k] i32, optional: the selected columns as rows of a cache, as map finds them: column j is position j
     * of the token's request. -1 after the last, and where row_table has no page. Not with ids. */
    smla_tensor rows;
    /* [RC,MC] i32, with rows only: pages of each request in that cache. */
    smla_tensor row_table;
    /* [T] i32, with rows only. */
    smla_tensor request_of_token;
    /* Tokens per page of that cache, with rows only. */
    int32_t page_tokens;
    /* Rows from one page to the next; 0: page_tokens. */
    int32_t page_rows;
} smla_select_args;

/* The k best columns of [starts[t], ends[t]) of each row, as indices in ascending order, then -1. Rank: score
 * descending, ties to the lowest index (or id), -0 = +0, NaN below -inf.
 * Refused: relative or rows with ids; page_rows below page_tokens. */
SMLA_API smla_status smla_select(smla_context* context, const smla_select_args* args,
                                 smla_workspace workspace, smla_stream stream);

typedef struct smla_score_select_args {
    uint32_t struct_size;
    /* N: an upper bound of ends. */
    int32_t columns;
    /* Without logits. struct_size: its size or 0. */
    smla_score_args score;
    /* Without scores, ids, starts, ends and request_of_token: those of `score` count, so that rows need a
     * block_table there. struct_size: its size or 0. */
    smla_select_args select;
} smla_score_select_args;

/* score, then select, with the same bits but without storing whole logits: scratch is bounded by the
 * workspace.
 * Refused: what score and select refuse ("args.score.q", "args.select.indices"); present fields that must
 * be absent. */
SMLA_API smla_status smla_score_select(smla_context* context, const smla_score_select_args* args,
                                       smla_workspace workspace, smla_stream stream);

typedef struct smla_score_select_blocks_args {
    uint32_t struct_size;
    /* N: an upper bound of ends. */
    int32_t columns;
    /* Columns of a block, > 0. Block b of a token is columns starts[t] + b * block_size and on, and ends with
     * the window. */
    int32_t block_size;
    /* 1: indices count from starts[t]. */
    int32_t relative;
    /* [T,Hi,D] e4m3, e2m1, bf16, f32 (f64): this and what follows as of score. */
    smla_tensor q;
    /* [T,Hi,D/32] e8m0, with e2m1 only. */
    smla_tensor q_scales;
    /* [T,Hi] f32 (f64): all scales of q included. */
    smla_tensor w;
    /* Index or row format of width D. */
    smla_cache keys;
    /* [R,MB] i32, optional. */
    smla_tensor block_table;
    /* [T] i32, with block_table only. */
    smla_tensor request_of_token;
    /* [T] i32, optional: 0. */
    smla_tensor starts;
    /* [T] i32 */
    smla_tensor ends;
    /* [T,B] i32, optional: all blocks. The candidate blocks in any order; entries that are no block of the
     * window are holes, and a block counts once. */
    smla_tensor blocks;
    /* [T,k] i32: this and what follows as of select. */
    smla_tensor indices;
    /* [T,k] f32 (f64), optional. */
    smla_tensor selected;
    /* [T] i32, optional. */
    smla_tensor counts;
    /* [T,NB] f32 (f64), optional, NB = ceil(N / block_size): the best score of each candidate block, NaN only
     * if all are; +inf of the newest block, the last of the window; -inf of all others. */
    smla_tensor block_maxima;
    /* [T,KB] i32, optional: the best candidate blocks by those maxima, the newest one always among them, in
     * ascending order, then -1. Serves as `blocks` of later calls. */
    smla_tensor best_blocks;
} smla_score_select_blocks_args;

/* score and select within candidate blocks of columns: keys of other blocks are not read. With all blocks the
 * selection has the bits of score_select.
 * Refused: what score and select refuse; block_maxima of another width than NB. */
SMLA_API smla_status smla_score_select_blocks(smla_context* context,
                                              const smla_score_select_blocks_args* args,
                                              smla_workspace workspace, smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_INDEX_H */
