// Traits of a key tile that both mma kernels of attend share.
#pragma once

#include "engines/cuda/attend/tile_scheduler.cuh"

#include <cstddef>
#include <cstdint>

namespace smla::cuda_attend {

constexpr int kSharedLimit = 99 * 1024;  // bytes per block that every supported GPU has

// Returns the bytes of an fp8 record in shared memory, for the longest format. The number of 16-byte chunks
// is odd, so that the 8 rows of an ldmatrix fall into 8 different bank groups.
constexpr int record_pitch(int width) { return width == 576 ? 656 : 592; }

// Factor of decoded keys in shared memory (decoded_rows.cuh).
constexpr float kDecodedUnit = 0x1p-7f;

// Width: values per key. Keys: row-list entries per tile.
template <int Width, KeyForm Form, int Keys>
struct TileConfig {
    static constexpr int width = Width, keys = Keys;
    static constexpr bool coded = Form == KeyForm::codes, decoded = Form == KeyForm::decoded;
    static constexpr float value_unit = decoded ? 1 / kDecodedUnit : 1.f;  // factor of outputs and logits
    static constexpr int pitch = coded ? record_pitch(Width) : 2 * Width, keys_bytes = Keys * pitch;
    static constexpr int scaled = Width == 576 ? 128 : 64;  // columns that share a scale in every format
    static constexpr int lift = coded ? 7 : 0;              // softmax weights are multiplied by 2^lift
};

// Launch few/kernel.cu (16 heads per block) and many/kernel.cu (32 or 64). Both are instantiated for fp8
// records and bf16 rows with keys of 576 and 512 values, and for decoded rows with keys of 512 values.
template <int Width, KeyForm Form>
void launch_few(const smla_attend_args& args, const Schedule& schedule, const TileScheduler& scheduler,
                const Env& env);
template <int Width, KeyForm Form>
void launch_many(const smla_attend_args& args, const Schedule& schedule, const TileScheduler& scheduler,
                 const Env& env);

}  // namespace smla::cuda_attend
