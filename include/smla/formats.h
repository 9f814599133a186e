/* smla/formats.h: how much memory a cache takes. */
#ifndef SMLA_FORMATS_H
#define SMLA_FORMATS_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes from the first page of a cache of this description to the end of its last. `data` is not looked at,
 * nor is the scale of a per-tensor format. */
SMLA_API smla_status smla_cache_bytes(const smla_cache* cache, size_t* bytes);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_FORMATS_H */
