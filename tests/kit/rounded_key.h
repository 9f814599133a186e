// Keys of fp8_656 and fp8_528 as rounded by kernels for Hopper, if keys may be rounded.
#pragma once

#include "core/numbers.h"
#include "formats/format.h"
#include "formats/layouts.h"

#include <cstring>

namespace smla::kit {

inline bool becomes_f16(smla_format format) { return format == SMLA_FP8_656 || format == SMLA_FP8_528; }

// key [576] or [512]: a decoded row. Rounds its codes to f16(code * f16(scale)), scaled by 2^7 during the
// computation.
inline void round_key_to_f16(const CacheView& cache, int64_t row, double* key) {
    const char* const record = cache.at(row).row();
    for (int tile = 0; tile < layout::Fp8_656::tiles; ++tile) {
        float scale;
        std::memcpy(&scale, record + layout::Fp8_656::scales_at + 4 * tile, sizeof scale);
        const double rounded = double(f16_to_f32(f32_to_f16(scale * 128)));
        for (int d = 128 * tile; d < 128 * (tile + 1); ++d) {
            const double code = scale == 0 ? 0 : key[d] / double(scale);
            key[d] = double(f16_to_f32(f32_to_f16(float(code * rounded)))) / 128;
        }
    }
}

}  // namespace smla::kit
