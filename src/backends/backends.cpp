#include "backends/backend.h"

#include "backends/metadata.h"
#include "core/shapes_only.h"
#include "formats/fits.h"
#include "formats/format.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace smla {

namespace {

constexpr const Backend* kBackends[] = {
    &kFlashMlaSparse,     &kSparseMlaSm120,     &kTritonMlaSparse,
    &kDsv4SparseMlaSm120, &kFlashMlaSparseDsv4, &kFlashInferMlaSparseDsv4,
};
template <class T>
bool has(std::span<const T> values, const T& value) {
    return std::find(values.begin(), values.end(), value) != values.end();
}

std::string joined(std::span<const char* const> words) {
    std::string out;
    for (const char* word : words) out += (out.empty() ? "" : ", ") + std::string(word);
    return out;
}
std::string joined(std::span<const int32_t> numbers) {
    std::string out;
    for (const int32_t number : numbers) out += (out.empty() ? "" : ", ") + text(number);
    return out;
}

std::string cache_type_list(const Backend& backend) {
    std::string out;
    for (const CacheType& type : backend.cache_types)
        out += (out.empty() ? "" : ", ") + std::string(type.name);
    for (const Format* format : all_formats())
        if (backend.formats & format_bit(format->id)) out += text(", ", format->name);
    return out;
}

// "auto" and "bfloat16" hold what queries are where those are wider than bf16.
smla_format plain_format(smla_dtype dtype) {
    return dtype == SMLA_F64 ? SMLA_ROW_F64 : dtype == SMLA_F32 ? SMLA_ROW_F32 : SMLA_ROW_BF16;
}

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
    SMLA_CHECK(args.rope_dim % 2 == 0, "args.rope_dim", args.rope_dim, "even");
    if (!config.hybrid()) {
        amount("args.kv_lora_rank", args.kv_lora_rank, 2);
        SMLA_CHECK(args.kv_lora_rank % 2 == 0, "args.kv_lora_rank", args.kv_lora_rank, "even");
        amount("args.nope_dim", args.nope_dim, 1);
        amount("args.v_head_dim", args.v_head_dim, 1);
    } else {
        amount("args.head_dim", args.head_dim, 1);
        amount("args.window", args.window, 1);
        SMLA_CHECK(args.ratio == 0 || args.ratio == 4 || args.ratio == 128, "args.ratio", args.ratio,
                   "0 or 1 (window only), 4 or 128");
    }
    SMLA_CHECK(args.page_tokens >= 0, "args.page_tokens", args.page_tokens, "0 or more");
    SMLA_CHECK(args.window_page_tokens >= 0, "args.window_page_tokens", args.window_page_tokens, "0 or more");
    SMLA_CHECK(args.topk >= 0, "args.topk", args.topk, "0 or more");
    constexpr int32_t kWants = 2 * SMLA_WANTS_FUSED_OUTPUT_QUANT - 1;
    SMLA_CHECK((args.wants & ~kWants) == 0, "args.wants", args.wants,
               text("SMLA_WANTS_* bits, 0 to ", kWants));
    SMLA_CHECK(args.max_tokens >= 1, "args.max_tokens", args.max_tokens, "1 or more");
    SMLA_CHECK(args.max_requests >= 1, "args.max_requests", args.max_requests, "1 or more");
    SMLA_CHECK(args.max_seq_len >= 1, "args.max_seq_len", args.max_seq_len, "1 or more");
    SMLA_CHECK(args.speculative_tokens >= 0, "args.speculative_tokens", args.speculative_tokens, "0 or more");
    SMLA_CHECK(args.max_logits_bytes >= 0, "args.max_logits_bytes", double(args.max_logits_bytes),
               "0 or more");
    for (const auto& [field, scale] : {std::pair{"args.softmax_scale", args.softmax_scale},
                                       {"args.q_scale", args.q_scale},
                                       {"args.kv_scale", args.kv_scale}})
        SMLA_CHECK(scale > 0 && std::isfinite(scale), field, scale, "a finite number above 0");
}

}  // namespace

