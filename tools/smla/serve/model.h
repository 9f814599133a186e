// Attention layers for a serving run: one, or the index sources of V4.1. It drives a backend as an inference
// engine does: metadata, state, entries, forward. A token's inputs are computed from its text alone, so that
// they are the same in any batch. On a GPU caches and weights stay there; a step's inputs are made on the
// host and sent.
#pragma once

#include "backends/metadata/metadata.h"
#include "backends/runner.h"
#include "candidates.h"
#include "engines/context.h"
#include "engines/placed.h"
#include "problems.h"

#include <functional>

namespace smla::cli {

constexpr int32_t kServeTopk = 16;

struct ServeSpec {
    const Backend* backend;
    int32_t ratio = 0;     // V4, V4.1
    bool indexed = false;  // V4.1: layers that select (candidates.h), instead of lists drawn at random
    std::string kv_dtype = "auto";
    DeviceInfo device = describe_device("cpu");  // decides which record `auto` stands for
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
    std::vector<uint64_t> keys;  // keys of the tokens, from which inputs are computed
    int32_t computed = 0;        // tokens of the request before this slice
    const std::vector<std::vector<int32_t>>* pages = nullptr;  // by group
    // By layer, [S,kServeTopk] of the request's text: attended to instead of what the layers would select.
    const std::vector<std::vector<int32_t>>* lists = nullptr;
};

class ServeModel {
public:
    // `pages` of each group, in the order of groups().
    ServeModel(Context& context, const ServeSpec& spec, const std::vector<int32_t>& pages);

    static std::vector<ServeGroup> groups(const ServeSpec& spec);
    // Output rows of all slices' tokens, concatenated: [T,width()], of all layers side by side.
    std::vector<float> step(const std::vector<ServeSlice>& slices);
    int64_t width() const { return layers() * width_; }
    const BackendInstance& instance() const { return on_; }

private:
    void fill_batch(const std::vector<ServeSlice>& slices, PlanBatch& batch);
    ForwardArgs inputs(const std::vector<ServeSlice>& slices, int32_t layer, Memory& memory);
    Tensor lists(const std::vector<ServeSlice>& slices, int32_t layer, Memory& memory) const;
    void make_caches(const std::vector<int32_t>& pages);
    void make_weights();
    void close_entries(const std::vector<ServeSlice>& slices, Memory& memory, PlacedMemory& placed);
    void write_index_keys(const std::vector<ServeSlice>& slices, Memory& memory, PlacedMemory& placed);
    Tensor select(const std::vector<ServeSlice>& slices, int32_t source, Tensor& blocks, Memory& memory,
                  PlacedMemory& placed);
    void run_stages(const std::function<void(Runner&)>& stages);
    int32_t layers() const { return spec_.indexed ? kIndexSources : 1; }
    bool has_group(int32_t bit) const;
    int64_t compressor_width() const;
    smla_cache& cache(int32_t bit, int32_t layer = 0);
    Tensor table(int32_t bit, int64_t requests) const;

    Context& context_;
    ServeSpec spec_;
    std::vector<ServeGroup> groups_;
    BackendInstance on_;
    std::unique_ptr<Metadata> metadata_;
    Memory fixed_;                     // caches, weights
    PlacedMemory placed_;              // the same on a GPU
    std::vector<smla_cache> caches_;   // caches of the first layer, by group
    std::vector<smla_cache> windows_;  // caches of later layers
    std::vector<std::vector<int32_t>> tables_;
    std::vector<int32_t> starts_, lengths_;
    Tensor w_uk_t_{}, w_uv_{}, sink_{}, ape_{}, norm_{}, frequencies_{};
    OwnedWorkspace workspace_;
    int64_t width_ = 0;  // width of one layer's output
};

}  // namespace smla::cli
