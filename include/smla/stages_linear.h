/* smla/stages_linear.h: norm, rope, and the matrix products around attention. G groups or heads, N and K
 * channels of a product; D channels of a row. Sums are in f64 if the output is f64, else in f32. What all
 * stage calls share stands in smla/stages.h, the other letters of shapes in smla/types.h.
 *
 * BLAS: products that no kernel of the cpu engine supports run in OpenBLAS or another library with
 * cblas_sgemm. The first such call loads the library that the environment variable SMLA_CBLAS names, else an
 * installed one. OpenBLAS needs 128 MiB of address space per thread and per concurrent call, and follows
 * OPENBLAS_NUM_THREADS and OPENBLAS_CORETYPE. If there is no library, or no memory for it when it is loaded,
 * smla's own loops run for the life of the process, several times slower. If SMLA_CBLAS is empty, the loops
 * run; if it names a library that cannot be loaded, calls return SMLA_INVALID_ARGUMENT. */
#ifndef SMLA_STAGES_LINEAR_H
#define SMLA_STAGES_LINEAR_H

#include <smla/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_norm_kind;
enum { SMLA_NORM_RMS = 0, SMLA_NORM_LAYER = 1 };

typedef struct smla_norm_args {
    uint32_t struct_size;
    smla_norm_kind kind;
    /* > 0, also as an f32. */
    double eps;
    /* [T,G,D] */
    smla_tensor x;
    /* [D], optional: ones. */
    smla_tensor weight;
    /* [D], optional: zeros. LAYER only. */
    smla_tensor bias;
    /* [T,G,D]; may be x. */
    smla_tensor out;
} smla_norm_args;

/* RMS: out = x / sqrt(mean(x^2) + eps) * weight. LAYER: the same of x - mean(x), plus bias.
 * Refused: eps that is 0, negative or not finite, also as an f32; a bias with RMS. */
SMLA_API smla_status smla_norm(smla_context* context, const smla_norm_args* args, smla_workspace workspace,
                               smla_stream stream);

typedef int32_t smla_rope_style;
enum {
    /* Pairs (2i, 2i + 1). */
    SMLA_ROPE_INTERLEAVED = 0,
    /* Pairs (i, i + n). */
    SMLA_ROPE_HALF = 1
};

typedef struct smla_rope_args {
    uint32_t struct_size;
    smla_rope_style style;
    /* 0 or 1. rope: 1 rotates by the negative angle. inverse_rope: always the negative angle. */
    int32_t inverse;
    /* The first rotated channel. */
    int32_t first;
    /* [T,G,D]; changed in place unless `out` is given. */
    smla_tensor x;
    /* [T] i32 or i64, in any order. */
    smla_tensor positions;
    /* [n] f64: radians per position of each pair. */
    smla_tensor frequencies;
    /* Optional: [T,G,2n] takes the rotated channels only, [T,G,D] the whole rows. */
    smla_tensor out;
} smla_rope_args;

/* Rotates channels [first, first + 2n) of x by positions[t] * frequencies[i].
 * Refused: first + 2n beyond D. */
SMLA_API smla_status smla_rope(smla_context* context, const smla_rope_args* args, smla_workspace workspace,
                               smla_stream stream);

/* Rotates back: by -positions[t] * frequencies[i].
 * Refused: as rope. */
SMLA_API smla_status smla_inverse_rope(smla_context* context, const smla_rope_args* args,
                                       smla_workspace workspace, smla_stream stream);

typedef struct smla_project_args {
    uint32_t struct_size;
    int32_t reserved;
    /* [T,G,K] */
    smla_tensor x;
    /* [G,N,K], strided in any way, but one of the last two strides must be 1. */
    smla_tensor w;
    /* [T,G,N] */
    smla_tensor out;
} smla_project_args;

/* out[t,g,n] = sum_k x[t,g,k] * w[g,n,k]: any projection of hidden states, G = 1.
 * Refused: x, w and out whose T, G, N or K differ; a w without a stride of 1 in its last two dimensions. The
 * three functions below are the same product by the name of its place, so that each can have its own kernel;
 * they refuse the same. */
SMLA_API smla_status smla_project(smla_context* context, const smla_project_args* args,
                                  smla_workspace workspace, smla_stream stream);

/* Before attention, G = H: queries [T,H,nope] through W_UK (read transposed) into the latent space. */
SMLA_API smla_status smla_absorb(smla_context* context, const smla_project_args* args,
                                 smla_workspace workspace, smla_stream stream);

/* After attention, G = H: attended latents [T,H,latent] through W_UV to the values [T,H,Dv] of the heads. */
SMLA_API smla_status smla_up_project(smla_context* context, const smla_project_args* args,
                                     smla_workspace workspace, smla_stream stream);

/* The last product of a layer, back to hidden states; in V4 it is grouped. */
SMLA_API smla_status smla_out_project(smla_context* context, const smla_project_args* args,
                                      smla_workspace workspace, smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_LINEAR_H */
