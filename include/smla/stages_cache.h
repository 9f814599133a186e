/* smla/stages_cache.h: writing, compressing, gathering, copying and mapping cached tokens. What all stage
 * calls share stands in smla/stages.h, the letters of shapes in smla/types.h. */
#ifndef SMLA_STAGES_CACHE_H
#define SMLA_STAGES_CACHE_H

#include <smla/stages_linear.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_write_args {
    uint32_t struct_size;
    /* write_index: 1 rotates the row by H_D / sqrt(D) before it is encoded; D a power of two. write_kv: 0. */
    int32_t hadamard;
    /* [T,Dhead] f32, bf16, f16 (f64: row_f64) */
    smla_tensor head;
    /* [T,Dtail], optional: the rope part, which follows head in the row. */
    smla_tensor tail;
    /* [N] i64 or i32, N <= T: row that each token writes. Tokens without a slot that is a row of the cache
     * write nothing. If two tokens have the same slot, the row holds one of them or a mixture of both, which
     * may differ from call to call; check_indices does not report it. */
    smla_tensor slots;
    /* Width Dhead + Dtail. */
    smla_cache cache;
    /* Kind of norm; see smla_norm_args. */
    smla_norm_kind norm_kind;
    /* Channel pairs of the rotation by position; see smla_rope_args. */
    smla_rope_style rope_style;
    /* The first rotated channel of the row. */
    int32_t rope_first;
    int32_t reserved;
    /* Epsilon of the norm: > 0, also after rounding to f32; ignored without norm_weight. */
    double eps;
    /* [Dhead], optional: norms head. Absent: no norm. */
    smla_tensor norm_weight;
    /* [Dhead], optional, with norm_weight and LAYER only: zeros. */
    smla_tensor norm_bias;
    /* [T] i32 or i64, optional: rotates channels [rope_first, rope_first + 2n) of the row by
     * positions[t] * frequencies[i], behind the norm. */
    smla_tensor positions;
    /* [n] f64, with positions only: radians per position of each pair. */
    smla_tensor frequencies;
    /* [T,Dhead + Dtail], optional: the normed and rotated row, before hadamard and encoding; of a token
     * whose slot is a hole, too. Rows of padding stay as they are. */
    smla_tensor values;
} smla_write_args;

/* Encodes [head | tail] of token t into row slots[t] of a KV cache, normed and rotated on the way if asked.
 * Refused: an index format, hadamard, a row that is not as wide as the cache, a rotation beyond it. */
SMLA_API smla_status smla_write_kv(smla_context* context, const smla_write_args* args,
                                   smla_workspace workspace, smla_stream stream);

/* The same for a cache of index keys: an index or row format.
 * Refused: a KV format, hadamard where D is not a power of two, otherwise as write_kv. */
SMLA_API smla_status smla_write_index(smla_context* context, const smla_write_args* args,
                                      smla_workspace workspace, smla_stream stream);

typedef struct smla_save_state_args {
    uint32_t struct_size;
    int32_t reserved;
    /* [T,W] and [T,W], W = coff * D. coff: 2 at ratio 4 of V4, where windows overlap; else 1, also in
     * GLM-5.3. */
    smla_tensor kv;
    smla_tensor score;
    /* [ratio,W] f32 (f64), optional: added to score by the token's place in its group. V4.1 has none. */
    smla_tensor ape;
    /* [T] i32 or i64: the token's order in its request. */
    smla_tensor positions;
    /* [N] i64 or i32, N <= T: row that each token writes; any other value writes nothing. For slots that
     * occur twice, see smla_write_args. */
    smla_tensor slots;
    /* state_f32 (state_f64), width 2 * W. */
    smla_cache state;
} smla_save_state_args;

/* Saves what compress will pool: row slots[t] of `state` = kv[t] | score[t] + ape[positions[t] % ratio], or
 * the score alone. Refused: a cache of another format, or not 2 * W wide. */
SMLA_API smla_status smla_save_state(smla_context* context, const smla_save_state_args* args,
                                     smla_workspace workspace, smla_stream stream);

