/* smla/types.h: version, status codes, tensors and paged caches. Plain C11, included by all other headers.
 *
 * A zero field of an argument struct has its default value. Enumerations are int32_t; calls reject values
 * that no header lists. The first field of an argument struct is struct_size, the size of the struct. New
 * versions only append fields, so the library reads an older caller's struct as if the new fields were 0.
 *
 * Letters in shapes: T query tokens, H heads, Hi index heads, R requests, K columns of a list, k selected
 * columns, N columns to choose from, MB columns of a block table (pages of a request), RC and MC rows and
 * columns of a second block table, Dqk values of a query or a cached row, Dv values of an output, D any other
 * width. Sizes of memory are in bytes, strides of tensors in elements.
 *
 * Floating-point tensors are f32, bf16 or f16, in any combination. CPU engines compute f64 tensors by plain
 * loops in f64; GPUs do not support f64. "(f64)" marks tensors that may be f64, or must be for f64 inputs. */
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

/* Returns the version of the library that runs. SMLA_VERSION is the version of the headers. */
SMLA_API int32_t smla_version(void);

/* Result of every function that can fail. */
typedef int32_t smla_status;
enum {
    SMLA_OK = 0,
    /* A field of the call is wrong. No work was started. */
    SMLA_INVALID_ARGUMENT = 1,
    /* The call is valid, but no kernel of this build and machine supports it. No work was started. */
    SMLA_UNSUPPORTED = 2,
    /* The workspace is too small; smla_workspace_size() returns the required size. */
    SMLA_WORKSPACE_TOO_SMALL = 3,
    SMLA_OUT_OF_MEMORY = 4,
    SMLA_DEVICE_ERROR = 5,
    /* A file or a checked tensor contains wrong data. */
    SMLA_DATA_ERROR = 6,
    SMLA_IO_ERROR = 7,
    /* A bug in smla. Please report it. */
    SMLA_INTERNAL = 8,
    SMLA_CANCELLED = 9 /* A callback of the caller ended the call (context.h); outputs are undefined. */
};

/* Last error of the calling thread. The strings are never null and are valid until the thread's next call.
 *
 * `field` is a path in C notation: the name of the function's parameter in the header, then the members. For
 * example, an error of smla_attend(context, args, ...) names "args.primary.rows.shape[0]", and an error of
 * smla_plan_build(plan, batch) names "batch.seq_lens[3]". An error in a file names the key in the file:
 * "config.json: kv_lora_rank". */
typedef struct smla_error {
    smla_status status;
    const char* field;
    /* Value of the field, or a sentence that says what happened if no value is wrong. */
    const char* got;
    /* Required value of the field; empty if `got` is a sentence. */
    const char* wanted;
    /* Complete message in one line. */
    const char* message;
} smla_error;

/* Returns the message of the thread's last error; empty after a successful call. */
SMLA_API const char* smla_last_error(void);
/* Writes the parts of the thread's last error to `out`. */
SMLA_API void smla_last_error_info(smla_error* out);
/* Returns the name of a status, such as "invalid argument". */
SMLA_API const char* smla_status_name(smla_status status);

typedef int32_t smla_dtype;
enum {
    /* Not supported on a GPU. */
    SMLA_F64 = 1,
    SMLA_F32 = 2,
    SMLA_BF16 = 3,
    SMLA_F16 = 4,
    /* OCP fp8 E4M3 "fn": no infinities, largest value 448, NaN is 0x7f or 0xff. */
    SMLA_E4M3 = 5,
    /* Two e2m1 values per byte, low nibble first. Shapes and strides count values. */
    SMLA_E2M1 = 6,
    /* Scale 2^(byte - 127); byte 255 is NaN. */
    SMLA_E8M0 = 7,
    SMLA_U8 = 8,
    SMLA_I32 = 9,
    SMLA_I64 = 10
};

typedef int32_t smla_device_type;
enum { SMLA_CPU = 0, SMLA_CUDA = 1 };

