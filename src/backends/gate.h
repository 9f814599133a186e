// Why a backend cannot serve certain arguments, and why the published one would not.
#pragma once

#include "backends/backend.h"

#include <string>
#include <vector>

namespace smla {

// The record of the cache, in V4 and V4.1 of the window's. NONE: the backend does not know the type, or its
// records do not have these dimensions.
smla_format cache_format(const Backend& backend, const BackendConfig& config);
// The record of the compressed cache. NONE: as above, or the layer has no compressed cache.
smla_format entry_format(const Backend& backend, const BackendConfig& config);
// Names of both records, one where they are the same; empty: NONE.
std::string record_names(const Backend& backend, const BackendConfig& config);
// Why the backend cannot serve these arguments, were there an engine for the device; empty: it can.
std::vector<std::string> config_refusals(const Backend& backend, const BackendConfig& config);
// config_refusals(), and why no engine of this build runs on the device.
std::vector<std::string> why_not(const Backend& backend, const BackendConfig& config);
// What the gate of the published backend would say.
std::vector<std::string> published_refusals(const Backend& backend, const BackendConfig& config);

}  // namespace smla
