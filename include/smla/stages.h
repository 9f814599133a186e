/* smla/stages.h: the stages of a step, and what all of them share: scratch, explanations, checks.
 *
 * A stage call checks its arguments and selects a kernel of the context's engine: the first one that supports
 * the arguments, unless a later one is better for the shape or the processor. Scratch comes from the caller's
 * workspace; a call allocates no device memory, copies nothing to the host and prints nothing. On a GPU it
 * queues its work on `stream` and returns; it may be captured in a CUDA graph. Calls from several threads may
 * run concurrently; a workspace serves one call at a time. T = 0 is allowed everywhere and does nothing. The
 * innermost stride of a field with SMLA_FIELD_ROWS (smla_stage_get_field) must be 1.
 *
 * Every stage call returns
 *   SMLA_INVALID_ARGUMENT      a field has the wrong type, shape, range or place; an output overlaps another
 *                              argument (in place is allowed where a stage says so)
 *   SMLA_UNSUPPORTED           no kernel of the engine runs these arguments: smla_explain_stage says why
 *   SMLA_WORKSPACE_TOO_SMALL   smla_workspace_size says how much it takes
 *   SMLA_DEVICE_ERROR          the GPU reported an error
 * Contents of index tensors (rows, lengths, tables, slots) are not checked: bad ones count as holes. To have
 * them checked, see smla_check_stage and check_indices of smla_context_args. */
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

/* A stage as a number. `args` of the functions below is the argument struct of that stage. */
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
    SMLA_STAGE_SCORE_SELECT_BLOCKS = 20,
    SMLA_STAGE_COUNT = 21
};

/* Bytes of workspace that a call of these shapes may need. Data pointers are not looked at. A kernel that can
 * work in pieces keeps within `budget` bytes; 0: as much as pays. The size never shrinks when shapes grow, so
 * size a workspace once with the largest shapes. */
SMLA_API smla_status smla_workspace_size(smla_context* context, smla_stage stage, const void* args,
                                         size_t budget, size_t* bytes);

/* Runs a stage like the function of its name, but returns SMLA_WORKSPACE_TOO_SMALL for every workspace with
 * fewer bytes than smla_workspace_size returns for `budget`, even if a slower kernel could run in it. A
 * caller that grows its workspace therefore needs smla_workspace_size only after this error. A captured call
 * without scratch accepts the workspace {0}. */
SMLA_API smla_status smla_run_stage(smla_context* context, smla_stage stage, const void* args, size_t budget,
                                    smla_workspace workspace, smla_stream stream);

/* Zeroes the counters and the error word, which take 4096 bytes of a workspace. Call it before the first use
 * and after a call that failed on the device. Requests huge pages for host memory aligned to 2 MiB. */
SMLA_API smla_status smla_workspace_init(smla_context* context, smla_workspace workspace, smla_stream stream);

/* Loads and makes what calls of these shapes need (kernels, plans of matrix products), so that later calls
 * may be captured in a CUDA graph. Without it, a capture that would have to make something is refused. Data
 * pointers are not looked at. Does nothing on a CPU. */
SMLA_API smla_status smla_prepare(smla_context* context, smla_stage stage, const void* args);

/* Which kernel a call of these shapes takes, and why not the others: JSON text into buffer[*bytes]. *bytes
 * becomes the length with its zero, also where the buffer is too small (SMLA_INVALID_ARGUMENT); a null
 * buffer only asks for the length. Keys: stage, runs_on, candidates (a list of {kernel, refusal,
 * lower_priority, chosen}). If the context demands a kernel, no other can be chosen. */
SMLA_API smla_status smla_explain_stage(smla_context* context, smla_stage stage, const void* args,
                                        char* buffer, size_t* bytes);

/* Scans what a call takes on trust: rows, lengths, tables, slots. Reports the first bad value as
 * SMLA_DATA_ERROR. Runs nothing. Waits for a GPU, so it is refused during a capture there. */
SMLA_API smla_status smla_check_stage(smla_context* context, smla_stage stage, const void* args);

/* What a field of a stage's arguments is. */
typedef int32_t smla_field_kind;
enum {
    SMLA_FIELD_TENSOR = 0,
    SMLA_FIELD_CACHE = 1,
    /* A pointer to one f32 where the call runs. */
    SMLA_FIELD_NUMBER = 2
};

