// The inner step of a model's layer: shapes without memory for explain, random memory for bench.
#pragma once

#include "backends/step.h"
#include "engines/placed.h"
#include "layers/cache_layout.h"
#include "problems.h"

namespace smla::cli {

struct StepShape {
    int64_t requests = 1, tokens = 1;  // query tokens of each request
    int64_t context = 131072;          // tokens of each request, the step's included
    CacheChoice caches;
    smla_dtype queries = SMLA_BF16;  // of attend
    smla_dtype weights = SMLA_BF16;
};

struct ModelStep {
    bool hybrid = false;
    StepBatch batch;
    DsaStep dsa;
    HybridStep hybrid_step;

    void run(Runner& runner) const;
};

ModelStep model_step(const AttentionConfig& config, int layer, const StepShape& shape);
// Copies everything that the step reads and writes to a device.
void place(ModelStep& step, PlacedMemory& memory);
// Fills queries, keys, weights and caches with random values; shuffles every request's pages.
void fill(ModelStep& step, const StepShape& shape, Memory& memory, ThreadPool& pool, uint64_t seed);

}  // namespace smla::cli