std::span<const Backend* const> all_backends() { return kBackends; }
std::span<const char* const> backend_names() {
    static const auto names = [] {
        std::array<const char*, std::size(kBackends)> out{};
        std::transform(std::begin(kBackends), std::end(kBackends), out.begin(),
                       [](const Backend* backend) { return backend->name; });
        return out;
    }();
    return names;
}

const Backend& find_backend(std::string_view name) {
    for (const Backend* backend : kBackends) {
        if (name == backend->name) return *backend;
        for (const char* alias : backend->aliases)
            if (name == alias) return *backend;
    }
    fail(SMLA_INVALID_ARGUMENT, "backend", std::string(name), text("one of ", joined(backend_names())));
}

BackendConfig resolve_config(const BackendArgs& given) {
    BackendConfig config;
    config.args = given;
    BackendArgs& args = config.args;
    SMLA_CHECK(args.family == SMLA_FAMILY_DSA || args.family == SMLA_FAMILY_HYBRID, "args.family",
               args.family, "SMLA_FAMILY_DSA (0) or SMLA_FAMILY_HYBRID (1)");
    if (args.kv_cache_dtype) config.cache_type = args.kv_cache_dtype;
    args.kv_cache_dtype = nullptr;  // the caller's memory
    if (args.dtype == 0) args.dtype = SMLA_BF16;
    SMLA_CHECK(dtype_bit(args.dtype) & (kFloats | dtype_bit(SMLA_E4M3)), "args.dtype", args.dtype,
               "bf16, f16, f32, f64 or e4m3");
    default_to(args.rope_dim, 64);
    if (args.rope_dim == -1) args.rope_dim = 0;
    if (config.hybrid()) {
        default_to(args.head_dim, 512);
        default_to(args.window, 128);
        default_to(args.window_page_tokens, 64);
        if (args.ratio == 1) args.ratio = 0;
    } else {
        default_to(args.kv_lora_rank, 512);
        default_to(args.nope_dim, 128);
        default_to(args.v_head_dim, 128);
    }
    if (args.q_scale == 0) args.q_scale = 1;
    if (args.kv_scale == 0) args.kv_scale = 1;
    if (args.max_logits_bytes == 0) args.max_logits_bytes = int64_t(512) << 20;
    if (args.device.struct_size == 0) args.device = describe_device("cpu");
    check_dimensions(config);
    return config;
}

smla_format cache_format(const Backend& backend, const BackendConfig& config) {
    const bool nope = !config.hybrid() && config.rope_dim() == 0;
    smla_format id = SMLA_FORMAT_NONE;
    for (const CacheType& type : backend.cache_types) {
        if (config.cache_type != type.name) continue;
        id = nope && type.nope ? type.nope : type.format;
        if (id == SMLA_ROW_BF16) id = plain_format(config.args.dtype);
    }
    if (!id)
        if (const Format* format = find_format(std::string_view(config.cache_type)))
            if (backend.formats & format_bit(format->id)) id = format->id;
    if (!id) return id;
    const bool fits = why_not_record(id, config.head_size(), config.rope_dim(), config.hybrid()).empty() &&
                      config.head_size() <= find_format(id)->max_width;
    return fits ? id : SMLA_FORMAT_NONE;
}