/* Strided view of memory that the caller owns.
 *
 * If all strides are 0, the tensor is dense and row-major. A dimension with stride SMLA_STRIDE_REPEAT repeats
 * one element; so does a dimension with stride 0 if another stride is not 0. Outputs must not repeat
 * elements. */
#define SMLA_MAX_NDIM 4
#define SMLA_STRIDE_REPEAT INT32_MIN
typedef struct smla_tensor {
    /* Address of the first element; null only if the tensor has no elements. */
    void* data;
    smla_dtype dtype;
    smla_device_type device_type;
    int32_t device_index;
    /* Number of dimensions; 0 means that the tensor is absent. */
    int32_t ndim;
    int64_t shape[SMLA_MAX_NDIM];
    int64_t stride_elems[SMLA_MAX_NDIM];
} smla_tensor;

/* Returns a dense tensor on a device. Extents beyond `ndim` dimensions are ignored. */
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

/* Returns a dense tensor on the host. */
static inline smla_tensor smla_dense(void* data, smla_dtype dtype, int32_t ndim, int64_t d0, int64_t d1,
                                     int64_t d2, int64_t d3) {
    return smla_dense_on(SMLA_CPU, 0, data, dtype, ndim, d0, d1, d2, d3);
}

/* Record format of a cached token. smla/formats.h returns sizes; docs/formats.md documents the bytes. */
typedef int32_t smla_format;
enum {
    SMLA_FORMAT_NONE = 0,
    /* row_* formats: `width` values per token without scales, 1 <= width <= 1024. */
    SMLA_ROW_F64 = 1,
    SMLA_ROW_F32 = 2,
    /* Named bf16_576 and bf16_512 at widths 576 and 512. */
    SMLA_ROW_BF16 = 3,
    /* V3.2, elsewhere named fp8_ds_mla: 512 e4m3 values, 4 f32 scales, 64 bf16 values of the rope part. */
    SMLA_FP8_656 = 4,
    /* 576 e4m3 values, one scale per cache. */
    SMLA_FP8_576 = 5,
    /* V4. Page: all rows (448 e4m3, 64 bf16 of the rope part), then 8 bytes of UE8M0 per token. */
    SMLA_FP8_584 = 6,
    /* 512 e4m3 values, one scale per cache. */
    SMLA_FP8_512 = 7,
    /* 512 e4m3 values, 4 f32 scales. */
    SMLA_FP8_528 = 8,
    /* Index keys. Page: all rows of 128 e4m3 values, then one f32 scale per token. */
    SMLA_INDEX_FP8_132 = 9,
    /* Index keys. Page: all rows of 64 bytes e2m1, then 4 UE8M0 scales per token. */
    SMLA_INDEX_MXFP4_68 = 10,
    /* Compressor state in f32: width/2 values kv, then width/2 values score + ape. */
    SMLA_STATE_F32 = 11,
    /* Compressor state in f64, in the same layout. Not supported on a GPU. */
    SMLA_STATE_F64 = 12,
    /* V4.1: 512 e4m3 values with the rope part, 16 UE8M0 scales, one per 32 values. Not fp8_528. */
    SMLA_FP8_528_G32 = 13,
    /* fp8_528_g32 in pages: all rows of 512 e4m3, then 16 UE8M0 per token, padded to 512 bytes. */
    SMLA_FP8_528_G32_SPLIT = 14,
    /* V4.1: 512 e2m1 values with the rope part, 32 e4m3 scales, one per 16 values. */
    SMLA_NVFP4_288 = 15,
    /* nvfp4_288 in pages: all rows of 256 bytes e2m1, then 32 e4m3 per token, padded to 256 bytes. */
    SMLA_NVFP4_288_SPLIT = 16,
    /* V4. Page: all rows (448 e2m1, 64 bf16 of the rope part), then 28 e4m3 scales and 4 zeros per token. */
    SMLA_NVFP4_384 = 17,
    /* V3.2, elsewhere named nvfp4_ds_mla: 512 e2m1 values, 64 e4m3 of the rope part, 32 e4m3 scales. */
    SMLA_NVFP4_352 = 18
};

