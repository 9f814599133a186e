// Prefill requests in chunks that fit memory: see smla/rows.h.
#pragma once

#include "core/tensor.h"

#include <smla/rows.h>

namespace smla {

constexpr int kChunkColumns = 6;

void prefill_chunks(smla_prefill_chunks_args& args);

}  // namespace smla
