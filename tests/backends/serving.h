// Backends for tests, and random steps for them.
#pragma once

#include "backends/metadata/metadata.h"
#include "backends/registry.h"
#include "plan/batch.h"
#include "support.h"

namespace smla::test {

// Returns the compression ratios of the layers that a backend serves.
inline std::span<const int32_t> ratios(const Backend& backend) { return find_family(backend.family)->ratios; }

// Small maxima; the tests change what they care about. `ratio` -1: of a kind whose entries are selected.
inline BackendArgs backend_args(smla_family family, int32_t ratio = -1) {
    BackendArgs args{};
    args.struct_size = sizeof args;
    args.family = family;
    args.heads = 8;
    args.topk = 16;
    args.max_tokens = 24;
    args.max_requests = 6;
    args.max_seq_len = 1200;
    args.speculative_tokens = 1;
    args.softmax_scale = 0.07;
    if (family == SMLA_FAMILY_DSA) args.page_tokens = 1;  // so that steps may have pages of any size
    if (family == SMLA_FAMILY_HYBRID) args.ratio = ratio < 0 ? 4 : ratio;
    if (family == SMLA_FAMILY_HYBRID_SHARED) args.ratio = ratio < 0 ? 2 : ratio;
    return args;
}

// Dimensions as small as they may be, in f32.
inline BackendArgs small_latent() {
    BackendArgs args = backend_args(SMLA_FAMILY_DSA);
    args.heads = 3;
    args.kv_lora_rank = 24;
    args.rope_dim = 8;
    args.nope_dim = 10;
    args.v_head_dim = 6;
    args.dtype = SMLA_F32;
    args.kv_cache_dtype = "row_f32";
    return args;
}

inline BackendArgs small_hybrid(int32_t ratio, smla_family family = SMLA_FAMILY_HYBRID) {
    BackendArgs args = backend_args(family, ratio);
    args.heads = 3;
    args.head_dim = 20;
    args.rope_dim = 4;
    args.window = 9;
    args.dtype = SMLA_F32;
    args.kv_cache_dtype = "row_f32";
    return args;
}

inline BackendArgs small_args(const Backend& backend, int32_t ratio = -1) {
    return backend.family == SMLA_FAMILY_DSA ? small_latent() : small_hybrid(ratio, backend.family);
}

inline BackendInstance instance(const Backend& backend, const BackendArgs& args) {
    return BackendInstance(backend, resolve_config(args));
}

// Decodes of up to 1 + speculative_tokens new tokens, then prefill; now and then padding and tokens without a
// slot. Every request has pages of its own, and pages are shuffled.
Batch random_step(Random& random, const BackendArgs& args);

// A step as a captured graph takes it: `requests` of one token each, some of them without a slot, padded to
// max_tokens; tables have the same shape in every step.
Batch decode_step(Random& random, const BackendArgs& args, int32_t requests);

// Numbers of an i32, i64 or u8 field by name.
inline std::vector<int64_t> field(const Metadata& metadata, const char* name) {
    const Tensor* tensor = metadata.find(name);
    if (!tensor) {
        ADD_FAILURE() << "no field " << name;
        return {};
    }
    std::vector<int64_t> out;
    const Tensor flat = tensor->ndim == 3 ? reshape_rows(*tensor, {tensor->shape[2]}) : *tensor;
    for (int64_t i = 0; i < flat.shape[0]; ++i)
        for (int64_t j = 0; j < (flat.ndim > 1 ? flat.shape[1] : 1); ++j)
            out.push_back(flat.dtype == SMLA_U8 ? *reinterpret_cast<uint8_t*>(address(flat, i, j))
                                                : load_int(flat, i, j));
    return out;
}

}  // namespace smla::test
