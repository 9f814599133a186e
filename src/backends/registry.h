// The list of backends, and the selection of a backend for a model and a device.
#pragma once

#include "backends/instance.h"

#include <string_view>
#include <vector>

namespace smla {

// All backends, one per line, in the default order of preference.
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
    std::vector<std::string> refusals;   // empty if the arguments are supported
    std::vector<std::string> published;  // reasons from the original's gate
};

struct BackendChoice {
    const Backend* backend = nullptr;  // null: no backend fits
    EngineOfDevice engine;
    std::string forced;                    // requested name, if any
    std::vector<BackendVerdict> verdicts;  // one per backend of the family, best first

    std::string line() const;  // returns one line for the log
};

// Returns the backends of the model's family, the preferred one for the device and cache first.
std::vector<const Backend*> preference(const BackendConfig& config);
// Selects a backend without logging. If `wanted` is empty, the environment variable SMLA_BACKEND applies, if
// set. An unknown name throws; a backend that does not support the arguments leaves `backend` null.
BackendChoice select_backend(const BackendConfig& config, std::string_view wanted);
// Selects a backend and logs one line. Throws with every reason if there is none.
BackendInstance choose_backend(const BackendConfig& config, std::string_view wanted);

}  // namespace smla
