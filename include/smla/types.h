/* smla/types.h: version, status, tensors and paged caches. Plain C11; every other public header includes it.
 *
 * Zero means "default" for every field of an argument struct. Enumerations are int32_t; a value that a header
 * does not list is refused. The first field of an argument struct is struct_size = sizeof the struct: fields
 * are only appended, so an older caller's struct is read as if the new fields were zero.
 *
 * Letters of shapes: T query tokens, H heads, Hi index heads, R requests, K columns of a list, k selected
 * columns, N columns to choose from, MB table columns (pages of a request), RC and MC the same of a second
 * table, Dqk values of a query or a cached row, Dv values of an output, D any other width. Sizes of memory
 * are bytes; strides of tensors are elements.
 *
 * Floating-point tensors are f32, bf16 or f16, mixed freely. CPU engines compute in f64 by plain loops; a GPU
 * does not support f64. "(f64)" marks tensors that may, or with an f64 input must, be f64. */
#ifndef SMLA_TYPES_H
#define SMLA_TYPES_H

#include <smla/platform.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SMLA_VERSION_MAJOR 0
#define SMLA_VERSION_MINOR 1
#define SMLA_VERSION_PATCH 0
#define SMLA_VERSION (SMLA_VERSION_MAJOR * 10000 + SMLA_VERSION_MINOR * 100 + SMLA_VERSION_PATCH)

/* The version of the library that runs. SMLA_VERSION is the version of the headers. */
SMLA_API int32_t smla_version(void);

/* Every function that can fail returns a status. */
typedef int32_t smla_status;
enum {
    SMLA_OK = 0,
    /* A field of the call is wrong. Nothing was started. */
    SMLA_INVALID_ARGUMENT = 1,
    /* The call is valid, but no kernel of this build and machine can run it. Nothing was started. */
    SMLA_UNSUPPORTED = 2,
    /* smla_workspace_size() tells what the call needs. */
    SMLA_WORKSPACE_TOO_SMALL = 3,
    SMLA_OUT_OF_MEMORY = 4,
    SMLA_DEVICE_ERROR = 5,
    /* A file or a checked tensor holds wrong data. */
    SMLA_DATA_ERROR = 6,
    SMLA_IO_ERROR = 7,
    /* A bug in smla: please report it. */
    SMLA_INTERNAL = 8,
    SMLA_CANCELLED = 9 /* A function of the caller ended the call (context.h); outputs are undefined. */
};

/* The last error of this thread. Strings live until the thread's next smla call; they are never null.
 *
 * `field` is the path that the caller would write in C: the name of the function's parameter as the header
 * spells it, then the members. So an error of smla_attend(context, args, ...) names
 * "args.primary.rows.shape[0]" or "workspace.data", one of smla_plan_build(plan, batch) "batch.seq_lens[3]",
 * one of smla_session_forward(session, step) "step.hidden". What a file holds is named by the file's key:
 * "config.json: kv_lora_rank". */
typedef struct smla_error {
    smla_status status;
    const char* field;
    /* What the field was. */
    const char* got;
    /* What it has to be. */
    const char* wanted;
    /* One line with all of it. */
    const char* message;
} smla_error;

/* The message of the last error; empty after a call that succeeded. */
SMLA_API const char* smla_last_error(void);
/* The last error in parts. */
SMLA_API void smla_last_error_info(smla_error* out);
/* A status in words: "invalid argument". */
SMLA_API const char* smla_status_name(smla_status status);

typedef int32_t smla_dtype;
enum {
    /* Not supported on a GPU. */
    SMLA_F64 = 1,
    SMLA_F32 = 2,
    SMLA_BF16 = 3,
    SMLA_F16 = 4,
    /* OCP fp8 E4M3 "fn": finite, largest 448, NaN is 0x7f and 0xff. */
    SMLA_E4M3 = 5,
    /* Two values per byte, low nibble first. Shapes and strides count values. */
    SMLA_E2M1 = 6,
    /* A scale: 2^(byte - 127); 255 is NaN. */
    SMLA_E8M0 = 7,
    SMLA_U8 = 8,
    SMLA_I32 = 9,
    SMLA_I64 = 10
};

