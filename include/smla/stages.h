/* smla/stages.h: the stages of a step, and functions that work with any stage: scratch, explanations, checks.
 *
 * A stage call checks its arguments and selects a kernel of the context's engine: the first one that supports
 * the arguments, unless a later one is better for the shape or the processor. The caller's workspace provides
 * scratch; a call allocates no device memory, copies nothing to the host and prints nothing. On a GPU, a call
 * queues its work on `stream` and returns; it may be captured in a CUDA graph. Calls from several threads may
 * run concurrently; a workspace serves one call at a time. Every stage allows T = 0 and then does nothing.
 * The innermost stride of a field with SMLA_FIELD_ROWS (smla_stage_get_field) must be 1.
 *
 * Errors of every stage call:
 *
 *   SMLA_INVALID_ARGUMENT      a field has the wrong type, shape, range or device; an output overlaps another
 *                              argument (stages document which outputs may be in place)
 *   SMLA_UNSUPPORTED           no kernel of the engine supports the arguments; see smla_explain_stage
 *   SMLA_WORKSPACE_TOO_SMALL   smla_workspace_size returns the required size
 *   SMLA_DEVICE_ERROR          the GPU reported an error
 *
 * Contents of index tensors (rows, lengths, tables, slots) are not checked; invalid values are masked, like
 * -1. smla_check_stage and check_indices of smla_context_args check them. */
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

/* Number of a stage. `args` of the functions below points to the argument struct of that stage. */
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

/* Writes the workspace bytes that a call with these shapes may need. Ignores data pointers. `budget` bounds
 * the bytes of kernels that can work in pieces, down to the size of one piece; 0 means the fastest size. The
 * size never shrinks when shapes grow, so size a workspace once with the largest shapes. */
SMLA_API smla_status smla_workspace_size(smla_context* context, smla_stage stage, const void* args,
                                         size_t budget, size_t* bytes);

/* Runs a stage like its own function, but returns SMLA_WORKSPACE_TOO_SMALL for every workspace with fewer
 * bytes than smla_workspace_size returns for `budget`, even if a slower kernel could run in it. A caller that
 * grows its workspace therefore needs smla_workspace_size only after this error. A captured call without
 * scratch accepts the workspace {0}. */
SMLA_API smla_status smla_run_stage(smla_context* context, smla_stage stage, const void* args, size_t budget,
                                    smla_workspace workspace, smla_stream stream);

/* Zeroes the counters and the error word, which occupy 4096 bytes of a workspace. Call this function before
 * the first use and after a call that failed on the device. Requests huge pages for host memory aligned to 2
 * MiB. */
SMLA_API smla_status smla_workspace_init(smla_context* context, smla_workspace workspace, smla_stream stream);

/* Loads and creates kernels and plans of matrix products for calls with these shapes, so that later
 * calls may be captured in a CUDA graph. A captured call that would have to create something fails. Ignores
 * data pointers. Does nothing on a CPU. */
SMLA_API smla_status smla_prepare(smla_context* context, smla_stage stage, const void* args);

/* Writes JSON text to buffer[*bytes]: the kernel that runs a call with these shapes, and why the others do
 * not. Sets *bytes to the length with the final zero, also if the buffer is too small
 * (SMLA_INVALID_ARGUMENT); if `buffer` is null, only sets *bytes. Keys: stage, runs_on, candidates (a list of
 * {kernel, refusal, lower_priority, chosen}). If the context requires a kernel, no other kernel is chosen. */
SMLA_API smla_status smla_explain_stage(smla_context* context, smla_stage stage, const void* args,
                                        char* buffer, size_t* bytes);

/* Checks the contents of index tensors (rows, lengths, tables, slots) and returns SMLA_DATA_ERROR for the
 * first invalid value. Does not run the stage. Waits for a GPU, and therefore fails during a capture. */
SMLA_API smla_status smla_check_stage(smla_context* context, smla_stage stage, const void* args);

/* Kind of a field in a stage's arguments. */
typedef int32_t smla_field_kind;
enum {
    SMLA_FIELD_TENSOR = 0,
    SMLA_FIELD_CACHE = 1,
    /* Pointer to one f32 on the context's device. */
    SMLA_FIELD_NUMBER = 2
};

