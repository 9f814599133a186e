// FlashMLA's decode schedule: see smla/rows.h.
#pragma once

#include "core/tensor.h"

#include <smla/rows.h>

namespace smla {

constexpr int kScheduleColumns = 8;
constexpr int64_t kScheduleBlockRows = 64;

// Parts that FlashMLA of 2025 sizes its schedule for: one per pair of multiprocessors, shared by blocks of
// 128 heads of all tokens; twice as many on sm_100.
int64_t flash_mla_parts(int64_t multiprocessors, int64_t heads, int64_t tokens, bool sm_100);

void decode_schedule(const smla_decode_schedule_args& args);

}  // namespace smla
