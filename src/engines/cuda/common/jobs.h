// Functions behind CudaDevice for plans, metadata, staging and checked calls; see core/device.h.
#pragma once

#include "core/device.h"

namespace smla::cuda {

void build_plan_on_gpu(const PlanJob& job, Device& device, smla_stream stream);
void fill_metadata_on_gpu(const MetadataJob& job, Device& device, smla_stream stream);
std::unique_ptr<StagingBuffer> open_staging_buffer_on_gpu(Device& device, size_t bytes);
void count_up_on_gpu(const int32_t* counts, int32_t* rows, int64_t n, int64_t columns, Device& device,
                     smla_stream stream);
void note_bad_value_on_gpu(const IndexScan& scan, Stage stage, const Env& env);

}  // namespace smla::cuda
