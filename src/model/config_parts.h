// The parts of config.json, one reader each; what is wrong goes to the reader's findings.
#pragma once

#include "model/config.h"
#include "model/object_reader.h"

namespace smla {

// Bounds of sane models. Products of any three stay below 2^63.
constexpr int64_t kMaxHidden = 1 << 20;
constexpr int64_t kMaxRank = 1 << 16;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;  // the widest row a cache holds
constexpr int64_t kMaxTopk = 1 << 20;
constexpr int64_t kMaxPool = 1024;

void read_dsa(const ObjectReader& reader, AttentionConfig& config);
void read_hybrid(const ObjectReader& reader, AttentionConfig& config);
// V4.1: checks that for every layer with entries some layer writes them, with the same ratio, and some layer
// selects among them.
void check_sharing(const ObjectReader& reader, const HybridConfig& hybrid);
IndexerConfig read_indexer(const ObjectReader& reader);

// A list with one entry per layer; null: absent, or reported because it is empty or too long.
const Json* read_layer_list(const ObjectReader& reader, const char* name);

// The members of one rope object (rope_scaling, rope_parameters or a nested one) into `rope`. `dsa`: the
// magnitude members mscale and mscale_all_dim count.
void read_rope(const ObjectReader& reader, bool dsa, RopeParameters& rope);
// YaRN members that are each in range can still contradict one another.
void check_ramp(const ObjectReader& reader, int64_t rope_dim, const RopeParameters& rope);
constexpr double kMinTheta = 2, kMaxTheta = 1e12;

}  // namespace smla
