// The arguments of a backend with their defaults filled in.
#pragma once

#include "backends/device.h"
#include "core/layer_kind.h"

#include <smla/backend.h>

#include <string>

namespace smla {

using BackendArgs = smla_backend_args;
using ForwardArgs = smla_backend_forward_args;

struct BackendConfig {
    BackendArgs args{};
    std::string cache_type = "auto";

    bool hybrid() const { return args.family == SMLA_FAMILY_HYBRID; }
    LayerKind kind() const { return hybrid() ? hybrid_layer_kind(args.ratio) : LayerKind::dsa; }
    int32_t rope_dim() const { return args.rope_dim; }
    int32_t head_size() const { return hybrid() ? args.head_dim : args.kv_lora_rank + args.rope_dim; }
};

// Throws if an argument makes no sense for any backend.
BackendConfig resolve_config(const BackendArgs& args);

}  // namespace smla
