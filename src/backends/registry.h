// The list of backends, and which of them serves a model on a device.
#pragma once

#include "backends/instance.h"

#include <string_view>
#include <vector>

namespace smla {

// Every backend, one line each, in the order of preference where nothing else decides.
#define SMLA_BACKENDS(X)        \
    X(kFlashMlaSparse)          \
    X(kSparseMlaSm120)          \
    X(kTritonMlaSparse)         \
    X(kDsv4SparseMlaSm120)      \
    X(kFlashMlaSparseDsv4)      \
    X(kFlashInferMlaSparseDsv4) \
    X(kFlashMlaSparseDsv41)     \
    X(kFlashInferMlaSparseDsv41)

#define SMLA_DECLARE_BACKEND(name) extern const Backend name;
SMLA_BACKENDS(SMLA_DECLARE_BACKEND)
#undef SMLA_DECLARE_BACKEND

std::span<const Backend* const> all_backends();
std::span<const char* const> backend_names();
// Finds a backend by name or alias, in upper or lower case. The error names `field`, the source of the name,
// and lists all names.
const Backend& find_backend(std::string_view name, const char* field = "backend");

struct BackendVerdict {
    const Backend* backend;
    std::vector<std::string> refusals;   // empty: it can serve the arguments
    std::vector<std::string> published;  // what the original's gate would say
};

struct BackendChoice {
    const Backend* backend = nullptr;  // null: none can
    EngineOfDevice engine;
    std::string forced;                    // name, if one was demanded
    std::vector<BackendVerdict> verdicts;  // of the family, in order of preference

    std::string line() const;  // one line for the log
};

// Backends of the model's family, the preferred one for the device and cache first.
std::vector<const Backend*> preference(const BackendConfig& config);
// `wanted` empty: SMLA_BACKEND of the environment, if it is set. An unknown name throws; a backend that
// cannot serve the arguments leaves `backend` null. Logs nothing: see choose_backend.
BackendChoice select_backend(const BackendConfig& config, std::string_view wanted);
// The chosen backend, with one line in the log. Throws with every refusal if there is none.
BackendInstance choose_backend(const BackendConfig& config, std::string_view wanted);

}  // namespace smla
