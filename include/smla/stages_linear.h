/* smla/stages_linear.h: norm, rope, and the matrix products around attention. Letters in shapes: G groups or
 * heads, N and K channels of a product, D channels of a row, others as in smla/types.h. Sums are f64 if the
 * output is f64, otherwise f32. smla/stages.h documents the rules of all stage calls.
 *
 * BLAS: products that no kernel of the cpu engine supports run in OpenBLAS or another library with
 * cblas_sgemm. The first such call loads the library named by the environment variable SMLA_CBLAS or, if it
 * is unset, an installed one. OpenBLAS needs 128 MiB of address space per thread and per concurrent call, and
 * reads OPENBLAS_NUM_THREADS and OPENBLAS_CORETYPE. If there is no library, or no memory to load it, smla's
 * own loops run for the life of the process, several times slower. The loops also run if SMLA_CBLAS is empty.
 * If SMLA_CBLAS names a library that cannot be loaded, calls return SMLA_INVALID_ARGUMENT. */
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
    /* Epsilon: > 0, also after rounding to f32. */
    double eps;
    /* Input, [T,G,D] */
    smla_tensor x;
    /* Weights, [D], optional. Default: ones. */
    smla_tensor weight;
    /* Bias, [D], optional, only for LAYER. Default: zeros. */
    smla_tensor bias;
    /* Output, [T,G,D]; may be x. */
    smla_tensor out;
} smla_norm_args;

/* Norms each row. RMS: out = x / sqrt(mean(x^2) + eps) * weight. LAYER: the RMS norm of x - mean(x), plus
 * bias.
 * Errors: SMLA_INVALID_ARGUMENT if eps is 0, negative or not finite, also after rounding to f32; for a bias
 * with RMS. */
SMLA_API smla_status smla_norm(smla_context* context, const smla_norm_args* args, smla_workspace workspace,
                               smla_stream stream);

typedef int32_t smla_rope_style;
enum {
    /* Channel pairs (2i, 2i + 1). */
    SMLA_ROPE_INTERLEAVED = 0,
    /* Channel pairs (i, i + n). */
    SMLA_ROPE_HALF = 1
};

typedef struct smla_rope_args {
    uint32_t struct_size;
    smla_rope_style style;
    /* rope: 1 rotates by the negative angle, 0 by the positive. inverse_rope: 0 or 1, always negative. */
    int32_t inverse;
    /* First rotated channel. */
    int32_t first;
    /* Input, [T,G,D]; rotated in place if there is no `out`. */
    smla_tensor x;
    /* Positions in any order, [T] i32 or i64. */
    smla_tensor positions;
    /* Radians per position of each channel pair, [n] f64. */
    smla_tensor frequencies;
    /* Optional output: [T,G,2n] for only the rotated channels, [T,G,D] for whole rows. */
    smla_tensor out;
} smla_rope_args;

/* Rotates channels [first, first + 2n) of x by positions[t] * frequencies[i].
 * Errors: SMLA_INVALID_ARGUMENT if first + 2n exceeds D. */
SMLA_API smla_status smla_rope(smla_context* context, const smla_rope_args* args, smla_workspace workspace,
                               smla_stream stream);

/* Rotates channels back, by -positions[t] * frequencies[i]. Errors are as in smla_rope. */
SMLA_API smla_status smla_inverse_rope(smla_context* context, const smla_rope_args* args,
                                       smla_workspace workspace, smla_stream stream);

typedef struct smla_project_args {
    uint32_t struct_size;
    int32_t reserved;
    /* Input, [T,G,K] */
    smla_tensor x;
    /* Weights, [G,N,K] with any strides, except that one of the last two strides must be 1. */
    smla_tensor w;
    /* Output, [T,G,N] */
    smla_tensor out;
} smla_project_args;

/* Computes out[t,g,n] = sum_k x[t,g,k] * w[g,n,k], with G = 1 for projections of hidden states. The three
 * functions below compute the same product at other places of a layer, so that each can have its own kernel.
 * Errors: SMLA_INVALID_ARGUMENT if T, G, N or K of x, w and out differ; if w has no stride of 1 in its last
 * two dimensions. The three functions below return the same errors. */
SMLA_API smla_status smla_project(smla_context* context, const smla_project_args* args,
                                  smla_workspace workspace, smla_stream stream);

/* Multiplies queries [T,H,nope] by W_UK (read transposed) into the latent space before attention, with G =
 * H. */
SMLA_API smla_status smla_absorb(smla_context* context, const smla_project_args* args,
                                 smla_workspace workspace, smla_stream stream);

/* Multiplies attended latents [T,H,latent] by W_UV to values [T,H,Dv] after attention, with G = H. */
SMLA_API smla_status smla_up_project(smla_context* context, const smla_project_args* args,
                                     smla_workspace workspace, smla_stream stream);

/* Multiplies by the output weights of a layer, back to hidden states; in V4, the product is grouped. */
SMLA_API smla_status smla_out_project(smla_context* context, const smla_project_args* args,
                                      smla_workspace workspace, smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_LINEAR_H */
