/* smla/types.h: version, status, tensors and paged caches. Plain C11; every other public header includes this
 * one. Errors: every function that can fail returns smla_status; smla_last_error() tells the field, what it
 * got and what it wants. Fixed-width enums: unknown values are refused. Zero means "default" for every field.
 */
#ifndef SMLA_TYPES_H
#define SMLA_TYPES_H

#include <stddef.h>
#include <stdint.h>

#if defined(SMLA_STATIC)
#define SMLA_API
#else
#define SMLA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define SMLA_VERSION_MAJOR 0
#define SMLA_VERSION_MINOR 1
#define SMLA_VERSION_PATCH 0
#define SMLA_VERSION (SMLA_VERSION_MAJOR * 10000 + SMLA_VERSION_MINOR * 100 + SMLA_VERSION_PATCH)

/* The version the library was built as; compare with SMLA_VERSION, the version of the headers. */
SMLA_API int32_t smla_version(void);

typedef int32_t smla_status;
enum {
    SMLA_OK = 0,
    SMLA_INVALID_ARGUMENT = 1,    /* a field of the call is wrong: smla_last_error() names it */
    SMLA_UNSUPPORTED = 2,         /* valid, but no kernel of this build and machine can run it */
    SMLA_WORKSPACE_TOO_SMALL = 3, /* smla_workspace_size() tells what the call needs */
    SMLA_OUT_OF_MEMORY = 4,
    SMLA_DEVICE_ERROR = 5,
    SMLA_DATA_ERROR = 6, /* a file or a checked tensor holds wrong data */
    SMLA_IO_ERROR = 7,
    SMLA_INTERNAL = 8 /* a bug in smla: please report it */
};

/* The last error of this thread. Strings live until the next smla call of the thread; never null. */
typedef struct smla_error {
    smla_status status;
    const char* field;   /* what was wrong: "args.primary.rows.dtype", "config.json: kv_lora_rank" */
    const char* got;     /* what it was */
    const char* wanted;  /* the rule */
    const char* message; /* one line with all of it */
} smla_error;
SMLA_API const char* smla_last_error(void);
SMLA_API void smla_last_error_info(smla_error* out);
SMLA_API const char* smla_status_name(smla_status status);

typedef int32_t smla_dtype;
enum {
    SMLA_F64 = 1, /* reference engine only */
    SMLA_F32 = 2,
    SMLA_BF16 = 3,
    SMLA_F16 = 4,
    SMLA_E4M3 = 5, /* OCP fp8 E4M3 "fn": finite, max 448, NaN 0x7f/0xff */
    SMLA_E2M1 = 6, /* two per byte, low nibble first; shapes and strides count elements */
    SMLA_E8M0 = 7, /* 2^(byte-127); 255 is NaN */
    SMLA_U8 = 8,
    SMLA_I32 = 9,
    SMLA_I64 = 10
};

typedef int32_t smla_device_type;
enum { SMLA_CPU = 0, SMLA_CUDA = 1 };

/* A strided view of memory the caller owns. ndim 0: absent. data may be null only with zero elements. */
#define SMLA_MAX_NDIM 4
typedef struct smla_tensor {
    void* data;
    smla_dtype dtype;
    smla_device_type device_type;
    int32_t device_index;
    int32_t ndim;
    int64_t shape[SMLA_MAX_NDIM];
    int64_t stride_elems[SMLA_MAX_NDIM];
} smla_tensor;

typedef int32_t smla_format;
enum {
    SMLA_FORMAT_NONE = 0,
    SMLA_ROW_F64 = 1, /* row_*: `width` plain values per token, any width 1..1024 */
    SMLA_ROW_F32 = 2,
    SMLA_ROW_BF16 = 3,        /* also bf16_576 and bf16_512, at those widths */
    SMLA_FP8_656 = 4,         /* 512 e4m3, 4 f32 scales, 64 bf16 rope */
    SMLA_FP8_576 = 5,         /* 576 e4m3, one scale per cache */
    SMLA_FP8_584 = 6,         /* 448 e4m3 + 64 bf16 rope per row, 8 B of UE8M0 per token at the page's end */
    SMLA_FP8_512 = 7,         /* 512 e4m3, one scale per cache */
    SMLA_FP8_528 = 8,         /* 512 e4m3, 4 f32 scales */
    SMLA_INDEX_FP8_132 = 9,   /* page: all 128 e4m3 rows, then one f32 scale per token */
    SMLA_INDEX_MXFP4_68 = 10, /* page: all 64 B e2m1 rows, then 4 UE8M0 per token */
    SMLA_STATE_F32 = 11,      /* compressor state: kv [width/2], score + ape [width/2], f32 */
    SMLA_STATE_F64 = 12       /* the same in f64: reference engine */
};

/* A paged cache. row = page * page_rows + offset (int32). An offset >= page_tokens, a row < 0 and a row >=
 * capacity = (pages - 1) * page_rows + page_tokens are holes: never read, never written. */
typedef struct smla_cache {
    void* data;
    smla_format format;
    smla_device_type device_type;
    int32_t device_index;
    int32_t width;       /* values per token; 0: the format's own width (row_* and state_* must give it) */
    int32_t page_tokens; /* tokens per page, any >= 1 */
    int32_t
        page_rows; /* rows between pages; 0: page_tokens (larger when pages of several layers interleave) */
    int64_t pages;
    int64_t page_stride_bytes; /* 0: packed by the format's page rule */
    int64_t row_stride_bytes;  /* row-packed formats only; 0: packed */
    float scale;               /* per-tensor formats: value = code * scale, > 0; others: 0 or 1 */
    int32_t reserved;
    const float* scale_device; /* optional: overrides `scale`, read when the kernel runs */
} smla_cache;

typedef void* smla_stream; /* a CUDA stream; null on a CPU */

#ifdef __cplusplus
}
#endif
#endif /* SMLA_TYPES_H */