typedef struct smla_compress_args {
    uint32_t struct_size;
    /* Tokens per entry, >= 1. At 4, windows overlap: 8 rows, of which the older four go through channels
     * [0,D) and the newer four through [D,2D). */
    int32_t ratio;
    /* Index entries: as in smla_write_args. */
    int32_t hadamard;
    /* 1: windows do not overlap at ratio 4 either (GLM-5.3). */
    int32_t no_overlap;
    /* Epsilon of the entry's RMS norm: > 0, also after rounding to f32; ignored without norm_weight. */
    double eps;
    /* state_f32 (state_f64), width 2 * coff * D: coff 2 at ratio 4 unless no_overlap, else 1. */
    smla_cache state;
    /* [R,MB] i32: pages of each request in `state`. */
    smla_tensor state_table;
    /* [T] i32 */
    smla_tensor request_of_token;
    /* [T] i32 or i64 */
    smla_tensor positions;
    /* [N] i64 or i32, N <= T: row of the entry in `cache`; a hole if the token completes no entry. For
     * slots that occur twice, see smla_write_args. */
    smla_tensor slots;
    /* [D], optional: no norm (GLM-5.3). */
    smla_tensor norm_weight;
    /* [n] f64: rotates the last 2n channels, interleaved. */
    smla_tensor frequencies;
    /* Where entries go: any KV or index format of width D. */
    smla_cache cache;
    /* [T,D], optional: the entry before it is encoded. Rows of tokens without an entry stay as they are. */
    smla_tensor entries;
    /* [T,D], optional: the entry before it is rotated, of which V4.1 makes its index keys. Likewise. */
    smla_tensor latents;
} smla_compress_args;

/* A token with (position + 1) % ratio == 0 and a valid slot closes an entry: the state rows of its window are
 * pooled, normed, rotated at position / ratio * ratio, and written to slots[t]. The state rows of the step's
 * own tokens must be saved before.
 * Refused: a state that is not as wide as ratio and D say; hadamard with a KV format. */
SMLA_API smla_status smla_compress(smla_context* context, const smla_compress_args* args,
                                   smla_workspace workspace, smla_stream stream);

typedef struct smla_gather_args {
    uint32_t struct_size;
    /* 1: codes and scales as they are stored; index_fp8_132 only. 0: values. */
    int32_t raw;
    smla_cache cache;
    /* [R,MB] i32 */
    smla_tensor block_table;
    /* [R] i32, optional: 0. The first token of each request. */
    smla_tensor starts;
    /* [R+1] i32: prefix sums of the token counts. */
    smla_tensor cu;
    /* [N,D]; raw: e4m3. Rows from cu[R] on stay as they are. */
    smla_tensor out;
    /* [N] f32; raw only. */
    smla_tensor scales;
} smla_gather_args;

/* Copies cached rows of each request to dense rows: tokens [starts[r], starts[r] + n) of request r go to rows
 * [cu[r], cu[r+1]) of out, n = cu[r+1] - cu[r].
 * Refused: raw with another format; scales without raw. */
SMLA_API smla_status smla_gather(smla_context* context, const smla_gather_args* args,
                                 smla_workspace workspace, smla_stream stream);

typedef struct smla_copy_pages_args {
    uint32_t struct_size;
    int32_t reserved;
    smla_cache source;
    smla_cache target;
    /* [N,2] i32: page of source, page of target. */
    smla_tensor pairs;
} smla_copy_pages_args;

/* Copies whole pages, for prefix sharing and preemption. `source` and `target` may be one cache. A pair with
 * a page that does not exist is skipped. A page that is the target of one pair and stands in another pair
 * has undefined contents.
 * Refused: caches of different format, width, page size or (on the host) scale. */
SMLA_API smla_status smla_copy_pages(smla_context* context, const smla_copy_pages_args* args,
                                     smla_workspace workspace, smla_stream stream);

typedef struct smla_map_args {
    uint32_t struct_size;
    int32_t page_tokens;
    /* Rows from one page to the next; 0: page_tokens. */
    int32_t page_rows;
    /* Neighbouring tokens that a position stands for, a pool of GLM-5.3. 0: 1. */
    int32_t pool_tokens;
    /* [T,P] i32 */
    smla_tensor positions;
    /* [T] i32 */
    smla_tensor request_of_token;
    /* [R,MB] i32 */
    smla_tensor block_table;
    /* [T,K] i32, K = P * pool_tokens, with visible_tokens pool_tokens - 1 more. May be positions if K = P. */
    smla_tensor rows;
    /* [T] i32, optional: rows[t] that are not -1. */
    smla_tensor counts;
    /* [T] i32, optional: columns of rows[t] up to the last that is not -1, as attend's lengths. */
    smla_tensor lengths;
    /* [T] i32, optional: positions[t] count as -1 from this column on. */
    smla_tensor limits;
    /* [T] i32, optional: how many tokens each token sees. Those behind the last whole pool are listed too,
     * after the tokens of the last pool of positions[t] that is not negative. */
    smla_tensor visible_tokens;
} smla_map_args;

/* From positions of a request to rows of a cache: rows[t,j] = block_table[request_of_token[t]][p /
 * page_tokens] * page_rows + p % page_tokens, p = positions[t,j]. A position < 0 or past the table becomes
 * -1. Columns stay where they are. A pool lists its tokens pool_tokens * p and on, side by side.
 * Refused: page_rows below page_tokens. */
SMLA_API smla_status smla_map(smla_context* context, const smla_map_args* args, smla_workspace workspace,
                              smla_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_CACHE_H */
