/* smla/stages_cache.h: writing, compressing, gathering and mapping cached tokens. */
#ifndef SMLA_STAGES_CACHE_H
#define SMLA_STAGES_CACHE_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* write_kv and write_index: encodes [head | tail] of token t into row slots[t]. A slot that is a hole writes
 * nothing. Tokens at or past slots.shape[0] are padding. */
typedef struct smla_write_args {
    uint32_t struct_size;
    int32_t hadamard;  /* write_index: 1 rotates the row by H_D / sqrt(D) first; D a power of two */
    smla_tensor head;  /* [T,Dhead] f32, bf16, f16 (f64: row_f64) */
    smla_tensor tail;  /* [T,Dtail] optional: the rope part, follows head */
    smla_tensor slots; /* [N] i64 or i32, N <= T */
    smla_cache cache;
} smla_write_args;

/* save_state: row slots[t] of the state cache = kv[t] | score[t] + ape[positions[t] % ratio]. Holes write
 * nothing. */
typedef struct smla_save_state_args {
    uint32_t struct_size;
    int32_t reserved;
    smla_tensor kv;        /* [T,W] W = coff * D */
    smla_tensor score;     /* [T,W] */
    smla_tensor ape;       /* [ratio,W] f32 (f64) */
    smla_tensor positions; /* [T] i32 or i64, the token's order in its request */
    smla_tensor slots;     /* [N] i64 or i32, N <= T */
    smla_cache state;      /* state_f32 (state_f64), width 2 * W */
} smla_save_state_args;

/* compress: a token with (position + 1) % ratio == 0 and a valid slot pools the state rows of its window,
 * norms, rotates at the window's first position, and writes one entry. The state rows of this step must be
 * saved before. ratio 4 overlaps: 8 rows, the older four through channels [0,D), the newer through [D,2D). */
typedef struct smla_compress_args {
    uint32_t struct_size;
    int32_t ratio;
    int32_t hadamard;        /* index entries: as write_index */
    int32_t reserved;        /* 0 */
    double eps;              /* of the entry's RMS norm */
    smla_cache state;        /* state_f32 (state_f64), width 2 * coff * D; coff 2 if ratio is 4, else 1 */
    smla_tensor state_table; /* [R,MB] i32: pages of each request in `state` */
    smla_tensor request_of_token; /* [T] i32 */
    smla_tensor positions;        /* [T] i32 or i64 */
    smla_tensor slots;            /* [T] i64 or i32: row of the entry in `cache`, a hole where none is due */
    smla_tensor norm_weight;      /* [D] */
    smla_tensor frequencies;      /* [n] f64: rotates the last 2n channels, interleaved */
    smla_cache cache;             /* where entries go: any KV or index format of width D */
    smla_tensor
        entries; /* [T,D] optional: the entry before encoding; rows without one are left as they are */
} smla_compress_args;

/* gather: copies cached rows of each request to dense rows: request r's tokens [starts[r], starts[r] + n) go
 * to out rows [cu[r], cu[r+1]), n = cu[r+1] - cu[r]. Dequantised, or as raw codes and scales for index
 * formats. */
typedef struct smla_gather_args {
    uint32_t struct_size;
    int32_t raw; /* index_fp8_132 only: out e4m3 codes and scales f32 */
    smla_cache cache;
    smla_tensor block_table; /* [R,MB] i32 */
    smla_tensor starts;      /* [R] i32, optional: 0 */
    smla_tensor cu;          /* [R+1] i32: prefix sums of the token counts */
    smla_tensor out;         /* [N,D]; rows at and past cu[R] stay untouched */
    smla_tensor scales;      /* [N] f32, raw only */
} smla_gather_args;

/* copy_pages: whole pages pairs[i][0] -> pairs[i][1], for prefix sharing and preemption. Same format and page
 * size. */
typedef struct smla_copy_pages_args {
    uint32_t struct_size;
    int32_t reserved;
    smla_cache source;
    smla_cache target;
    smla_tensor pairs; /* [N,2] i32 */
} smla_copy_pages_args;

/* map: rows[t,j] = block_table[request_of_token[t]][p / page_tokens] * page_rows + p % page_tokens, p =
 * positions[t,j]; a position < 0 or past the table is -1. Columns stay where they are. counts[t] = number of
 * rows that are not -1. */
typedef struct smla_map_args {
    uint32_t struct_size;
    int32_t page_tokens;
    int32_t page_rows; /* 0: page_tokens */
    int32_t reserved;
    smla_tensor positions;        /* [T,K] i32 */
    smla_tensor request_of_token; /* [T] i32 */
    smla_tensor block_table;      /* [R,MB] i32 */
    smla_tensor rows;             /* [T,K] i32; may be positions */
    smla_tensor counts;           /* [T] i32, optional */
} smla_map_args;

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_CACHE_H */
