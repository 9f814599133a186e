// The arguments of a backend with their defaults filled in.
#pragma once

#include "backends/device.h"
#include "core/layer_kind.h"

#include <smla/backend.h>

#include <span>
#include <string>

namespace smla {

using BackendArgs = smla_backend_args;
using ForwardArgs = smla_backend_forward_args;

// Properties that the models of a family share.
struct FamilyTraits {
    const char* models;
    std::span<const int32_t> ratios;  // tokens per entry that layers may have; 0: no entries
    const char* ratios_text;
    int32_t window_page_tokens;  // default
};
const FamilyTraits* find_family(smla_family family);  // null if there is no such family

struct BackendConfig {
    BackendArgs args{};
    std::string cache_type = "auto";

    bool hybrid() const { return args.family != SMLA_FAMILY_DSA; }
    LayerKind kind() const {
        if (!hybrid()) return LayerKind::dsa;
        return args.family == SMLA_FAMILY_HYBRID ? hybrid_layer_kind(args.ratio)
                                                 : sharing_layer_kind(args.ratio);
    }
    int32_t rope_dim() const { return args.rope_dim; }
    int32_t head_size() const { return hybrid() ? args.head_dim : args.kv_lora_rank + args.rope_dim; }
    bool pools() const { return !hybrid() && args.ratio > 1; }  // GLM-5.3-Flash
    // Returns the columns of topk_indices. With pools, a list ends with the tokens of the open pool, and its
    // width is rounded up to 128, as in vLLM.
    int32_t list_columns() const;
};

// Throws if an argument is invalid for every backend.
BackendConfig resolve_config(const BackendArgs& args);

}  // namespace smla
