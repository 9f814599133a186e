#include "backends/gate.h"

#include "core/workspace.h"
#include "formats/fits.h"
#include "formats/format.h"

#include <algorithm>

namespace smla {

namespace {

template <class T>
bool has(std::span<const T> values, const T& value) {
    return std::find(values.begin(), values.end(), value) != values.end();
}

std::string cache_type_list(const Backend& backend) {
    std::string out;
    for (const CacheType& type : backend.cache_types)
        out += (out.empty() ? "" : ", ") + std::string(type.name);
    for (const Format* format : all_formats())
        if (backend.formats & format_bit(format->id)) out += text(", ", format->name);
    return out;
}

// Returns the row format for "auto": the queries' type if it is wider than bf16.
smla_format plain_format(smla_dtype dtype) {
    return dtype == SMLA_F64 ? SMLA_ROW_F64 : dtype == SMLA_F32 ? SMLA_ROW_F32 : SMLA_ROW_BF16;
}

// Cache formats of a kv_cache_dtype.
struct Records {
    smla_format cache = SMLA_FORMAT_NONE, entries = SMLA_FORMAT_NONE;
};

Records named_records(const Backend& backend, const BackendConfig& config) {
    const bool nope = !config.hybrid() && config.rope_dim() == 0;
    for (const CacheType& type : backend.cache_types) {
        if (config.cache_type != type.name) continue;
        if (type.there && type.major == major_capability(config.args.device)) return {type.there, type.there};
        smla_format id = nope && type.nope ? type.nope : type.format;
        if (id == SMLA_ROW_BF16 && config.cache_type == "auto") id = plain_format(config.args.dtype);
        return {id, type.entries ? type.entries : id};
    }
    const Format* format = find_format(std::string_view(config.cache_type));
    if (!format || !(backend.formats & format_bit(format->id))) return {};
    return {format->id, format->id};
}

// Returns named_records(), or none if a format does not fit the model's dimensions.
Records records_of(const Backend& backend, const BackendConfig& config) {
    const Records out = named_records(backend, config);
    const auto fits = [&](smla_format id) {
        return id && config.head_size() <= find_format(id)->max_width &&
               why_not_record(id, config.head_size(), config.rope_dim(), config.hybrid()).empty();
    };
    return fits(out.cache) && fits(out.entries) ? out : Records{};
}

}  // namespace

int32_t padded_heads(const Backend& backend, const BackendConfig& config) {
    const PublishedHeads& rule = backend.heads;
    const int32_t heads = config.args.heads;
    for (const int32_t size : rule.sizes)
        if (heads <= size) return size;
    const bool sm_100 = major_capability(config.args.device) == 10;
    return int32_t(round_up(size_t(heads), size_t(sm_100 ? rule.unit_on_sm100 : rule.unit)));
}

smla_format cache_format(const Backend& backend, const BackendConfig& config) {
    return records_of(backend, config).cache;
}

smla_format entry_format(const Backend& backend, const BackendConfig& config) {
    const bool compressed = config.hybrid() && config.kind() != LayerKind::sliding;
    return compressed ? records_of(backend, config).entries : SMLA_FORMAT_NONE;
}

std::string record_names(const Backend& backend, const BackendConfig& config) {
    const smla_format cache = cache_format(backend, config), entries = entry_format(backend, config);
    if (!cache) return "";
    const bool two = entries && entries != cache;
    return find_format(cache)->name + (two ? text(", ", find_format(entries)->name) : "");
}

std::vector<std::string> config_refusals(const Backend& backend, const BackendConfig& config) {
    std::vector<std::string> out;
    const BackendArgs& args = config.args;
    if (backend.family != args.family)
        return {text("it supports ", find_family(backend.family)->models, ", not ",
                     find_family(args.family)->models)};
    const smla_format format = cache_format(backend, config);
    if (!format)
        out.push_back(text("kv_cache_dtype ", config.cache_type, " is not supported with ",
                           config.head_size(),
                           " values per token (supported types: ", cache_type_list(backend), ")"));
    if (format == SMLA_ROW_F64 && args.dtype != SMLA_F64)
        out.push_back(text("kv_cache_dtype row_f64 requires f64 queries, not ", dtype_name(args.dtype)));
    const bool scaled = format && find_format(format)->scale == ScaleKind::per_tensor;
    if (args.dtype == SMLA_E4M3 && !config.hybrid())
        out.push_back("e4m3 queries are not supported (V3.2 has absorbed queries in bf16, f16, f32 or f64)");
    else if (args.dtype == SMLA_E4M3 && !scaled)
        out.push_back("e4m3 queries require a cache with one scale (kv_cache_dtype fp8_e4m3)");
    if (args.heads > 256) out.push_back(text(args.heads, " heads are not supported (supported: 1 to 256)"));
    if (args.wants & SMLA_WANTS_ENCODER) out.push_back("only decoder self-attention is supported");
    if (args.wants & SMLA_WANTS_ALIBI) out.push_back("ALiBi slopes are not supported");
    if (args.wants & SMLA_WANTS_SLIDING_WINDOW)
        out.push_back("a sliding window in addition to the window of the model is not supported");
    if (args.wants & SMLA_WANTS_SOFT_CAP) out.push_back("soft capping of logits is not supported");
    if (args.wants & SMLA_WANTS_FUSED_OUTPUT_QUANT)
        out.push_back("fused output quantization is not supported");
    if (reads_selection(config.kind()) && args.topk == 0)
        out.push_back("it requires a model with index_topk in its config");
    return out;
}

std::vector<std::string> why_not(const Backend& backend, const BackendConfig& config) {
    std::vector<std::string> out = config_refusals(backend, config);
    const std::string refusal = engine_of(config.args.device).refusal;
    if (!refusal.empty()) out.push_back(refusal);
    return out;
}

std::vector<std::string> published_refusals(const Backend& backend, const BackendConfig& config) {
    std::vector<std::string> out;
    const PublishedGate& gate = backend.published;
    const BackendArgs& args = config.args;
    if (backend.family != args.family) return {"it supports another model family"};
    if (!has(gate.head_sizes, config.head_size()))
        out.push_back(text("head size ", config.head_size(),
                           " is not supported (supported: ", joined(gate.head_sizes), ")"));
    if (!has(gate.dtypes, args.dtype))
        out.push_back(text("dtype ", dtype_name(args.dtype), " is not supported"));
    if (std::none_of(gate.cache_types.begin(), gate.cache_types.end(),
                     [&](const char* type) { return config.cache_type == type; }))
        out.push_back(text("kv_cache_dtype ", config.cache_type,
                           " is not supported (supported: ", joined(gate.cache_types), ")"));
    const int32_t page = args.page_tokens;
    if (page && (gate.page_exact ? page != gate.page_multiple : page % gate.page_multiple != 0))
        out.push_back(text("block size ", page, " is not supported (supported: ",
                           gate.page_exact ? "" : "multiples of ", gate.page_multiple, ")"));
    const int32_t major = major_capability(args.device);
    if (args.device.type == SMLA_CPU) out.push_back("it requires a CUDA device");
    else if (!gate.capabilities.empty() && !has(gate.capabilities, major))
        out.push_back(text("compute capability ", major,
                           ".x is not supported (supported: ", joined(gate.capabilities), ")"));
    if (args.wants & SMLA_WANTS_ENCODER) out.push_back("only decoder self-attention is supported");
    if (args.wants & (SMLA_WANTS_ALIBI | SMLA_WANTS_SLIDING_WINDOW | SMLA_WANTS_SOFT_CAP))
        out.push_back("ALiBi slopes, sliding windows and soft caps are not supported");
    if (args.wants & SMLA_WANTS_FUSED_OUTPUT_QUANT)
        out.push_back("fused output quantization is not supported");
    if (gate.more)
        if (std::string reason = gate.more(config); !reason.empty()) out.push_back(std::move(reason));
    return out;
}

}  // namespace smla
