// Which backend serves a model on a device, and why not the others.
#pragma once

#include "backends/backend.h"

namespace smla {

struct BackendVerdict {
    const Backend* backend;
    std::vector<std::string> refusals;   // empty: it can serve the arguments
    std::vector<std::string> published;  // what the original's gate would say
};

struct Selection {
    const Backend* backend = nullptr;  // null: none can
    EngineOfDevice engine;
    std::string forced;                    // name, if one was asked for
    std::vector<BackendVerdict> verdicts;  // of the family, in order of preference

    std::string line() const;  // one line for the log
};

// Backends of the model's family, the preferred one for the device and cache first.
std::vector<const Backend*> preference(const BackendConfig& config);
// `wanted` empty: SMLA_BACKEND of the environment, if set. An unknown name throws; one that cannot serve the
// arguments leaves `backend` null. Logs nothing: see choose_backend.
Selection select_backend(const BackendConfig& config, std::string_view wanted);
// The chosen backend, with one line in the log. Throws with every refusal if there is none.
BackendInstance choose_backend(const BackendConfig& config, std::string_view wanted);

}  // namespace smla
