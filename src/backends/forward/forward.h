// The forward of each family: checks the caller's arguments and runs the inner step.
#pragma once

#include "backends/metadata/metadata.h"

namespace smla {

// With null `metadata`, a forward uses the shapes of the largest step.
void forward_dsa(Runner& run, const BackendInstance& on, const Metadata* metadata, const ForwardArgs& args);
void forward_hybrid(Runner& run, const BackendInstance& on, const Metadata* metadata,
                    const ForwardArgs& args);

// A call without metadata computes sizes, so its tensors may be shapes on the host.
inline CheckContext context_of(const Runner& run, const Metadata* metadata) {
    return metadata ? run.env().checks() : CheckContext{}.shapes_only();
}
// Arguments with at least one row per token of the step. Each function both checks an argument and cuts it to
// the step's rows, so no check is left out. `inner` is the shape of a row.
class RowsOfStep {
public:
    RowsOfStep(int64_t tokens, const CheckContext& context) : tokens_(tokens), context_(context) {}

    using Inner = std::initializer_list<int64_t>;
    Tensor in(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner) const;
    Tensor optional_in(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner) const;
    // Throws if elements overlap, or if `is_rows` and the elements of a row are not contiguous.
    Tensor out(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner,
               bool is_rows = true) const;
    Tensor optional_out(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner) const;

private:
    int64_t tokens_;
    const CheckContext& context_;
};
// Checks `given` and returns it: the format must be `wanted`, and the pages must be as in `built`, from the
// metadata (page_tokens 0: any). Sets page_rows from the metadata, and a missing scale from the backend.
smla_cache cache_of_step(const BackendInstance& on, const char* field, const smla_cache& given,
                         smla_format wanted, const CacheGroup& built, const CheckContext& context);

// Zeroes rows [0, n) of a tensor, in stream order.
void zero_rows(const Env& env, const Tensor& tensor, int64_t n);

}  // namespace smla
