/* smla/stages_attend.h: sparse attention over listed rows of one or two caches, and merging of partial
 * results. smla/stages.h documents the rules of all stage calls, smla/types.h the letters of shapes. */
#ifndef SMLA_STAGES_ATTEND_H
#define SMLA_STAGES_ATTEND_H

#include <smla/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Base of the logarithms of sums of exponentials (lse): natural or 2. */
typedef int32_t smla_lse_base;
enum { SMLA_LSE_LN = 0, SMLA_LSE_LOG2 = 1 };

/* lse of a token without valid rows: -inf, or +inf as in FlashMLA. smla_merge accepts both. */
typedef int32_t smla_empty_lse;
enum { SMLA_EMPTY_LSE_MINUS_INF = 0, SMLA_EMPTY_LSE_PLUS_INF = 1 };

/* A cache and, for each token, the rows that the token attends to. Masked rows are skipped anywhere in a
 * list. A row that is listed twice counts twice. */
typedef struct smla_attend_source {
    /* Cache in a KV or row format of width Dqk. Format NONE means that there is no such source. */
    smla_cache cache;
    /* Listed rows of each token, [T,K] i32 */
    smla_tensor rows;
    /* Lengths of the lists, [T] i32, optional. Default: K. Clamped to [0, K]; rows[t,j] with j >= lengths[t]
     * are never read. */
    smla_tensor lengths;
} smla_attend_source;

typedef struct smla_attend_args {
    uint32_t struct_size;
    smla_precision precision;
    /* Base of the logarithm in lse. */
    smla_lse_base lse_base;
    /* lse of a token without valid rows. */
    smla_empty_lse empty_lse;
    /* Factor of the logits, > 0. */
    double softmax_scale;
    /* Optional softmax_scale on q's device, read when the kernel runs; overrides softmax_scale. */
    const float* softmax_scale_device;
    /* Scale of e4m3 queries, > 0: value = code * q_scale. For other queries, 0 or 1. */
    double q_scale;
    /* Optional q_scale on q's device, read when the kernel runs; overrides q_scale. */
    const float* q_scale_device;
    /* Queries, [T,H,Dqk] f32, bf16, f16, e4m3 (f64); 1 <= H <= 256, 1 <= Dqk <= 1024. */
    smla_tensor q;
    smla_attend_source primary;
    /* Second cache of the same width, with its lists. */
    smla_attend_source extra;
    /* Sink logits in natural-log units, [H] f32 (f64), optional. Not multiplied by softmax_scale. */
    smla_tensor sink;
    /* Output, [T,H,Dv] f32, bf16, f16 (f64); 1 <= Dv <= Dqk. bf16 if q is e4m3. */
    smla_tensor out;
    /* Output, [T,H] f32 (f64), optional: lse without the sink. */
    smla_tensor lse;
    /* Output, [T,H] f32 (f64), optional: largest logit in natural-log units, -inf without valid rows. */
    smla_tensor max_logits;
    /* Positions, [T] i32 or i64, optional: rotates the last 2n channels of out back, as inverse_rope does
     * with the interleaved style. */
    smla_tensor out_positions;
    /* Radians per position of each channel pair, [n] f64; only with out_positions. */
    smla_tensor out_frequencies;
} smla_attend_args;

/* Computes attention of each query to the rows listed for its token, with one softmax over both sources:
 *
 *   out[t,h] = sum_j softmax_j(softmax_scale * q[t,h] . K[row j]) V[row j]
 *
 * V is the first Dv values of a row. The sink only adds exp(sink) to the denominator. A token without valid
 * rows has out = 0 and the lse that empty_lse selects.
 * Errors: SMLA_INVALID_ARGUMENT if there is no source, a cache is not Dqk wide, H > 256, or 2n > Dv. */
SMLA_API smla_status smla_attend(smla_context* context, const smla_attend_args* args,
                                 smla_workspace workspace, smla_stream stream);

typedef struct smla_merge_args {
    uint32_t struct_size;
    /* Base of the logarithms in lse and lse_out. */
    smla_lse_base lse_base;
    /* Partial results over disjoint row lists, [n,T,H,Dv] f32, bf16, f16 (f64). */
    smla_tensor partials;
    /* lse without the sink, [n,T,H] f32 (f64). A partial with lse -inf or +inf is empty and has weight 0. */
    smla_tensor lse;
    /* Sink logits in natural-log units, [H] f32 (f64), optional. */
    smla_tensor sink;
    /* Merged result, [T,H,Dv] f32, bf16, f16 (f64) */
    smla_tensor out;
    /* Output, [T,H] f32 (f64), optional: lse without the sink, -inf if all partials are empty. */
    smla_tensor lse_out;
} smla_merge_args;

/* Merges n partial results of attend, then applies the sink once. A NaN in lse propagates to out and lse_out.
 * Errors: SMLA_INVALID_ARGUMENT if n, T, H or Dv differ between partials, lse and out. */
SMLA_API smla_status smla_merge(smla_context* context, const smla_merge_args* args, smla_workspace workspace,
                                smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_ATTEND_H */
