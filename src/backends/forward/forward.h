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
// Arguments with a row for each of the step's tokens, and any rows behind them: each is checked and cut to
// the step's rows by one call, so no check is left out. `inner`: the shape of a row.
class RowsOfStep {
public:
    RowsOfStep(int64_t tokens, const CheckContext& context) : tokens_(tokens), context_(context) {}

    using Inner = std::initializer_list<int64_t>;
    Tensor in(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner) const;
    Tensor optional_in(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner) const;
    // Elements lie apart, and those of a row that `is_rows` one after the other.
    Tensor out(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner,
               bool is_rows = true) const;
    Tensor optional_out(const char* field, const Tensor& tensor, uint32_t allowed, Inner inner) const;

private:
    int64_t tokens_;
    const CheckContext& context_;
};
// A cache of this format with pages as in `built`, which the metadata come from (page_tokens 0, in a step
// without metadata: any pages). page_rows 0 becomes theirs, a missing scale that of the backend.
smla_cache cache_of_step(const BackendInstance& on, const char* field, const smla_cache& given,
                         smla_format wanted, const CacheGroup& built, const CheckContext& context);

// Rows [0, n) of a tensor become 0, in the order of the stream.
void zero_rows(const Env& env, const Tensor& tensor, int64_t n);

}  // namespace smla
