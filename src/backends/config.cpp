#include "backends/config.h"

#include "core/f32_range.h"
#include "core/tensor.h"
#include "core/workspace.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace smla {

namespace {

constexpr int32_t kNoEntries[] = {0}, kHybridRatios[] = {0, 4, 128}, kSharingRatios[] = {0, 1, 2};
constexpr FamilyTraits kFamilies[] = {{"DeepSeek-V3.2 and GLM-5.x", kNoEntries, "0", 0},
                                      {"DeepSeek-V4", kHybridRatios, "0 or 1 (window only), 4 or 128", 64},
                                      {"DeepSeek-V4.1", kSharingRatios, "0 (window only), 1 or 2", 32}};

void default_to(int32_t& value, int32_t standard) {
    if (value == 0) value = standard;
}

void check_dimensions(const BackendConfig& config) {
    const BackendArgs& args = config.args;
    constexpr int32_t kMost = 1 << 16;
    const auto amount = [&](const char* field, int32_t value, int32_t least) {
        SMLA_CHECK(value >= least && value <= kMost, field, value, text(least, " to ", kMost));
    };
    amount("args.heads", args.heads, 1);
    amount("args.rope_dim", args.rope_dim, 0);
    SMLA_CHECK(args.rope_dim % 2 == 0, "args.rope_dim", args.rope_dim, "an even number");
    if (!config.hybrid()) {
        amount("args.kv_lora_rank", args.kv_lora_rank, 2);
        SMLA_CHECK(args.kv_lora_rank % 2 == 0, "args.kv_lora_rank", args.kv_lora_rank, "an even number");
        amount("args.nope_dim", args.nope_dim, 1);
        amount("args.v_head_dim", args.v_head_dim, 1);
        amount("args.ratio", args.ratio, 0);
    } else {
        amount("args.head_dim", args.head_dim, 1);
        amount("args.window", args.window, 1);
        const FamilyTraits& family = *find_family(args.family);
        SMLA_CHECK(std::find(family.ratios.begin(), family.ratios.end(), args.ratio) != family.ratios.end(),
                   "args.ratio", args.ratio, family.ratios_text);
    }
    SMLA_CHECK(args.page_tokens >= 0, "args.page_tokens", args.page_tokens, "0 or more");
    SMLA_CHECK(args.window_page_tokens >= 0, "args.window_page_tokens", args.window_page_tokens, "0 or more");
    SMLA_CHECK(args.topk >= 0, "args.topk", args.topk, "0 or more");
    constexpr int32_t kWants = 2 * SMLA_WANTS_FUSED_OUTPUT_QUANT - 1;
    SMLA_CHECK((args.wants & ~kWants) == 0, "args.wants", args.wants,
               text("SMLA_WANTS_* bits, 0 to ", kWants));
    const int32_t more_groups =
        config.hybrid() ? SMLA_GROUP_INDEX | SMLA_GROUP_STATE | SMLA_GROUP_INDEX_STATE : SMLA_GROUP_INDEX;
    SMLA_CHECK(!config.pools() || args.plan_groups == 0, "args.plan_groups", args.plan_groups,
               "0: smla_plan_create with the ratio makes the groups of an indexer of pools");
    SMLA_CHECK((args.plan_groups & ~more_groups) == 0, "args.plan_groups", args.plan_groups,
               config.hybrid() ? "SMLA_GROUP_INDEX (8), STATE (16) and INDEX_STATE (32) bits"
                               : "0 or SMLA_GROUP_INDEX (8)");
    SMLA_CHECK(args.batch_invariant == 0 || args.batch_invariant == 1, "args.batch_invariant",
               args.batch_invariant, "0 or 1");
    SMLA_CHECK(args.device.multiprocessors >= 0, "args.device.multiprocessors", args.device.multiprocessors,
               "0 or more");
    SMLA_CHECK(args.max_tokens >= 1, "args.max_tokens", args.max_tokens, "1 or more");
    SMLA_CHECK(args.max_requests >= 1, "args.max_requests", args.max_requests, "1 or more");
    SMLA_CHECK(args.max_seq_len >= 1, "args.max_seq_len", args.max_seq_len, "1 or more");
    SMLA_CHECK(args.speculative_tokens >= 0, "args.speculative_tokens", args.speculative_tokens, "0 or more");
    SMLA_CHECK(args.max_logits_bytes >= 0, "args.max_logits_bytes", double(args.max_logits_bytes),
               "0 or more");
    SMLA_CHECK(args.precision >= 0 && args.precision <= SMLA_PRECISION_ROUNDED, "args.precision",
               args.precision, "default (0), exact (1) or rounded (2)");
    SMLA_CHECK(args.reserved == 0, "args.reserved", args.reserved, "0");
    for (const auto& [field, scale] :
         {std::pair{"args.softmax_scale", args.softmax_scale}, {"args.q_scale", args.q_scale}})
        SMLA_CHECK(is_positive_f32(scale), field, scale, "a number that is finite and positive in f32");
    SMLA_CHECK(args.kv_scale == 0 || is_positive_f32(args.kv_scale), "args.kv_scale", args.kv_scale,
               "0, or a number that is finite and positive in f32");
    SMLA_CHECK(softmax_fits_f32(args.softmax_scale, args.q_scale), "args.softmax_scale", args.softmax_scale,
               "a number whose product with q_scale and log2(e) is finite in f32");
}

}  // namespace

const FamilyTraits* find_family(smla_family family) {
    return family >= 0 && family < int32_t(std::size(kFamilies)) ? &kFamilies[family] : nullptr;
}

int32_t BackendConfig::list_columns() const {
    if (!pools()) return args.topk;
    const size_t columns = round_up(size_t(args.topk) + size_t(args.ratio) - 1, 128);
    return int32_t(std::min<size_t>(columns, INT32_MAX));
}

BackendConfig resolve_config(const BackendArgs& given) {
    BackendConfig config;
    config.args = given;
    BackendArgs& args = config.args;
    const FamilyTraits* const family = find_family(args.family);
    SMLA_CHECK(family, "args.family", args.family,
               "SMLA_FAMILY_DSA (0), SMLA_FAMILY_HYBRID (1) or SMLA_FAMILY_HYBRID_SHARED (2)");
    if (args.kv_cache_dtype) config.cache_type = args.kv_cache_dtype;
    args.kv_cache_dtype = nullptr;  // points to the caller's memory
    if (args.dtype == 0) args.dtype = SMLA_BF16;
    SMLA_CHECK(dtype_bit(args.dtype) & (kFloats | dtype_bit(SMLA_E4M3)), "args.dtype", args.dtype,
               "bf16, f16, f32, f64 or e4m3");
    default_to(args.rope_dim, 64);
    if (args.rope_dim == -1) args.rope_dim = 0;
    if (config.hybrid()) {
        default_to(args.head_dim, 512);
        default_to(args.window, 128);
        default_to(args.window_page_tokens, family->window_page_tokens);
        if (args.family == SMLA_FAMILY_HYBRID && args.ratio == 1) args.ratio = 0;
    } else {
        default_to(args.kv_lora_rank, 512);
        default_to(args.nope_dim, 128);
        default_to(args.v_head_dim, 128);
    }
    if (args.q_scale == 0) args.q_scale = 1;
    if (args.max_logits_bytes == 0) args.max_logits_bytes = int64_t(512) << 20;
    if (args.device.struct_size == 0) args.device = describe_device("cpu");
    check_dimensions(config);
    return config;
}

}  // namespace smla
