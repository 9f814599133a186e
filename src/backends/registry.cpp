#include "backends/registry.h"

#include "backends/gate.h"
#include "core/environment.h"
#include "core/log.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace smla {

namespace {

constexpr const Backend* kBackends[] = {
#define SMLA_LIST_BACKEND(name) &name,
    SMLA_BACKENDS(SMLA_LIST_BACKEND)
#undef SMLA_LIST_BACKEND
};

std::string name_list() {
    std::string out;
    for (const Backend* backend : kBackends) out += text(out.empty() ? "" : ", ", backend->name);
    return out;
}

// Returns whether only FlashInfer's backends were written for the cache type.
bool plain_hybrid_cache(const BackendConfig& config) {
    constexpr std::string_view kPlain[] = {"bfloat16", "bf16", "bf16_512", "row_bf16", "fp8_e4m3", "fp8_512"};
    return std::find(std::begin(kPlain), std::end(kPlain), config.cache_type) != std::end(kPlain);
}

const Backend* preferred(const BackendConfig& config) {
    const int32_t major = major_capability(config.args.device);
    if (!config.hybrid()) {
        if (major == 9 || major == 10) return &kFlashMlaSparse;
        return major == 12 ? &kSparseMlaSm120 : &kTritonMlaSparse;
    }
    const bool plain = plain_hybrid_cache(config);
    if (config.args.family == SMLA_FAMILY_HYBRID_SHARED)
        return major == 12 || plain ? &kFlashInferMlaSparseDsv41 : &kFlashMlaSparseDsv41;
    if (major == 12) return &kDsv4SparseMlaSm120;
    return plain ? &kFlashInferMlaSparseDsv4 : &kFlashMlaSparseDsv4;
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

const Backend& find_backend(std::string_view name, const char* field) {
    const std::string wanted(name);
    for (const Backend* backend : kBackends) {
        if (strcasecmp(wanted.c_str(), backend->name) == 0) return *backend;
        for (const char* alias : backend->aliases)
            if (strcasecmp(wanted.c_str(), alias) == 0) return *backend;
    }
    fail(SMLA_INVALID_ARGUMENT, field, wanted, "one of " + name_list());
}

std::vector<const Backend*> preference(const BackendConfig& config) {
    std::vector<const Backend*> out{preferred(config)};
    if (out[0] == &kDsv4SparseMlaSm120 && plain_hybrid_cache(config))
        out.push_back(&kFlashInferMlaSparseDsv4);
    for (const Backend* backend : all_backends())
        if (backend->family == config.args.family && std::find(out.begin(), out.end(), backend) == out.end())
            out.push_back(backend);
    return out;
}

std::string BackendChoice::line() const {
    const std::string how = forced.empty() ? "" : " (requested by name)";
    if (backend) return text("attention backend ", backend->name, how, ", engine ", engine.name);
    return text("no attention backend", how);
}

BackendChoice select_backend(const BackendConfig& config, std::string_view wanted) {
    BackendChoice out;
    const char* field = "backend";
    if (const char* name = wanted.empty() ? environment("SMLA_BACKEND") : nullptr) {
        wanted = name;
        field = "SMLA_BACKEND";
    }
    out.engine = engine_of(config.args.device);
    const Backend* only = wanted.empty() ? nullptr : &find_backend(wanted, field);
    if (only) out.forced = only->name;
    for (const Backend* backend : preference(config)) {
        out.verdicts.push_back(
            {backend, config_refusals(*backend, config), published_refusals(*backend, config)});
        if (!out.backend && out.verdicts.back().refusals.empty() && (!only || only == backend))
            out.backend = backend;
    }
    if (only && only->family != config.args.family)
        out.verdicts.push_back({only, config_refusals(*only, config), published_refusals(*only, config)});
    return out;
}

BackendInstance choose_backend(const BackendConfig& config, std::string_view wanted) {
    const BackendChoice selection = select_backend(config, wanted);
    if (!selection.backend) {
        std::string reasons;
        for (const BackendVerdict& verdict : selection.verdicts)
            if (selection.forced.empty() || selection.forced == verdict.backend->name)
                reasons += text(reasons.empty() ? "" : " | ", verdict.backend->name, ": ",
                                joined(verdict.refusals, "; "));
        fail(SMLA_UNSUPPORTED, "backend", reasons, "arguments that a backend supports");
    }
    BackendInstance instance(*selection.backend, config);
    log_line(LogLevel::info, selection.line());
    return instance;
}

}  // namespace smla
