#pragma once

#include "core/device.h"
#include "engines/metadata_job.h"

namespace smla {

// One launch. Throws if this build has no CUDA engine.
void fill_metadata_on_gpu(const MetadataJob& job, Device& device, smla_stream stream);

}  // namespace smla
