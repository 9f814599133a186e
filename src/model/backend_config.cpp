#include "model/backend_config.h"

#include <algorithm>

namespace smla {

BackendArgs backend_args(const AttentionConfig& config, int64_t layer) {
    BackendArgs args{};
    args.struct_size = sizeof args;
    args.heads = int32_t(config.common.heads);
    args.rope_dim = config.common.rope_dim ? int32_t(config.common.rope_dim) : -1;
    args.ratio = int32_t(config.compress_ratio(layer));
    const int64_t pool = config.hybrid ? 1 : std::max<int64_t>(args.ratio, 1);
    args.topk = config.indexer ? int32_t(config.indexer->topk * pool) : 0;  // in tokens, like index_topk
    args.softmax_scale = config.softmax_scale();
    args.max_tokens = args.max_requests = args.max_seq_len = 1;
    if (config.hybrid) {
        args.family = config.hybrid->sharing ? SMLA_FAMILY_HYBRID_SHARED : SMLA_FAMILY_HYBRID;
        args.head_dim = int32_t(config.hybrid->head_dim);
        args.window = int32_t(config.hybrid->window);
    } else {
        args.family = SMLA_FAMILY_DSA;
        args.kv_lora_rank = int32_t(config.dsa->kv_lora_rank);
        args.nope_dim = int32_t(config.dsa->qk_nope_head_dim);
        args.v_head_dim = int32_t(config.dsa->v_head_dim);
    }
    return args;
}

}  // namespace smla
