// An attention backend: what a file of this folder describes, and what the C ABI makes of it. The numerics
// are those of step.h; a backend adds layouts, metadata and limits.
#pragma once

#include "backends/device.h"
#include "backends/runner.h"

#include <smla/backend.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace smla {

using BackendArgs = smla_backend_args;
using ForwardArgs = smla_backend_forward_args;

// Arguments with their defaults filled in.
struct BackendConfig {
    BackendArgs args{};
    std::string cache_type = "auto";

    bool hybrid() const { return args.family == SMLA_FAMILY_HYBRID; }
    int32_t rope_dim() const { return args.rope_dim; }
    int32_t head_size() const { return hybrid() ? args.head_dim : args.kv_lora_rank + args.rope_dim; }
};
// Throws where an argument makes no sense for any backend.
BackendConfig resolve_config(const BackendArgs& args);

// A kv_cache_dtype and the records that it stands for; with channels without rope alone, `nope` instead.
struct CacheType {
    const char* name;
    smla_format format, nope = SMLA_FORMAT_NONE;
};

// What the published backend's own gate accepts. We refuse less: docs/support-matrix.md shows both.
struct PublishedGate {
    std::span<const smla_dtype> dtypes;
    std::span<const char* const> cache_types;
    std::span<const int32_t> head_sizes;
    int32_t page_multiple = 1;
    bool page_exact = false;                              // page_multiple itself and no other
    std::span<const int32_t> capabilities;                // major; empty: any GPU
    std::string (*more)(const BackendConfig&) = nullptr;  // a further reason, or empty
};

class Metadata;
struct BackendInstance;

struct Backend {
    const char* name;
    std::span<const char* const> aliases;
    smla_family family;
    std::span<const CacheType> cache_types;  // "auto" first
    uint32_t formats;                        // records by their own names, too
    int32_t page_tokens;                     // default
    smla_graph_support graph_support;
    PublishedGate published;
    int32_t (*padded_heads)(const BackendConfig&);  // of the published kernel
    std::unique_ptr<Metadata> (*metadata)(const BackendInstance&);
    void (*forward)(Runner&, const BackendInstance&, const Metadata*, const ForwardArgs&);
};

// One line per backend, in the order of preference where nothing else decides.
std::span<const Backend* const> all_backends();
std::span<const char* const> backend_names();
const Backend& find_backend(std::string_view name);  // or an alias; throws with the list

// Reasons in words why a backend cannot serve the arguments, apart from the device.
std::vector<std::string> config_refusals(const Backend& backend, const BackendConfig& config);
// The same, and why no engine of this build runs there.
std::vector<std::string> why_not(const Backend& backend, const BackendConfig& config);
// What the published backend's gate would say.
std::vector<std::string> published_refusals(const Backend& backend, const BackendConfig& config);
// NONE: the backend does not know the type, or the record does not have these dimensions.
smla_format cache_format(const Backend& backend, const BackendConfig& config);

// A backend for certain arguments.
struct BackendInstance {
    BackendInstance(const Backend& backend, const BackendConfig& config);  // throws with the refusals

    const Backend* backend;
    BackendConfig config;
    smla_format format;
    Context* context = nullptr;  // where metadata and tensors lie; null: this machine's memory

    // Before metadata are made.
    void place_on(Context& context);
    Tensor no_rotation(int64_t pairs) const;  // frequencies 0: `rope` then copies

    int32_t threshold() const { return 1 + config.args.speculative_tokens; }
    smla_cache_shape cache_shape(int32_t group, int64_t pages) const;
    size_t workspace(const Env& env, const ForwardArgs& args) const;
    // `metadata` null: warm-up
    void run(const Env& env, const Metadata* metadata, const ForwardArgs& args, Workspace workspace,
             StageRecords* records = nullptr) const;

private:
    std::vector<double> zeros_;
    std::shared_ptr<DeviceBuffer> zeros_there_;
};

// Zeroes rows [0, n) of a tensor, in the order of the stream.
void zero_rows(const Env& env, const Tensor& tensor, int64_t n);

extern const Backend kFlashMlaSparse, kSparseMlaSm120, kTritonMlaSparse;
extern const Backend kFlashMlaSparseDsv4, kDsv4SparseMlaSm120, kFlashInferMlaSparseDsv4;

}  // namespace smla
