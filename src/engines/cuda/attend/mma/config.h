// What both mma kernels of attend share: the tile's traits.
#pragma once

#include "engines/cuda/attend/tile_scheduler.cuh"

#include <cstddef>
#include <cstdint>

namespace smla::cuda_attend {

constexpr int kSharedLimit = 99 * 1024;  // bytes per block that every supported GPU has

// Bytes of an fp8 record in shared memory, for the longest format. An odd number of 16-byte chunks, so that
// the 8 rows of an ldmatrix fall into 8 different bank groups.
constexpr int record_pitch(int width) { return width == 576 ? 656 : 592; }

// Decoded keys are stored as their values times this (decoded_rows.cuh).
constexpr float kDecodedUnit = 0x1p-7f;

// Width: of keys. Keys: row-list entries per tile.
template <int Width, KeyForm Form, int Keys>
struct TileConfig {
    static constexpr int width = Width, keys = Keys;
    static constexpr bool coded = Form == KeyForm::codes, decoded = Form == KeyForm::decoded;
    static constexpr float value_unit = decoded ? 1 / kDecodedUnit : 1.f;  // factor of outputs and logits
    static constexpr int pitch = coded ? record_pitch(Width) : 2 * Width, keys_bytes = Keys * pitch;
    static constexpr int scaled = Width == 576 ? 128 : 64;  // columns that share a scale in every format
    static constexpr int lift = coded ? 7 : 0;              // softmax weights are 2^lift times too large
};

// few/kernel.cu: 16 heads per block; many/kernel.cu: 32 or 64. Both are instantiated for keys of 576 and 512
// values, as fp8 records and as bf16 rows, and of 512 values for records that become rows.
template <int Width, KeyForm Form>
void launch_few(const smla_attend_args& args, const Schedule& schedule, const TileScheduler& scheduler,
                const Env& env);
template <int Width, KeyForm Form>
void launch_many(const smla_attend_args& args, const Schedule& schedule, const TileScheduler& scheduler,
                 const Env& env);

}  // namespace smla::cuda_attend
