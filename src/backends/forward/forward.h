// A step of each family: checks what a caller gave, and hands it to the inner step.
#pragma once

#include "backends/metadata/metadata.h"

namespace smla {

// `metadata` null: shapes of the largest step.
void forward_dsa(Runner& run, const BackendInstance& on, const Metadata* metadata, const ForwardArgs& args);
void forward_hybrid(Runner& run, const BackendInstance& on, const Metadata* metadata,
                    const ForwardArgs& args);

// A call without metadata asks for sizes: its tensors may be shapes on the host.
inline CheckContext context_of(const Runner& run, const Metadata* metadata) {
    return metadata ? run.env().checks() : CheckContext{}.shapes_only();
}
// Checks shared by both.
void check_rows_of_step(const char* field, const Tensor& tensor, int64_t tokens);
void check_cache(const char* field, const smla_cache& cache, smla_format wanted);
// The cache has the page size that the metadata were built with (0, in a step without metadata: any).
void check_pages(const char* field, const smla_cache& cache, const CacheGroup& built);

// Rows [0, n) of a tensor become 0, in the order of the stream.
void zero_rows(const Env& env, const Tensor& tensor, int64_t n);

}  // namespace smla
