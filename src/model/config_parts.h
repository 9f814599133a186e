// Readers for the parts of config.json. Errors go to the reader's findings.
#pragma once

#include "model/config.h"
#include "model/object_reader.h"

namespace smla {

// Limits for plausible models. Products of any three stay below 2^63.
constexpr int64_t kMaxHidden = 1 << 20;
constexpr int64_t kMaxRank = 1 << 16;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;  // the widest row of a cache
constexpr int64_t kMaxTopk = 1 << 20;
constexpr int64_t kMaxPool = 1024;

void read_dsa(const ObjectReader& reader, AttentionConfig& config);
void read_hybrid(const ObjectReader& reader, AttentionConfig& config);
// V4.1: checks that each layer with entries has a layer that writes them with the same ratio, and a layer
// that selects among them.
void check_sharing(const ObjectReader& reader, const HybridConfig& hybrid);
IndexerConfig read_indexer(const ObjectReader& reader);

// Returns a list with one entry per layer; null if it is absent, or reported as empty or too long.
const Json* read_layer_list(const ObjectReader& reader, const char* name);

// Reads one rope object (rope_scaling, rope_parameters or a nested one) into `rope`. With `dsa`, this
// includes the magnitudes mscale and mscale_all_dim.
void read_rope(const ObjectReader& reader, bool dsa, RopeParameters& rope);
// Checks YaRN members against one another, because values in range can still be contradictory.
void check_ramp(const ObjectReader& reader, int64_t rope_dim, const RopeParameters& rope);
constexpr double kMinTheta = 2, kMaxTheta = 1e12;

}  // namespace smla