typedef int32_t smla_device_type;
enum { SMLA_CPU = 0, SMLA_CUDA = 1 };

/* A strided view of memory that the caller owns.
 *
 * All strides zero: dense, row-major. SMLA_STRIDE_REPEAT as a stride means the same element again along that
 * dimension; so does 0 where another dimension's stride is not 0. Outputs repeat nothing. */
#define SMLA_MAX_NDIM 4
#define SMLA_STRIDE_REPEAT INT32_MIN
typedef struct smla_tensor {
    /* Null only with zero elements. */
    void* data;
    smla_dtype dtype;
    smla_device_type device_type;
    int32_t device_index;
    /* Number of dimensions; 0: the tensor is absent. */
    int32_t ndim;
    int64_t shape[SMLA_MAX_NDIM];
    int64_t stride_elems[SMLA_MAX_NDIM];
} smla_tensor;

/* A dense tensor on a device. Extents past `ndim` are not looked at. */
static inline smla_tensor smla_dense_on(smla_device_type device_type, int32_t device_index, void* data,
                                        smla_dtype dtype, int32_t ndim, int64_t d0, int64_t d1, int64_t d2,
                                        int64_t d3) {
    const int64_t extents[SMLA_MAX_NDIM] = {d0, d1, d2, d3};
    smla_tensor out = {data, dtype, device_type, device_index, ndim, {0, 0, 0, 0}, {0, 0, 0, 0}};
    int64_t stride = 1;
    for (int32_t i = (ndim < SMLA_MAX_NDIM ? ndim : SMLA_MAX_NDIM) - 1; i >= 0; --i) {
        out.shape[i] = extents[i];
        out.stride_elems[i] = stride;
        stride *= extents[i];
    }
    return out;
}

/* A dense tensor on the host. */
static inline smla_tensor smla_dense(void* data, smla_dtype dtype, int32_t ndim, int64_t d0, int64_t d1,
                                     int64_t d2, int64_t d3) {
    return smla_dense_on(SMLA_CPU, 0, data, dtype, ndim, d0, d1, d2, d3);
}

/* How a cached token is stored; smla/formats.h tells the sizes, docs/formats.md the bytes. */
typedef int32_t smla_format;
enum {
    SMLA_FORMAT_NONE = 0,
    /* row_*: `width` plain values per token, any width from 1 to 1024. */
    SMLA_ROW_F64 = 1,
    SMLA_ROW_F32 = 2,
    /* Also called bf16_576 and bf16_512 at those widths. */
    SMLA_ROW_BF16 = 3,
    /* V3.2, called fp8_ds_mla elsewhere: 512 e4m3, 4 f32 scales, 64 bf16 of the rope part. */
    SMLA_FP8_656 = 4,
    /* 576 e4m3, one scale per cache. */
    SMLA_FP8_576 = 5,
    /* V4: 448 e4m3 and 64 bf16 of the rope part per row; 8 bytes of UE8M0 per token at the page's end. */
    SMLA_FP8_584 = 6,
    /* 512 e4m3, one scale per cache. */
    SMLA_FP8_512 = 7,
    /* 512 e4m3, 4 f32 scales. */
    SMLA_FP8_528 = 8,
    /* Index keys. A page: all rows of 128 e4m3, then one f32 scale per token. */
    SMLA_INDEX_FP8_132 = 9,
    /* Index keys. A page: all rows of 64 bytes e2m1, then 4 UE8M0 per token. */
    SMLA_INDEX_MXFP4_68 = 10,
    /* Compressor state: kv [width/2], then score + ape [width/2], in f32. */
    SMLA_STATE_F32 = 11,
    /* The same in f64. Not supported on a GPU. */
    SMLA_STATE_F64 = 12,
    /* V4.1: 512 e4m3 with the rope part, 16 UE8M0, one per 32 values. Not fp8_528, though as long. */
    SMLA_FP8_528_G32 = 13,
    /* The same in pages: all rows of 512 e4m3, then 16 UE8M0 per token. Padded to multiples of 512 bytes. */
    SMLA_FP8_528_G32_SPLIT = 14,
    /* V4.1: 512 e2m1 with the rope part, 32 e4m3 scales, one per 16 values. */
    SMLA_NVFP4_288 = 15,
    /* The same in pages: all rows of 256 bytes e2m1, then 32 e4m3 per token. Padded to multiples of 256. */
    SMLA_NVFP4_288_SPLIT = 16,
    /* V4. A page: all rows (448 e2m1, 64 bf16 of the rope part), then 28 e4m3 scales and 4 zeros a token. */
    SMLA_NVFP4_384 = 17,
    /* V3.2, called nvfp4_ds_mla elsewhere: 512 e2m1, 64 e4m3 of the rope part, 32 e4m3 scales. */
    SMLA_NVFP4_352 = 18
};

