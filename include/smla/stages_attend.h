/* smla/stages_attend.h: sparse attention over listed rows of one or two caches, and the merge of partial
 * results. What all stage calls share stands in smla/stages.h, the letters of shapes in smla/types.h. */
#ifndef SMLA_STAGES_ATTEND_H
#define SMLA_STAGES_ATTEND_H

#include <smla/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Logarithms of sums of exponentials (lse): natural, or base 2. */
typedef int32_t smla_lse_base;
enum { SMLA_LSE_LN = 0, SMLA_LSE_LOG2 = 1 };

/* lse of a token without valid rows: -inf, or +inf as FlashMLA returns it. smla_merge accepts both. */
typedef int32_t smla_empty_lse;
enum { SMLA_EMPTY_LSE_MINUS_INF = 0, SMLA_EMPTY_LSE_PLUS_INF = 1 };

/* A cache and, for each token, the rows of it that the token attends to. Holes are skipped wherever they
 * stand. A row listed twice counts twice. */
typedef struct smla_attend_source {
    /* KV or row format, width Dqk. Format NONE: no such source. */
    smla_cache cache;
    /* [T,K] i32 */
    smla_tensor rows;
    /* [T] i32, optional: K. Clamped to [0, K]; rows[t,j] with j >= lengths[t] are never read. */
    smla_tensor lengths;
} smla_attend_source;

typedef struct smla_attend_args {
    uint32_t struct_size;
    smla_precision precision;
    /* Base of the logarithm in lse. */
    smla_lse_base lse_base;
    /* lse of a token without valid rows. */
    smla_empty_lse empty_lse;
    /* > 0 */
    double softmax_scale;
    /* Optional, where q lies: overrides softmax_scale; read when the kernel runs. */
    const float* softmax_scale_device;
    /* q e4m3: value = code * q_scale, > 0. Other q: 0 or 1. */
    double q_scale;
    /* Optional, where q lies: overrides q_scale; read when the kernel runs. */
    const float* q_scale_device;
    /* [T,H,Dqk] f32, bf16, f16, e4m3 (f64); 1 <= H <= 256, 1 <= Dqk <= 1024. */
    smla_tensor q;
    smla_attend_source primary;
    /* A second cache, of the same width. */
    smla_attend_source extra;
    /* [H] f32 (f64), optional: a natural-log logit, not scaled. */
    smla_tensor sink;
    /* [T,H,Dv] f32, bf16, f16 (f64), 1 <= Dv <= Dqk. With q e4m3: bf16 alone. */
    smla_tensor out;
    /* [T,H] f32 (f64), optional: without the sink. */
    smla_tensor lse;
    /* [T,H] f32 (f64), optional: the largest logit in natural-log units, -inf without a row. */
    smla_tensor max_logits;
    /* [T] i32 or i64, optional: rotates the last 2n channels of out back, as inverse_rope does with
     * the interleaved style. */
    smla_tensor out_positions;
    /* [n] f64, with out_positions only: radians per position of each pair. */
    smla_tensor out_frequencies;
} smla_attend_args;

/* out[t,h] = sum_j softmax_j(softmax_scale * q[t,h] . K[row j]) V[row j] over both sources together. V is the
 * first Dv values of the row. The sink adds exp(sink) to the denominator only. A token without valid rows has
 * out 0 and the lse that empty_lse names.
 * Refused: no source; caches that are not Dqk wide; more than 256 heads; 2n > Dv. */
SMLA_API smla_status smla_attend(smla_context* context, const smla_attend_args* args,
                                 smla_workspace workspace, smla_stream stream);

typedef struct smla_merge_args {
    uint32_t struct_size;
    /* Base of the logarithms in lse and lse_out. */
    smla_lse_base lse_base;
    /* [n,T,H,Dv] f32, bf16, f16 (f64): partial results of disjoint row lists. */
    smla_tensor partials;
    /* [n,T,H] f32 (f64), without the sink. A partial with lse -inf or +inf is empty and weighs exactly 0. */
    smla_tensor lse;
    /* [H] f32 (f64), optional: a natural-log logit. */
    smla_tensor sink;
    /* [T,H,Dv] f32, bf16, f16 (f64) */
    smla_tensor out;
    /* [T,H] f32 (f64), optional: without the sink. -inf if all partials are empty. */
    smla_tensor lse_out;
} smla_merge_args;

/* Joins n partial results of attend, then applies the sink once. A NaN in lse propagates to out and lse_out.
 * Refused: partials, lse and out of different n, T, H or Dv. */
SMLA_API smla_status smla_merge(smla_context* context, const smla_merge_args* args, smla_workspace workspace,
                                smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_ATTEND_H */