std::vector<std::string> config_refusals(const Backend& backend, const BackendConfig& config) {
    std::vector<std::string> out;
    const BackendArgs& args = config.args;
    if (backend.family != args.family)
        return {backend.family == SMLA_FAMILY_DSA ? "it is for DeepSeek-V3.2 and GLM-5.x, not for V4"
                                                  : "it is for DeepSeek-V4, not for V3.2 and GLM-5.x"};
    const smla_format format = cache_format(backend, config);
    if (!format)
        out.push_back(text("kv_cache_dtype ", config.cache_type, " with ", config.head_size(),
                           " values per token; it has ", cache_type_list(backend)));
    const bool scaled = format && find_format(format)->scale == ScaleKind::per_tensor;
    if (args.dtype == SMLA_E4M3 && !scaled)
        out.push_back("e4m3 queries go with a cache of one scale: kv_cache_dtype fp8_e4m3");
    if (args.heads > 256) out.push_back(text(args.heads, " heads; 1 to 256"));
    if (args.wants & SMLA_WANTS_ENCODER) out.push_back("only decoder self-attention");
    if (args.wants & SMLA_WANTS_ALIBI) out.push_back("alibi slopes");
    if (args.wants & SMLA_WANTS_SLIDING_WINDOW) out.push_back("a sliding window beside the model's own");
    if (args.wants & SMLA_WANTS_SOFT_CAP) out.push_back("a soft cap of the logits");
    if (args.wants & SMLA_WANTS_FUSED_OUTPUT_QUANT) out.push_back("fused output quantisation");
    const bool selects = !config.hybrid() || args.ratio == 4;
    if (selects && args.topk == 0) out.push_back("a model with index_topk in its config is needed");
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
    if (backend.family != args.family) return {"another model's"};
    if (!has(gate.head_sizes, config.head_size()))
        out.push_back(text("head size ", config.head_size(), "; it has ", joined(gate.head_sizes)));
    if (!has(gate.dtypes, args.dtype)) out.push_back(text("dtype ", dtype_name(args.dtype)));
    if (std::none_of(gate.cache_types.begin(), gate.cache_types.end(),
                     [&](const char* type) { return config.cache_type == type; }))
        out.push_back(text("kv_cache_dtype ", config.cache_type, "; it has ", joined(gate.cache_types)));
    const int32_t page = args.page_tokens;
    if (page && (gate.page_exact ? page != gate.page_multiple : page % gate.page_multiple != 0))
        out.push_back(text("block size ", page, "; it has ", gate.page_multiple));
    const int32_t major = major_capability(args.device);
    if (args.device.type == SMLA_CPU) out.push_back("no CUDA device");
    else if (!gate.capabilities.empty() && !has(gate.capabilities, major))
        out.push_back(text("compute capability ", major, ".x; it has ", joined(gate.capabilities)));
    if (args.wants & SMLA_WANTS_ENCODER) out.push_back("attention type");
    if (args.wants & (SMLA_WANTS_ALIBI | SMLA_WANTS_SLIDING_WINDOW | SMLA_WANTS_SOFT_CAP))
        out.push_back("alibi slopes, sliding window or soft cap");
    if (args.wants & SMLA_WANTS_FUSED_OUTPUT_QUANT) out.push_back("fused output quantisation");
    if (gate.more)
        if (std::string reason = gate.more(config); !reason.empty()) out.push_back(std::move(reason));
    return out;
}

BackendInstance::BackendInstance(const Backend& which, const BackendConfig& given)
    : backend(&which), config(given), format(cache_format(which, given)) {
    std::string reasons;
    for (const std::string& reason : why_not(which, given)) reasons += (reasons.empty() ? "" : "; ") + reason;
    if (!reasons.empty()) fail(SMLA_UNSUPPORTED, which.name, reasons, "arguments that it can serve");
    if (config.args.page_tokens == 0) config.args.page_tokens = which.page_tokens;
    SMLA_CHECK(!config.hybrid() || !config.args.ratio || config.args.page_tokens % config.args.ratio == 0,
               "args.page_tokens", config.args.page_tokens,
               text("a multiple of the ratio, ", config.args.ratio));
    zeros_.assign(size_t(std::max(config.args.rope_dim, config.args.kv_lora_rank)) / 2, 0.0);
}

void BackendInstance::place_on(Context& on) {
    context = &on;
    if (on.device().type() == SMLA_CPU) return;
    zeros_there_ = std::make_shared<DeviceBuffer>(on.device(), zeros_.size() * sizeof(double));
    on.device().fill(zeros_there_->data(), 0, zeros_there_->bytes(), nullptr);
    on.device().wait(nullptr);
}