/* Rules by which values are quantized when a cache is written, as bits, for formats that inference engines
 * write differently. 0 selects vLLM's rules. Reading a cache does not use these bits. */
typedef int32_t smla_writer;
enum {
    /* fp8_528_g32*, index_mxfp4_68: the scale of a group is at least 1e-4, as in sglang (index keys: of V4).
     * Without this bit, a group's largest magnitude is treated as at least 1e-4 (index keys: 6 * 2^-126). */
    SMLA_WRITER_SCALE_FLOOR = 1,
    /* fp8_528_g32*, nvfp4_288*: values are rounded to bf16 before quantization, as in sglang and flashinfer.
     * Compressed entries of other formats with scales are always rounded to bf16 first. */
    SMLA_WRITER_BF16_FIRST = 2,
    /* index_mxfp4_68: ties round to the smaller magnitude and zeros have no sign, as in sglang for V4. */
    SMLA_WRITER_TIES_TO_ZERO = 4,
    /* fp8_528_g32*, nvfp4_288*: pooled entries are rounded to bf16 before their norm, as in sglang. */
    SMLA_WRITER_BF16_POOLED = 8,
    /* fp8_528_g32*: compressed entries (not session windows) have nvfp4_288 values, as in sglang. */
    SMLA_WRITER_FP4_VALUES = 16
};

/* Paged cache. Row page * page_rows + offset (int32) is token `offset` of a page. A row is masked if it is
 * negative, its offset is >= page_tokens, or it is >= capacity = (pages - 1) * page_rows + page_tokens. Calls
 * never read or write masked rows. */
typedef struct smla_cache {
    void* data;
    smla_format format;
    smla_device_type device_type;
    int32_t device_index;
    /* Values per token; 0 means the format's width, which row_* and state_* formats do not have. */
    int32_t width;
    /* Tokens per page, 1 or more. */
    int32_t page_tokens;
    /* Rows from one page to the next; 0 means page_tokens. Pages of several layers may interleave. */
    int32_t page_rows;
    int64_t pages;
    /* Bytes from one page to the next; 0 means packed pages of the format. */
    int64_t page_stride_bytes;
    /* Bytes from one row to the next in row-packed formats; 0 means packed rows. */
    int64_t row_stride_bytes;
    /* fp8_576 and fp8_512: factor of all codes, > 0. Other formats: 0 or 1. */
    float scale;
    /* SMLA_WRITER_* bits; 0 for formats that all engines write alike. */
    smla_writer writer;
    /* Optional scale on the cache's device, read when the kernel runs; overrides `scale`. */
    const float* scale_device;
} smla_cache;

/* Values that a kernel may round in addition to its f32 sums. */
typedef int32_t smla_precision;
enum {
    /* Means SMLA_PRECISION_EXACT. */
    SMLA_PRECISION_DEFAULT = 0,
    /* attend: kernels apply the scale of a tile to the products and never round it into a key. score:
     * products are summed in f32. */
    SMLA_PRECISION_EXACT = 1,
    /* attend: kernels may round a key to bf16(code * scale), as the engines reference and cpu do, or to
     * f16(code * f16(scale)), which is more accurate; the fastest Hopper kernels of cuda do one of the two.
     * If scales are powers of two, the values do not change. score: e4m3 products may be summed with about 14
     * bits, as tensor cores of Hopper and DeepGEMM do; docs/kernels/cuda_score.md has the bound. */
    SMLA_PRECISION_ROUNDED = 2
};

/* CUDA stream. Null means the default stream; a CPU has only this stream. */
typedef void* smla_stream;

#ifdef __cplusplus
}
#endif
#endif /* SMLA_TYPES_H */
