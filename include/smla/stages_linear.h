/* smla/stages_linear.h: norm, rope, and the products around attention (project, absorb, up_project,
 * out_project). Shapes: T query tokens, G groups or heads, D channels. dtypes f64 (reference), f32, bf16,
 * f16, mixed freely; sums in f64 if the output is f64, else in f32. */
#ifndef SMLA_STAGES_LINEAR_H
#define SMLA_STAGES_LINEAR_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_norm_kind;
enum { SMLA_NORM_RMS = 0, SMLA_NORM_LAYER = 1 };

/* norm: out = x / sqrt(mean(x^2) + eps) * weight (RMS), or the same of x - mean(x), plus bias (LAYER). */
typedef struct smla_norm_args {
    uint32_t struct_size;
    smla_norm_kind kind;
    double eps;         /* > 0 */
    smla_tensor x;      /* [T,G,D] */
    smla_tensor weight; /* [D], optional */
    smla_tensor bias;   /* [D], optional, LAYER only */
    smla_tensor out;    /* [T,G,D]; may be x */
} smla_norm_args;

typedef int32_t smla_rope_style;
enum { SMLA_ROPE_INTERLEAVED = 0 /* pairs (2i, 2i+1) */, SMLA_ROPE_HALF = 1 /* pairs (i, i + n) */ };

/* rope (and inverse_rope, with `inverse`): rotates channels [first, first + 2n) of x by positions[t] * f_i,
 * in place or into `out`. */
typedef struct smla_rope_args {
    uint32_t struct_size;
    smla_rope_style style;
    int32_t inverse;         /* 1: by the negative angle */
    int32_t first;           /* first rotated channel */
    smla_tensor x;           /* [T,G,D], changed in place unless `out` is given */
    smla_tensor positions;   /* [T] i32 or i64, token order not needed */
    smla_tensor frequencies; /* [n] f64: radians per position of each pair */
    smla_tensor out;         /* optional: [T,G,2n] takes the rotated channels only, [T,G,D] the whole row */
} smla_rope_args;

/* project, absorb, up_project, out_project: out[t,g,n] = sum_k x[t,g,k] * w[g,n,k]. A view of a weight may be
 * strided in any way (absorb reads W_UK transposed, out_project of V4 is grouped); one of its last two
 * strides must be 1. */
typedef struct smla_project_args {
    uint32_t struct_size;
    int32_t reserved;
    smla_tensor x;   /* [T,G,K] */
    smla_tensor w;   /* [G,N,K] */
    smla_tensor out; /* [T,G,N] */
} smla_project_args;

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_LINEAR_H */
