/* smla/formats.h: how much memory caches and tensors take. */
#ifndef SMLA_FORMATS_H
#define SMLA_FORMATS_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_packing;
enum {
    /* A token's bytes lie together; rows may be further apart (row_stride_bytes). */
    SMLA_PACKING_ROW = 0,
    /* Codes of all tokens of a page come first, then their scales. */
    SMLA_PACKING_PAGE = 1
};

typedef int32_t smla_scale_kind;
enum {
    SMLA_SCALE_NONE = 0,
    /* One f32 for the cache: smla_cache.scale or scale_device. */
    SMLA_SCALE_PER_CACHE = 1,
    /* In the record: one f32 per values_per_scale values. */
    SMLA_SCALE_F32 = 2,
    /* In the record: one UE8M0 byte per values_per_scale values. */
    SMLA_SCALE_E8M0 = 3,
    /* In the record: one e4m3 byte per values_per_scale values. */
    SMLA_SCALE_E4M3 = 4
};

typedef struct smla_format_info {
    uint32_t struct_size;
    smla_format format;
    /* "fp8_656"; lives for ever. */
    const char* name;
    /* Values per token: the format's own, or the width that was asked for. */
    int32_t width;
    /* The widest that the format takes; = width where the format has its own. */
    int32_t max_width;
    /* Widths are multiples of this. */
    int32_t width_multiple;
    smla_packing packing;
    smla_scale_kind scale;
    /* 0 with SMLA_SCALE_NONE and PER_CACHE. The rope part of a record has no scales. */
    int32_t values_per_scale;
    /* Required alignment of data, page stride and row stride. */
    int32_t alignment_bytes;
    /* Bytes of a token, without padding at the end of its page. */
    int32_t token_bytes;
    /* A packed page of n tokens takes n * token_bytes, rounded up to a multiple of this. */
    int32_t page_multiple_bytes;
} smla_format_info;

/* What a format is. `width`: as in smla_cache, so 0 for a format with a width of its own. Fails for an
 * unknown format and a width that the format does not take. */
SMLA_API smla_status smla_format_get_info(smla_format format, int32_t width, smla_format_info* info);

/* A format by its name, or by the aliases "bf16_576", "bf16_512", "bf16" (row_bf16) and "f32" (row_f32).
 * Fails for an unknown name; "fp8_ds_mla" is one: it names two records (fp8_656 and fp8_584). */
SMLA_API smla_status smla_format_by_name(const char* name, smla_format* format);

/* Bytes from the first page of a cache to the end of its last. Neither `data` nor the scale of a cache is
 * looked at. */
SMLA_API smla_status smla_cache_bytes(const smla_cache* cache, size_t* bytes);

/* Bytes from the first element of a tensor to the end of its last; 0 for an absent one. `data` is not looked
 * at. */
SMLA_API smla_status smla_tensor_bytes(const smla_tensor* tensor, size_t* bytes);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_FORMATS_H */
