// Field sets of the published backends. docs/backends lists the source of each field.
#pragma once

#include "backends/metadata/metadata.h"

namespace smla {

// V3.2 and GLM-5.x (dsa.cpp)
std::unique_ptr<FieldSet> cache_fields(Metadata& metadata);            // rows and pages of the cache
std::unique_ptr<FieldSet> limit_fields(Metadata& metadata);            // top-k and length limits as tensors
std::unique_ptr<FieldSet> fp8_schedule_fields(Metadata& metadata);     // FlashMLA's decode schedule
std::unique_ptr<FieldSet> prefill_context_fields(Metadata& metadata);  // cached context and new tokens
std::unique_ptr<FieldSet> kv_split_fields(Metadata& metadata);         // split count by occupancy

// V4 and V4.1 (hybrid.cpp)
std::unique_ptr<FieldSet> window_fields(Metadata& metadata);
std::unique_ptr<FieldSet> entry_fields(Metadata& metadata);
std::unique_ptr<FieldSet> call_length_fields(
    Metadata& metadata);  // query lengths of decode and prefill calls

}  // namespace smla
