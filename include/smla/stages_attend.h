/* smla/stages_attend.h: sparse attention over listed rows of one or two caches, and the merge of partial
 * results. */
#ifndef SMLA_STAGES_ATTEND_H
#define SMLA_STAGES_ATTEND_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_precision;
enum {
    SMLA_PRECISION_DEFAULT = 0, /* exact */
    SMLA_PRECISION_EXACT = 1,   /* tile scale applied outside the products, never rounded into a key */
    SMLA_PRECISION_ROUNDED = 2  /* K may be bf16(code * scale): on a CPU it is, GPU kernels stay exact. The
                                 * same values where scales are powers of two */
};
typedef int32_t smla_lse_base;
enum { SMLA_LSE_LN = 0, SMLA_LSE_LOG2 = 1 };

/* A cache and, for each token, the rows of it that the token attends to. Holes are skipped wherever they
 * stand; rows at or past lengths[t] are never read; a row listed twice counts twice. */
typedef struct smla_attend_source {
    smla_cache cache;    /* width Dqk; format NONE: no such source */
    smla_tensor rows;    /* [T,K] i32 */
    smla_tensor lengths; /* [T] i32, optional: K. Clamped to [0, K] */
} smla_attend_source;

/* attend: out[t,h] = sum_j softmax_j(scale * q[t,h] . K[row j]) V[row j] over both sources together; V is the
 * first Dv values of the row. A token without valid rows: out 0, lse -inf. The sink adds exp(sink) to the
 * denominator only. */
typedef struct smla_attend_args {
    uint32_t struct_size;
    smla_precision precision;
    smla_lse_base lse_base;
    int32_t reserved;
    double softmax_scale;              /* > 0 */
    const float* softmax_scale_device; /* optional: overrides */
    double q_scale;                    /* q e4m3: value = code * q_scale, > 0; others: 0 or 1 */
    const float* q_scale_device;       /* optional: overrides */
    smla_tensor q;                     /* [T,H,Dqk] f32, bf16, f16, e4m3 (f64), 1 <= H <= 256 */
    smla_attend_source primary;
    smla_attend_source extra;
    smla_tensor sink;       /* [H] f32 (f64), optional: natural-log logit, not scaled */
    smla_tensor out;        /* [T,H,Dv] f32, bf16, f16 (f64), Dv <= Dqk */
    smla_tensor lse;        /* [T,H] f32 (f64), optional: without the sink */
    smla_tensor max_logits; /* [T,H] f32 (f64), optional: natural-log units, -inf if no row */
} smla_attend_args;

/* merge: joins n partial results of disjoint row lists, then applies the sink once. lse = -inf weighs exactly
 * 0. */
typedef struct smla_merge_args {
    uint32_t struct_size;
    smla_lse_base lse_base; /* of lse and lse_out */
    smla_tensor partials;   /* [n,T,H,Dv] f32, bf16, f16 (f64) */
    smla_tensor lse;        /* [n,T,H] f32 (f64) */
    smla_tensor sink;       /* [H] f32 (f64), optional */
    smla_tensor out;        /* [T,H,Dv] */
    smla_tensor lse_out;    /* [T,H] f32 (f64), optional: without the sink */
} smla_merge_args;

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_ATTEND_H */
