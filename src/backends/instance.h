// A backend for certain arguments, on a device: cache shapes, metadata and forward.
#pragma once

#include "backends/backend.h"
#include "backends/runner.h"
#include "backends/step_key.h"

namespace smla {

// Returns the positions of the addresses in the arguments of a forward.
std::span<const StageField> forward_places();

struct BackendInstance {
    BackendInstance(const Backend& backend, const BackendConfig& config);  // throws with the refusals

    const Backend* backend;
    BackendConfig config;
    smla_format format, entry_format;  // formats of the (window) cache and of the compressed cache
    uint64_t id = unique_id();
    Context* context = nullptr;  // where metadata and tensors are stored; null: host memory

    int32_t threshold() const { return 1 + config.args.speculative_tokens; }
    smla_cache_shape cache_shape(int32_t group, int64_t pages) const;
    std::unique_ptr<Metadata> metadata() const;
    size_t workspace(const Env& env, const ForwardArgs& args) const;
    // Null `metadata` makes this a warm-up.
    void run(const Env& env, const Metadata* metadata, const ForwardArgs& args, Workspace workspace,
             StageRecords* records = nullptr) const;

private:
    void forward(Runner& run, const Metadata* metadata, const ForwardArgs& args) const;
};

}  // namespace smla
