/* smla/formats.h: sizes and properties of record formats, caches and tensors. */
#ifndef SMLA_FORMATS_H
#define SMLA_FORMATS_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_packing;
enum {
    /* The bytes of a token are contiguous; rows may be further apart (row_stride_bytes). */
    SMLA_PACKING_ROW = 0,
    SMLA_PACKING_PAGE = 1 /* A page contains the codes of all its tokens, then their scales. */
};

typedef int32_t smla_scale_kind;
enum {
    SMLA_SCALE_NONE = 0,
    SMLA_SCALE_PER_CACHE = 1, /* One f32 scale for the cache: smla_cache.scale or scale_device. */
    SMLA_SCALE_F32 = 2,       /* One f32 scale in the record per values_per_scale values. */
    SMLA_SCALE_E8M0 = 3,      /* One UE8M0 scale (one byte) in the record per values_per_scale values. */
    SMLA_SCALE_E4M3 = 4       /* One e4m3 scale in the record per values_per_scale values. */
};

typedef struct smla_format_info {
    uint32_t struct_size;
    smla_format format;
    const char* name; /* Name of the format, such as "fp8_656"; a static string. */
    /* Values per token: the width of the format, or the `width` that the caller passed. */
    int32_t width;
    /* Largest width that the format supports; equals `width` for formats of one width. */
    int32_t max_width;
    /* Supported widths are multiples of this number. */
    int32_t width_multiple;
    smla_packing packing;
    smla_scale_kind scale;
    /* Values that share a scale; 0 with SMLA_SCALE_NONE and PER_CACHE. The rope part has no scales. */
    int32_t values_per_scale;
    int32_t alignment_bytes; /* Required alignment of data, page stride and row stride. */
    int32_t token_bytes;     /* Bytes of a token, without the padding at the end of its page. */
    /* A packed page of n tokens has n * token_bytes bytes, rounded up to a multiple of this number. */
    int32_t page_multiple_bytes;
} smla_format_info;

/* Describes a format. `width` is as in smla_cache: 0 for a format of one width. Fails for an unknown format
 * or an unsupported width. */
SMLA_API smla_status smla_format_get_info(smla_format format, int32_t width, smla_format_info* info);

/* Finds a format by its name or by one of the aliases "bf16_576", "bf16_512", "bf16" (row_bf16) and "f32"
 * (row_f32). Fails for an unknown name and for "fp8_ds_mla", which is the name of two records (fp8_656 and
 * fp8_584). */
SMLA_API smla_status smla_format_by_name(const char* name, smla_format* format);

/* Writes the number of bytes from the first page of a cache to the end of its last page. Ignores `data` and
 * the scale. */
SMLA_API smla_status smla_cache_bytes(const smla_cache* cache, size_t* bytes);

/* Writes the number of bytes from the first element of a tensor to the end of its last element, 0 for an
 * absent tensor. Ignores `data`. */
SMLA_API smla_status smla_tensor_bytes(const smla_tensor* tensor, size_t* bytes);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_FORMATS_H */
