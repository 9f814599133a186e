/* smla/stages.h: the calls. Each checks its arguments, picks the first kernel of the context's engine that
 * can run them, and uses only the caller's workspace: no allocation on a device, no copy to the host, no
 * text. Any thread may call; a workspace serves one call at a time. */
#ifndef SMLA_STAGES_H
#define SMLA_STAGES_H

#include <smla/context.h>
#include <smla/stages_attend.h>
#include <smla/stages_cache.h>
#include <smla/stages_index.h>
#include <smla/stages_linear.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Caller-owned scratch. Its first 4 KiB are counters and the error word, zeroed once by smla_workspace_init
 * and left zero by every call (the error word: until it is read); the rest may hold anything. Calls that need
 * no scratch accept {0}. */
typedef struct smla_workspace {
    void* data; /* aligned to 64 bytes; for a GPU memory that its kernels reach */
    size_t bytes;
} smla_workspace;

typedef int32_t smla_stage;
enum {
    SMLA_STAGE_NORM = 0,
    SMLA_STAGE_ROPE = 1,
    SMLA_STAGE_PROJECT = 2,
    SMLA_STAGE_ABSORB = 3,
    SMLA_STAGE_QUANT_INDEX_Q = 4,
    SMLA_STAGE_WRITE_KV = 5,
    SMLA_STAGE_WRITE_INDEX = 6,
    SMLA_STAGE_SAVE_STATE = 7,
    SMLA_STAGE_COMPRESS = 8,
    SMLA_STAGE_GATHER = 9,
    SMLA_STAGE_COPY_PAGES = 10,
    SMLA_STAGE_SCORE = 11,
    SMLA_STAGE_SELECT = 12,
    SMLA_STAGE_SCORE_SELECT = 13,
    SMLA_STAGE_MAP = 14,
    SMLA_STAGE_ATTEND = 15,
    SMLA_STAGE_MERGE = 16,
    SMLA_STAGE_INVERSE_ROPE = 17,
    SMLA_STAGE_UP_PROJECT = 18,
    SMLA_STAGE_OUT_PROJECT = 19,
    SMLA_STAGE_COUNT = 20
};

/* Bytes of workspace that a call of these shapes may need (data pointers are not looked at), as much as pays
 * but within `budget` where the kernel can loop inside it (0: no budget). Monotone: size it once with the
 * largest shapes. */
SMLA_API smla_status smla_workspace_size(smla_context* context, smla_stage stage, const void* args,
                                         size_t budget, size_t* bytes);
/* Zeroes the counters, once before the first call and after an error. Host memory aligned to 2 MiB is asked
 * for in huge pages. */
SMLA_API smla_status smla_workspace_init(smla_context* context, smla_workspace workspace, smla_stream stream);

/* Loads and makes what calls of these shapes need (kernels, plans of matrix products), so that later ones may
 * be captured in a CUDA graph; without it, a capture that would have to make something is refused. Data
 * pointers are not looked at. Nothing to do on a CPU. */
SMLA_API smla_status smla_prepare(smla_context* context, smla_stage stage, const void* args);

/* Why this kernel, and why not the others: JSON text into buffer[*bytes]; *bytes becomes the length with its
 * zero, also where the buffer is too small. A null buffer only asks for the length. A kernel that the context
 * demands is the only one that may be chosen, as in the call itself. */
SMLA_API smla_status smla_explain_stage(smla_context* context, smla_stage stage, const void* args,
                                        char* buffer, size_t* bytes);

/* Scans what a hot call never checks: rows, lengths, tables, slots. Reports the first bad value as
 * SMLA_DATA_ERROR. Waits for a GPU, so it is refused during a capture there. */
SMLA_API smla_status smla_check_stage(smla_context* context, smla_stage stage, const void* args);

/* What is wrong with a value: which tensor it stands in. */
typedef int32_t smla_bad_kind;
enum {
    SMLA_BAD_NONE = 0,
    SMLA_BAD_ROW = 1, /* attend, primary.rows: neither -1 nor a row of the cache */
    SMLA_BAD_EXTRA_ROW = 2,
    SMLA_BAD_LENGTH = 3, /* attend, primary.lengths: below 0 or above K */
    SMLA_BAD_EXTRA_LENGTH = 4,
    SMLA_BAD_SLOT = 5,
    SMLA_BAD_POSITION = 6,
    SMLA_BAD_REQUEST = 7, /* request_of_token */
    SMLA_BAD_BLOCK = 8,   /* block_table, state_table: not a page */
    SMLA_BAD_TABLE_WIDTH =
        9, /* too few blocks for the tokens asked for: value of them, column is the first missing */
    SMLA_BAD_START = 10,
    SMLA_BAD_END = 11,
    SMLA_BAD_CU = 12,
    SMLA_BAD_PAGE = 13 /* copy_pages, pairs */
};

/* The error word: the last 64 bytes of a workspace's first 4 KiB. In a context with check_indices, a call
 * writes the first bad value that it finds there, if the word is empty, and runs on: hot calls treat bad
 * values as holes. */
typedef struct smla_error_word {
    smla_bad_kind kind; /* NONE: nothing was found */
    smla_stage stage;
    int64_t token;  /* first index of the value in its tensor: token, request or pair */
    int64_t column; /* second index; -1 where there is none */
    int64_t value;
} smla_error_word;

/* Takes the error word out of a workspace and leaves it empty. Waits for the stream, so it is refused while
 * that is captured. */
SMLA_API smla_status smla_read_error(smla_context* context, smla_workspace workspace, smla_stream stream,
                                     smla_error_word* out);

#define SMLA_STAGE_CALL(name, args_type)                                                                     \
    SMLA_API smla_status smla_##name(smla_context* context, const args_type* args, smla_workspace workspace, \
                                     smla_stream stream)
SMLA_STAGE_CALL(norm, smla_norm_args);
SMLA_STAGE_CALL(rope, smla_rope_args);
SMLA_STAGE_CALL(project, smla_project_args);
SMLA_STAGE_CALL(absorb, smla_project_args);
SMLA_STAGE_CALL(quant_index_q, smla_quant_index_q_args);
SMLA_STAGE_CALL(write_kv, smla_write_args);
SMLA_STAGE_CALL(write_index, smla_write_args);
SMLA_STAGE_CALL(save_state, smla_save_state_args);
SMLA_STAGE_CALL(compress, smla_compress_args);
SMLA_STAGE_CALL(gather, smla_gather_args);
SMLA_STAGE_CALL(copy_pages, smla_copy_pages_args);
SMLA_STAGE_CALL(score, smla_score_args);
SMLA_STAGE_CALL(select, smla_select_args);
SMLA_STAGE_CALL(score_select, smla_score_select_args);
SMLA_STAGE_CALL(map, smla_map_args);
SMLA_STAGE_CALL(attend, smla_attend_args);
SMLA_STAGE_CALL(merge, smla_merge_args);
SMLA_STAGE_CALL(inverse_rope, smla_rope_args);
SMLA_STAGE_CALL(up_project, smla_project_args);
SMLA_STAGE_CALL(out_project, smla_project_args);
#undef SMLA_STAGE_CALL

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_H */