/* Bits of smla_stage_field.flags. */
typedef int32_t smla_field_flags;
enum {
    /* The call writes it. An input whose output (in_place_of) is optional is written where that is absent. */
    SMLA_FIELD_WRITTEN = 1,
    SMLA_FIELD_OPTIONAL = 2,
    /* The innermost stride is 1. */
    SMLA_FIELD_ROWS = 4
};

/* A tensor, a cache or a number of a stage's arguments, for callers that fill structs by names of fields. The
 * plain integers and doubles of a struct are not among them. */
typedef struct smla_stage_field {
    uint32_t struct_size;
    smla_field_kind kind;
    /* "primary.rows", as the struct's member is called; lives for ever, as `shape` does. */
    const char* name;
    /* "T K": a letter is the same length in all fields of the stage, "R+1" and "D/32" follow from one, "*" is
     * any length. Of a cache: the letter of its width, "" if no tensor shares it. */
    const char* shape;
    /* Offset of the field in the struct, in bytes. */
    size_t offset;
    /* A bit 1 << value for each smla_dtype (of a cache: smla_format) that it may have. */
    uint32_t types;
    smla_field_flags flags;
    /* This and the next three are numbers of other fields of the stage, -1 for none. This output may be that
     * very tensor. */
    int32_t in_place_of;
    /* This field is ignored unless that cache is given. */
    int32_t with_cache;
    /* This tensor is f64 exactly if that one is. */
    int32_t double_as;
    /* This tensor is present exactly if that one is; if given_dtype is not 0, exactly if that one has this
     * dtype. */
    int32_t given_with;
    smla_dtype given_dtype;
    int32_t reserved;
} smla_stage_field;

/* The fields of a stage by number, from 0 to *count - 1. */
SMLA_API smla_status smla_stage_field_count(smla_stage stage, int32_t* count);
SMLA_API smla_status smla_stage_get_field(smla_stage stage, int32_t index, smla_stage_field* field);

/* What is wrong with a value: the tensor it stands in. */
typedef int32_t smla_bad_kind;
enum {
    SMLA_BAD_NONE = 0,
    /* attend, primary.rows and extra.rows: neither -1 nor a row of the cache. */
    SMLA_BAD_ROW = 1,
    SMLA_BAD_EXTRA_ROW = 2,
    /* attend, primary.lengths and extra.lengths: below 0 or above K. */
    SMLA_BAD_LENGTH = 3,
    SMLA_BAD_EXTRA_LENGTH = 4,
    SMLA_BAD_SLOT = 5,
    SMLA_BAD_POSITION = 6,
    /* request_of_token. */
    SMLA_BAD_REQUEST = 7,
    /* block_table, state_table: not a page. */
    SMLA_BAD_BLOCK = 8,
    /* A table has too few columns for the tokens asked for. `value`: columns there are; `column`: the first
     * that is missing. */
    SMLA_BAD_TABLE_WIDTH = 9,
    SMLA_BAD_START = 10,
    SMLA_BAD_END = 11,
    SMLA_BAD_CU = 12,
    /* copy_pages, pairs. */
    SMLA_BAD_PAGE = 13,
    /* score_select_blocks, blocks: neither -1 nor a block of the columns. */
    SMLA_BAD_CANDIDATE = 14
};

/* The error word: the last 64 bytes of a workspace's first 4 KiB. In a context with check_indices, a call
 * that finds a bad value writes it there, if the word is empty, and runs on. */
typedef struct smla_error_word {
    /* NONE: nothing was found. */
    smla_bad_kind kind;
    smla_stage stage;
    /* First index of the value in its tensor: token, request or pair. */
    int64_t token;
    /* Second index; -1 where there is none. */
    int64_t column;
    int64_t value;
} smla_error_word;

/* Reads the error word of a workspace and clears it. Waits for the stream, so it fails while the stream is
 * captured. If no call can have written the word, returns SMLA_INVALID_ARGUMENT and keeps the word. */
SMLA_API smla_status smla_read_error(smla_context* context, smla_workspace workspace, smla_stream stream,
                                     smla_error_word* out);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_H */