/* How a cache's values are quantised as they are written, where the writers of inference engines differ:
 * bits; 0: as vLLM does. Readers of a cache ignore them. */
typedef int32_t smla_writer;
enum {
    /* fp8_528_g32*, index_mxfp4_68: the scale of a group is at least 1e-4, as in sglang (index keys: of V4).
     * Without the bit the largest magnitude counts as at least 1e-4 (index keys: 6 * 2^-126). */
    SMLA_WRITER_SCALE_FLOOR = 1,
    /* fp8_528_g32*, nvfp4_288*: values are rounded to bf16 before they are quantised, as in sglang and
     * flashinfer. Compressed entries of other formats with scales always are. */
    SMLA_WRITER_BF16_FIRST = 2,
    /* index_mxfp4_68: ties take the smaller magnitude, zeros no sign, as in sglang's index keys of V4. */
    SMLA_WRITER_TIES_TO_ZERO = 4,
    /* fp8_528_g32*, nvfp4_288*: what becomes a compressed entry is bf16 before its norm, as in sglang. */
    SMLA_WRITER_BF16_POOLED = 8,
    /* fp8_528_g32*: compressed entries hold values of nvfp4_288, as in sglang; windows of sessions do not. */
    SMLA_WRITER_FP4_VALUES = 16
};

/* A paged cache. A row is addressed as page * page_rows + offset (int32). An offset >= page_tokens, a row < 0
 * and a row >= capacity = (pages - 1) * page_rows + page_tokens are holes: never read, never written. */
typedef struct smla_cache {
    void* data;
    smla_format format;
    smla_device_type device_type;
    int32_t device_index;
    /* Values per token; 0: the format's own width (row_* and state_* have none, so they must give it). */
    int32_t width;
    /* Tokens per page, any >= 1. */
    int32_t page_tokens;
    /* Rows from one page to the next; 0: page_tokens. Larger where pages of several layers interleave. */
    int32_t page_rows;
    int64_t pages;
    /* Bytes from one page to the next; 0: packed by the format's page rule. */
    int64_t page_stride_bytes;
    /* Bytes from one row to the next, for row-packed formats; 0: packed. */
    int64_t row_stride_bytes;
    /* fp8_576 and fp8_512: value = code * scale, > 0. Others: 0 or 1. */
    float scale;
    /* Bits of the format's writer; 0 for formats whose writers agree. */
    smla_writer writer;
    /* Optional, where the cache lies: overrides `scale`; read when the kernel runs. */
    const float* scale_device;
} smla_cache;

/* What a kernel may round beyond the order of its f32 sums. */
typedef int32_t smla_precision;
enum {
    /* SMLA_PRECISION_EXACT. */
    SMLA_PRECISION_DEFAULT = 0,
    /* attend: the scale of a tile is applied outside of the products, never rounded into a key. score:
     * products are summed in f32. */
    SMLA_PRECISION_EXACT = 1,
    /* attend: a key may be rounded to bf16(code * scale), as the engines reference and cpu do, or to
     * f16(code * f16(scale)), which is nearer: cuda's fastest kernels on Hopper do one or the other. Where
     * scales are powers of two the values are the same. score: e4m3 products may be summed with about 14
     * bits, as tensor cores of Hopper and DeepGEMM do: docs/kernels/cuda_score.md has the bound. */
    SMLA_PRECISION_ROUNDED = 2
};

/* A CUDA stream; null: the default stream, and always so on a CPU. */
typedef void* smla_stream;

#ifdef __cplusplus
}
#endif
#endif /* SMLA_TYPES_H */
