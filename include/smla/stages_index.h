/* smla/stages_index.h: the indexer. Hi index heads, D index width, N columns (keys or compressed entries), k
 * selected. */
#ifndef SMLA_STAGES_INDEX_H
#define SMLA_STAGES_INDEX_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* quant_index_q: q8[t,h] = q[t,h] / s, s = 2^ceil(log2(max(amax, floor) / 448)); w_out = w * factor * s
 * (e4m3). out e2m1: scales [T,Hi,D/32] e8m0, w_out = w * factor. out f32/bf16: plain copy, w_out = w *
 * factor. */
typedef struct smla_quant_index_q_args {
    uint32_t struct_size;
    int32_t hadamard;   /* 1: rotate by H_D / sqrt(D) first, as the keys were */
    double amax_floor;  /* 0: 1e-4 (V4); V3.2 uses 1e-10 */
    double factor;      /* Hi^-0.5 * D^-0.5 */
    smla_tensor q;      /* [T,Hi,D] */
    smla_tensor w;      /* [T,Hi] */
    smla_tensor q_out;  /* [T,Hi,D] e4m3, e2m1, bf16, f32 (f64) */
    smla_tensor scales; /* [T,Hi,D/32] e8m0: e2m1 only */
    smla_tensor w_out;  /* [T,Hi] f32 (f64) */
} smla_quant_index_q_args;

/* score: logits[t,j] = key_scale[j] * sum_h w[t,h] * relu(q[t,h] . k[j]) for starts[t] <= j < ends[t].
 * Paged (block_table given): column j is token j of the request. Ragged: column j is row j of `keys`.
 * A NaN product stays NaN. Columns outside the window: -inf if `fill`, else untouched. */
typedef struct smla_score_args {
    uint32_t struct_size;
    int32_t fill;                 /* 1: columns outside the window become -inf */
    smla_tensor q;                /* [T,Hi,D] e4m3, e2m1, bf16, f32 (f64) */
    smla_tensor q_scales;         /* [T,Hi,D/32] e8m0: e2m1 only */
    smla_tensor w;                /* [T,Hi] f32 (f64), all scales folded in */
    smla_cache keys;              /* index or row format of width D */
    smla_tensor block_table;      /* [R,MB] i32, optional */
    smla_tensor request_of_token; /* [T] i32, with block_table */
    smla_tensor starts;           /* [T] i32, optional: 0. Clamped to [0, N] */
    smla_tensor ends;             /* [T] i32: one past the last column. Clamped to [0, N] */
    smla_tensor logits;           /* [T,N] f32 (f64) */
} smla_score_args;

/* select: the k best columns of [starts[t], ends[t]) of each row, as indices ascending, then -1. Rank: score
 * descending, ties to the lowest index, -0 = +0, NaN below -inf. With `ids`, column j stands for id ids[t,j]
 * (lists of several ranks merged; ids < 0 are skipped; ties to the lowest id) and ids are returned. */
typedef struct smla_select_args {
    uint32_t struct_size;
    int32_t relative;     /* 1: indices count from starts[t] */
    smla_tensor scores;   /* [T,N] f32, bf16, f16 (f64) */
    smla_tensor ids;      /* [T,N] i32, optional */
    smla_tensor starts;   /* [T] i32, optional: 0 */
    smla_tensor ends;     /* [T] i32, optional: N */
    smla_tensor indices;  /* [T,k] i32 */
    smla_tensor selected; /* [T,k] f32 (f64), optional: the score of each index, -inf after the last */
    smla_tensor counts;   /* [T] i32, optional: how many were selected */
} smla_select_args;

/* score_select: score, then select, bit for bit, without ever storing whole logits: scratch is bounded by the
 * workspace. score.logits is absent; select.scores, ids, starts and ends are absent (those of score count).
 * struct_size of score and of select: their sizes, or 0. */
typedef struct smla_score_select_args {
    uint32_t struct_size;
    int32_t columns; /* N: an upper bound of ends */
    smla_score_args score;
    smla_select_args select;
} smla_score_select_args;

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_INDEX_H */
