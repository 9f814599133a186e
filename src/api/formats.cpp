#include "api/guard.h"
#include "core/shapes_only.h"
#include "formats/format.h"

#include <smla/formats.h>

using namespace smla;

extern "C" smla_status smla_cache_bytes(const smla_cache* cache, size_t* bytes) {
    return api::guard([&] {
        SMLA_CHECK(cache, "cache", "null", "a cache");
        SMLA_CHECK(bytes, "bytes", "null", "where the size goes");
        smla_cache described = *cache;
        described.data = nullptr;
        described.scale = 1;
        described.scale_device = nullptr;
        const ShapesOnly no_memory;
        check_cache("cache", described, kKvFormats | kIndexFormats | kStateFormats);
        *bytes = cache_bytes(described);
    });
}
