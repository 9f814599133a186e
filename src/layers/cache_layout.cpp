#include "layers/cache_layout.h"

#include "formats/fits.h"

#include <algorithm>

namespace smla {

namespace {

int64_t kv_width(const AttentionConfig& config) {
    return config.hybrid ? config.hybrid->head_dim : config.dsa->kv_lora_rank + config.common.rope_dim;
}

std::string why_not(const AttentionConfig& config, smla_format id, bool index) {
    if (index) return why_not_width(id, config.indexer->head_dim);
    return why_not_record(id, kv_width(config), config.common.rope_dim, config.hybrid.has_value());
}

void check_format(const char* field, smla_format id, uint32_t allowed, bool f64) {
    const Format* format = find_format(id);
    SMLA_CHECK(format && (allowed & format_bit(id)), field, format ? text(format->name) : text(id),
               format_list(allowed));
    SMLA_CHECK(id != SMLA_ROW_F64 || f64, field, format->name,
               "another format, because activations are not f64");
}

void check_choice(const CacheChoice& choice) {
    check_format("kv_format", choice.kv, kKvFormats, choice.f64);
    check_format("index_format", choice.index, kIndexFormats, choice.f64);
    const std::string wanted = why_not_scale(*find_format(choice.kv), choice.kv_scale);
    SMLA_CHECK(wanted.empty(), "kv_scale", double(choice.kv_scale), wanted);
    const std::string bits = why_not_writer(*find_format(choice.kv), choice.kv_writer);
    SMLA_CHECK(bits.empty(), "kv_writer", choice.kv_writer, bits);
}

void add(std::vector<CacheNeed>& needs, const AttentionConfig& config, bool index, CacheNeed need) {
    const bool state = format_bit(need.format) & kStateFormats;
    const std::string reason = state ? "" : why_not(config, need.format, index);
    if (!reason.empty())
        fail(SMLA_UNSUPPORTED, index ? "index_format" : "kv_format", find_format(need.format)->name, reason);
    needs.push_back(need);
}

}  // namespace

int64_t CacheNeed::pages(int64_t tokens, int64_t step_tokens) const {
    const int64_t whole = ceil_div(std::max<int64_t>(rows(tokens), 1), page_rows);
    if (!resident) return whole;
    return std::min(whole, ceil_div(resident + step_tokens, page_rows) + 1);
}

size_t CacheNeed::page_bytes() const { return find_format(format)->page_bytes(width, page_rows); }

double CacheNeed::bytes_per_token() const {
    return resident ? 0.0 : double(page_bytes()) / double(page_rows) / double(tokens_per_row);
}

std::vector<CacheNeed> cache_needs(const AttentionConfig& config, int layer, const CacheChoice& choice) {
    config.check_computed(layer);
    check_choice(choice);
    std::vector<CacheNeed> needs;
    const int32_t width = int32_t(kv_width(config)), page = choice.page_tokens;
    const int32_t index_width = config.indexer ? int32_t(config.indexer->head_dim) : 0;
    const LayerKind kind = config.layer_kind(layer);
    const smla_format state = choice.f64 ? SMLA_STATE_F64 : SMLA_STATE_F32;
    const int64_t ratio = config.compress_ratio(layer);
    if (!config.hybrid) {
        const int64_t pool = std::max<int64_t>(ratio, 1);
        add(needs, config, false, {SMLA_GROUP_PRIMARY, "kv", choice.kv, width, page, 1, 0});
        if (has_indexer(kind))
            add(needs, config, true, {SMLA_GROUP_INDEX, "index", choice.index, index_width, page, pool, 0});
        if (has_indexer(kind) && ratio)
            add(needs, config, true,
                {SMLA_GROUP_INDEX_STATE, "index_state", state, 2 * index_width, 8, 1,
                 std::max<int64_t>(pool - 1, 1)});
        return needs;
    }
    add(needs, config, false,
        {SMLA_GROUP_WINDOW, "window", choice.kv, width, page, 1, config.hybrid->window - 1});
    if (kind == LayerKind::sliding) return needs;
    // V4.1: only layers that write entries have the following caches.
    if (kind == LayerKind::shared_sparse && !config.writes_entries(layer)) return needs;
    const bool sparse = kind == LayerKind::compressed_sparse;  // windows overlap by half
    const int32_t overlap = sparse ? 2 : 1, state_page = sparse ? 4 : 8;
    const int32_t entry_page = int32_t(std::clamp<int64_t>(4 * int64_t(page) / ratio, 1, INT32_MAX));
    add(needs, config, false, {SMLA_GROUP_COMPRESSED, "compressed", choice.kv, width, entry_page, ratio, 0});
    if (ratio > 1)
        add(needs, config, false,
            {SMLA_GROUP_STATE, "state", state, 2 * overlap * width, state_page, 1, overlap * ratio - 1});
    if (!config.selects(layer)) return needs;
    add(needs, config, true, {SMLA_GROUP_INDEX, "index", choice.index, index_width, entry_page, ratio, 0});
    if (!sparse) return needs;
    add(needs, config, true,
        {SMLA_GROUP_INDEX_STATE, "index_state", state, 2 * overlap * index_width, state_page, 1,
         overlap * ratio - 1});
    return needs;
}

std::vector<smla_format> kv_formats_for(const AttentionConfig& config) {
    std::vector<smla_format> out;
    for (const smla_format id :
         {SMLA_FP8_656, SMLA_FP8_584, SMLA_FP8_528, SMLA_FP8_576, SMLA_FP8_512, SMLA_ROW_BF16, SMLA_ROW_F32})
        if (why_not(config, id, false).empty()) out.push_back(id);
    return out;
}

std::vector<smla_format> index_formats_for(const AttentionConfig& config) {
    std::vector<smla_format> out;
    if (!config.indexer) return out;
    for (const smla_format id : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68, SMLA_ROW_BF16, SMLA_ROW_F32})
        if (why_not(config, id, true).empty()) out.push_back(id);
    return out;
}

}  // namespace smla