/* Bits of smla_stage_field.flags. */
typedef int32_t smla_field_flags;
enum {
    /* The call writes the field. An input is also written if its output (in_place_of) is absent. */
    SMLA_FIELD_WRITTEN = 1,
    SMLA_FIELD_OPTIONAL = 2,
    /* The innermost stride is 1. */
    SMLA_FIELD_ROWS = 4
};

/* Description of a tensor, cache or number in a stage's arguments, for callers that fill structs by field
 * names. Plain integers and doubles of the struct are not listed. */
typedef struct smla_stage_field {
    uint32_t struct_size;
    smla_field_kind kind;
    /* Name of the struct member, such as "primary.rows". `name` and `shape` are static strings. */
    const char* name;
    /* Shape such as "T K". A letter is the same length in all fields of the stage; "R+1" and "D/32" are
     * computed from a letter, and "*" is any length. For a cache: the letter of its width, or "" if no tensor
     * shares it. */
    const char* shape;
    /* Byte offset of the field in the struct. */
    size_t offset;
    /* Supported types: bit 1 << value for each smla_dtype or, for a cache, smla_format. */
    uint32_t types;
    smla_field_flags flags;
    /* Index of the input that this output may be. This field and the next three are indices, or -1. */
    int32_t in_place_of;
    /* Cache without which this field is ignored. */
    int32_t with_cache;
    /* Tensor that is f64 exactly if this tensor is f64. */
    int32_t double_as;
    /* Tensor that is present exactly if this tensor is present. If given_dtype is not 0, this tensor is
     * present exactly if that tensor has this dtype. */
    int32_t given_with;
    smla_dtype given_dtype;
    int32_t reserved;
} smla_stage_field;

/* Returns the number of fields of a stage, and a field by its index, from 0 to *count - 1. */
SMLA_API smla_status smla_stage_field_count(smla_stage stage, int32_t* count);
SMLA_API smla_status smla_stage_get_field(smla_stage stage, int32_t index, smla_stage_field* field);

/* Kind of an invalid value, named after the tensor that contains the value. */
typedef int32_t smla_bad_kind;
enum {
    SMLA_BAD_NONE = 0,
    /* attend, primary.rows and extra.rows: the value is neither -1 nor a row of the cache. */
    SMLA_BAD_ROW = 1,
    SMLA_BAD_EXTRA_ROW = 2,
    /* attend, primary.lengths and extra.lengths: the value is below 0 or above K. */
    SMLA_BAD_LENGTH = 3,
    SMLA_BAD_EXTRA_LENGTH = 4,
    SMLA_BAD_SLOT = 5,
    SMLA_BAD_POSITION = 6,
    /* request_of_token. */
    SMLA_BAD_REQUEST = 7,
    /* block_table, state_table: the value is not a page. */
    SMLA_BAD_BLOCK = 8,
    /* A table has too few columns for the tokens of the call. `value` is the number of columns, `column` the
     * first missing column. */
    SMLA_BAD_TABLE_WIDTH = 9,
    SMLA_BAD_START = 10,
    SMLA_BAD_END = 11,
    SMLA_BAD_CU = 12,
    /* copy_pages, pairs: the value is not a page. */
    SMLA_BAD_PAGE = 13,
    /* score_select_blocks, blocks: the value is neither -1 nor a block of the columns. */
    SMLA_BAD_CANDIDATE = 14
};

/* Error word: the last 64 bytes of the first 4 KiB of a workspace. In a context with check_indices, a call
 * that finds an invalid value stores it there, unless the word has one already, and continues. */
typedef struct smla_error_word {
    /* SMLA_BAD_NONE if no invalid value was found. */
    smla_bad_kind kind;
    smla_stage stage;
    /* First index of the value in its tensor: token, request or pair. */
    int64_t token;
    /* Second index, or -1 if the tensor has one dimension. */
    int64_t column;
    int64_t value;
} smla_error_word;

/* Reads the error word of a workspace and clears it. Waits for the stream, and therefore fails while the
 * stream is captured. If no call can have written the word, returns SMLA_INVALID_ARGUMENT and keeps the
 * word. */
SMLA_API smla_status smla_read_error(smla_context* context, smla_workspace workspace, smla_stream stream,
                                     smla_error_word* out);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_STAGES_H */