Tensor BackendInstance::no_rotation(int64_t pairs) const {
    Tensor out = make_tensor(zeros_.data(), SMLA_F64, {pairs});
    if (!zeros_there_) return out;
    out.data = zeros_there_->data();
    out.device_type = context->device().type();
    out.device_index = context->device().index();
    return out;
}

smla_cache_shape BackendInstance::cache_shape(int32_t group, int64_t pages) const {
    const bool hybrid = config.hybrid(), compressed = group == SMLA_PLAN_COMPRESSED;
    SMLA_CHECK(
        group == SMLA_PLAN_PRIMARY
            ? !hybrid
            : hybrid && (group == SMLA_PLAN_WINDOW || (compressed && config.args.ratio)),
        "group", group,
        hybrid ? config.args.ratio ? "WINDOW or COMPRESSED" : "WINDOW: the layer has no other" : "PRIMARY");
    SMLA_CHECK(pages >= 0 && pages < (int64_t(1) << 31), "pages", pages, "0 or more, rows within int32");
    const Format& record = *find_format(format);
    const int64_t tokens = !hybrid      ? config.args.page_tokens
                           : compressed ? config.args.page_tokens / config.args.ratio
                                        : config.args.window_page_tokens;
    const bool bytes = record.scale == ScaleKind::f32_tile || record.scale == ScaleKind::e8m0_tile;
    smla_cache_shape out{};
    out.struct_size = sizeof out;
    out.dtype = bytes                                   ? SMLA_U8
                : record.scale == ScaleKind::per_tensor ? SMLA_E4M3
                : format == SMLA_ROW_F64                ? SMLA_F64
                : format == SMLA_ROW_F32                ? SMLA_F32
                                                        : SMLA_BF16;
    out.shape[0] = pages;
    out.shape[1] = tokens;
    out.shape[2] = bytes ? int64_t(record.record_bytes(config.head_size())) : config.head_size();
    out.page_stride_bytes = int64_t(record.page_bytes(config.head_size(), tokens));
    out.bytes = pages * out.page_stride_bytes;
    return out;
}

size_t BackendInstance::workspace(const Env& env, const ForwardArgs& args) const {
    const ShapesOnly no_data;
    Runner sizing(env, args.stage_budget, nullptr);
    backend->forward(sizing, *this, nullptr, args);
    return sizing.total_bytes();
}

void BackendInstance::run(const Env& env, const Metadata* metadata, const ForwardArgs& args,
                          Workspace workspace, StageRecords* records) const {
    const ExpectDevice device(env.device->type(), env.device->index());
    if (!metadata) {
        check_tensor("args.out", args.out, kFloats,
                     args.out.ndim == 2 ? std::initializer_list<int64_t>{kAny, kAny}
                                        : std::initializer_list<int64_t>{kAny, kAny, kAny});
        check_rows("args.out", args.out);
        return zero_rows(env, args.out, args.out.shape[0]);
    }
    metadata->check_for(*this);
    if (element_count(args.q) == 0) return;
    Runner sizing(env, args.stage_budget, nullptr);
    sizing.check_calls();
    backend->forward(sizing, *this, metadata, args);
    Runner runner(env, sizing, workspace, records);
    backend->forward(runner, *this, metadata, args);
}

void zero_rows(const Env& env, const Tensor& tensor, int64_t n) {
    const size_t bytes = size_t(dtype_bits(tensor.dtype)) / 8, pitch = size_t(tensor.stride_elems[0]) * bytes;
    const int64_t inner = tensor.ndim > 1 ? tensor.shape[tensor.ndim - 1] : 1;
    const int64_t middle = tensor.ndim > 2 ? tensor.shape[1] : 1;
    if (n == 0) return;
    const bool dense = middle == 1 || tensor.stride_elems[1] == inner;
    for (int64_t j = 0; j < (dense ? 1 : middle); ++j)
        env.device->fill_rows(tensor.ndim > 2 ? address(tensor, 0, j) : tensor.data, pitch, 0,
                              size_t(inner * (dense ? middle : 1)) * bytes, size_t(n), env.stream);
}

}  // namespace smla
