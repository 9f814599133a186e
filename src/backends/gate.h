// Reasons why a backend, or its published original, does not support certain arguments.
#pragma once

#include "backends/backend.h"

#include <string>
#include <vector>

namespace smla {

// Returns the format of the cache (V4, V4.1: the window cache). Returns NONE if the backend does not support
// the type, or if its formats lack these dimensions.
smla_format cache_format(const Backend& backend, const BackendConfig& config);
// Returns the format of the compressed cache, or NONE if it is unsupported or the layer has no such cache.
smla_format entry_format(const Backend& backend, const BackendConfig& config);
// Returns the names of both formats, or one name if they are equal; empty for NONE.
std::string record_names(const Backend& backend, const BackendConfig& config);
// Returns why the backend does not support the arguments, assuming an engine for the device.
std::vector<std::string> config_refusals(const Backend& backend, const BackendConfig& config);
// Returns config_refusals(), and why no engine of this build runs on the device.
std::vector<std::string> why_not(const Backend& backend, const BackendConfig& config);
// Returns the reasons that the published backend's gate gives.
std::vector<std::string> published_refusals(const Backend& backend, const BackendConfig& config);

}  // namespace smla
