// One attention layer for a serving run. It drives a backend as an inference engine does: metadata, state,
// entries, forward. A token's inputs are computed from its text alone, so that they are the same in any
// batch. On a GPU caches and weights stay there; a step's inputs are made on the host and sent.
#pragma once

#include "backends/metadata/metadata.h"
#include "engines/context.h"
#include "engines/placed.h"
#include "problems.h"

namespace smla::cli {

struct ServeSpec {
    const Backend* backend;
    int32_t ratio = 0;  // V4, V4.1
    std::string kv_dtype = "auto";
    int32_t max_tokens = 0, max_requests = 0, max_seq_len = 0;
    int32_t speculative_tokens = 0;
};

// A cache group: rows per page, tokens per row.
struct ServeGroup {
    int32_t bit, page_rows, tokens_per_row;

    int64_t pages(int64_t tokens) const { return ceil_div(tokens / tokens_per_row, page_rows); }
};

// Tokens of one request in a step.
struct ServeSlice {
    std::vector<uint64_t> keys;                                // of the tokens: inputs are computed from them
    int32_t computed = 0;                                      // tokens of the request before it
    const std::vector<std::vector<int32_t>>* pages = nullptr;  // by group
};

class ServeModel {
public:
    // `pages` of each group, in the order of groups().
    ServeModel(Context& context, const ServeSpec& spec, const std::vector<int32_t>& pages);

    static std::vector<ServeGroup> groups(const ServeSpec& spec);
    // Output rows of all slices' tokens, concatenated: [T,width()].
    std::vector<float> step(const std::vector<ServeSlice>& slices);
    int64_t width() const { return width_; }
    const BackendInstance& instance() const { return on_; }

private:
    void fill_batch(const std::vector<ServeSlice>& slices, PlanBatch& batch);
    ForwardArgs inputs(const std::vector<ServeSlice>& slices, Memory& memory);
    void make_weights();
    void close_entries(const std::vector<ServeSlice>& slices, Memory& memory, PlacedMemory& placed);
    bool has_group(int32_t bit) const;
    int64_t compressor_width() const;
    smla_cache& cache(int32_t bit);
    Tensor table(int32_t bit, int64_t requests) const;

    Context& context_;
    ServeSpec spec_;
    std::vector<ServeGroup> groups_;
    BackendInstance on_;
    std::unique_ptr<Metadata> metadata_;
    Memory fixed_;         // caches, weights
    PlacedMemory placed_;  // the same on a GPU
    std::vector<smla_cache> caches_;
    std::vector<std::vector<int32_t>> tables_;
    std::vector<int32_t> starts_, lengths_;
    Tensor w_uk_t_{}, w_uv_{}, sink_{}, ape_{}, norm_{}, frequencies_{};
    OwnedWorkspace workspace_;
    int64_t width_ = 0;
};

}  // namespace smla::cli
