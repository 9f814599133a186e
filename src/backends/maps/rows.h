// The integer operations of smla/rows.h, which attention backends also use. One file defines each operation.
#pragma once

#include "core/tensor.h"

#include <smla/rows.h>

namespace smla {

void request_rows(const smla_request_rows_args& args);
void split_context(const smla_split_context_args& args);
void lse_from_log2(const Tensor& log2_lse, const Tensor& lse);
void combined_rows(const smla_combined_rows_args& args);
void mixed_rows(const smla_mixed_rows_args& args);

// Number of columns of each kind for a token at `position`.
struct PrefillColumns {
    int32_t entries, window;
};
inline PrefillColumns prefill_columns(int64_t position, int32_t ratio, int32_t topk, int32_t window) {
    const int64_t visible = ratio > 0 ? (position + 1) / ratio : 0;
    return {int32_t(visible < topk ? visible : topk), int32_t(position + 1 < window ? position + 1 : window)};
}

constexpr int kScheduleColumns = 8;
constexpr int64_t kScheduleBlockRows = 64;

// Returns the part count of FlashMLA's 2025 schedule: one part per pair of multiprocessors, shared by blocks
// of 128 heads of all tokens; twice as many on sm_100.
int64_t flash_mla_parts(int64_t multiprocessors, int64_t heads, int64_t tokens, bool sm_100);
void decode_schedule(const smla_decode_schedule_args& args);

constexpr int kChunkColumns = 6;
void prefill_chunks(smla_prefill_chunks_args& args);

}  // namespace smla
